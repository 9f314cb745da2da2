//! What can go wrong with a relay.

use crate::session::{InstrumentError, SessionError};
use std::io;

/// An error of the relay: one line that names the thing, the value and the remedy.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document variants and fields")]
pub enum RelayError {
    #[error("relay: {parameter} {value} is outside {range}; choose a value inside it")]
    Parameter {
        parameter: &'static str,
        value: String,
        range: &'static str,
    },
    #[error(
        "relay: network namespace {path} cannot be entered ({source}); check that it exists and that this process has CAP_SYS_ADMIN"
    )]
    Namespace { path: String, source: io::Error },
    #[error(
        "relay: interface {interface} is not in the namespace ({source}); create it before the relay starts"
    )]
    Interface {
        interface: String,
        source: io::Error,
    },
    #[error(
        "relay: {action} on interface {interface} failed ({source}); it needs CAP_NET_RAW and CAP_NET_ADMIN"
    )]
    Socket {
        action: &'static str,
        interface: String,
        source: io::Error,
    },
    #[error(
        "relay: CPU {cpu} cannot be used ({source}); choose one of this process's CPUs (taskset -p)"
    )]
    Cpu { cpu: usize, source: io::Error },
    #[error("relay: {what} is not available ({source}); free resources and try again")]
    Resource {
        what: &'static str,
        source: io::Error,
    },
    #[error("relay: {0}")]
    Session(#[from] SessionError),
}

impl InstrumentError for RelayError {
    fn is_usage(&self) -> bool {
        false
    }
}
