//! What can go wrong with a gateway.

use std::io;

use crate::session::{InstrumentError, SessionError};

/// An error of the gateway: one line with the remedy.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document variants and fields")]
pub enum GatewayError {
    #[error("gateway: secret of {bytes} bytes: expected at least {least}, fresh for each session")]
    Secret { bytes: usize, least: usize },
    #[error("gateway: address {address}: expected ADDRESS:PORT")]
    Address { address: String },
    #[error("gateway: network namespace {path}: {source}; `ip netns list` names those there are")]
    Namespace { path: String, source: io::Error },
    #[error(
        "gateway: TUN device {name}: {source}; it needs /dev/net/tun and CAP_NET_ADMIN, and a name that is free"
    )]
    Tun { name: String, source: io::Error },
    #[error("gateway: UDP {local} to {peer}: {source}; give an address of this host that is free")]
    Socket {
        local: String,
        peer: String,
        source: io::Error,
    },
    #[error("gateway: CPU {cpu}: {source}; choose one of this process's CPUs (taskset -p)")]
    Cpu { cpu: usize, source: io::Error },
    #[error("gateway: cipher: {reason}; this is a fault of Parshall, report it")]
    Cipher { reason: &'static str },
    #[error("gateway: TUN device {name} cannot be read: {source}; it was removed or set down")]
    Read { name: String, source: io::Error },
    #[error("{path}: cannot be written: {source}")]
    Write { path: String, source: io::Error },
    #[error("gateway: {0}")]
    Session(#[from] SessionError),
}

impl InstrumentError for GatewayError {
    fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Secret { .. } | Self::Address { .. } | Self::Namespace { .. }
        )
    }
}
