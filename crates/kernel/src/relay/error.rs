//! What can go wrong with a relay.

use crate::session::{GivenUp, InstrumentError, ThreadError};
use std::io;

/// An error of the relay: one line that names the thing, the value and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// A parameter of a direction is outside its range.
    #[error("relay: {parameter} {value} is outside {range}; choose a value inside it")]
    Parameter {
        /// Name of the parameter, with its unit.
        parameter: &'static str,
        /// The value asked for.
        value: String,
        /// The values allowed.
        range: &'static str,
    },
    /// The namespace could not be entered.
    #[error(
        "relay: network namespace {path} cannot be entered ({source}); check that it exists and that this process has CAP_SYS_ADMIN"
    )]
    Namespace {
        /// Path of the namespace.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no such interface in the namespace.
    #[error(
        "relay: interface {interface} is not in the namespace ({source}); create it before the relay starts"
    )]
    Interface {
        /// Name of the interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A raw socket on an interface failed.
    #[error(
        "relay: {action} on interface {interface} failed ({source}); it needs CAP_NET_RAW and CAP_NET_ADMIN"
    )]
    Socket {
        /// The step that failed.
        action: &'static str,
        /// Name of the interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The thread cannot run where it was asked to.
    #[error(
        "relay: CPU {cpu} cannot be used ({source}); choose one of this process's CPUs (taskset -p)"
    )]
    Cpu {
        /// The CPU asked for.
        cpu: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// The operating system refused a thread, a descriptor or memory.
    #[error("relay: {what} is not available ({source}); free resources and try again")]
    Resource {
        /// What was asked for.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The relay's thread could not be started, or died.
    #[error("relay: {0}")]
    Thread(#[from] ThreadError),
    /// The caller gave the relay up.
    #[error(transparent)]
    GivenUp(#[from] GivenUp),
}

impl InstrumentError for RelayError {
    fn is_usage(&self) -> bool {
        false
    }
}
