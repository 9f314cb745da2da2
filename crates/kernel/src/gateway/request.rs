//! A gateway that is to be started.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use super::{Cipher, GatewayError};
use crate::os_text;

/// Bytes of a secret at least.
const SECRET_BYTES_MIN: usize = 16;

/// One end of a tunnel.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayRequest {
    /// Name of the TUN device, which is created, and removed with the gateway.
    pub tun: String,
    /// Path of the network namespace; none: that of the caller.
    #[serde(default, deserialize_with = "os_text::optional_path")]
    pub namespace: Option<PathBuf>,
    /// Own address, `ADDRESS:PORT`.
    pub local: String,
    /// The peer's address.
    pub peer: String,
    /// Cipher of both directions.
    pub cipher: Cipher,
    /// From which both ends derive the keys; fresh for each session, because sequence numbers start at 0.
    pub secret: String,
    /// Whether this end is the first: the ends of a tunnel differ in it.
    pub is_first: bool,
    /// CPU of the thread; none: the scheduler decides.
    pub cpu: Option<usize>,
    /// File for the 8 bytes at `stamp_offset` of each packet sent, in the order of the sequence numbers; written at the
    /// end.
    #[serde(default, deserialize_with = "os_text::optional_path")]
    pub stamp_log: Option<PathBuf>,
    /// Offset of the stamp in the IP packet.
    #[serde(default)]
    pub stamp_offset: usize,
    /// Packets for which memory is reserved in that log.
    #[serde(default)]
    pub stamp_capacity: usize,
}

impl GatewayRequest {
    /// Checks what does not need the kernel; returns own address and the peer's.
    pub(super) fn addresses(&self) -> Result<[SocketAddr; 2], GatewayError> {
        if self.secret.len() < SECRET_BYTES_MIN {
            return Err(GatewayError::Secret {
                bytes: self.secret.len(),
                least: SECRET_BYTES_MIN,
            });
        }
        let parsed = |text: &String| {
            text.parse().map_err(|_| GatewayError::Address {
                address: text.clone(),
            })
        };
        Ok([parsed(&self.local)?, parsed(&self.peer)?])
    }
}
