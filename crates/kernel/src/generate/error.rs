//! Why packets cannot be generated.

use crate::net::socket::SocketError;
use parshall_core::workload::ReplayError;

use crate::session::{GivenUp, InstrumentError, ThreadError};

/// An error of the generator: one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// A mistake of the request.
    #[error(transparent)]
    Distribution(#[from] parshall_core::distributions::DistributionError),
    /// A mistake of the request.
    #[error(transparent)]
    Sizes(#[from] parshall_core::sizes::SizesError),
    /// A mistake of the request.
    #[error(transparent)]
    Workload(#[from] parshall_core::workload::WorkloadError),
    /// A capture file that cannot be sent anew.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// A mistake of the request.
    #[error("{option} {found}: expected {expected}")]
    Option {
        /// Its option.
        option: &'static str,
        /// What was given.
        found: String,
        /// What would do.
        expected: String,
    },
    /// A file that cannot be read.
    #[error(transparent)]
    Trace(#[from] parshall_core::trace::TraceError),
    /// The interface is not there, or does not do what is needed.
    #[error("interface {interface}: {reason}")]
    Interface {
        /// Its name.
        interface: String,
        /// What is wrong with it, and the remedy.
        reason: String,
    },
    /// The namespace cannot be entered.
    #[error("network namespace {path}: {source}; `ip netns list` names those there are")]
    Namespace {
        /// What was given.
        path: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The program was not accepted, or does not run.
    #[error("the kernel did not {what}: {reason}; `parshall doctor` tells what this host offers")]
    Kernel {
        /// What it did not do.
        what: &'static str,
        /// What it said.
        reason: String,
    },
    /// A thread could not be started, or died.
    #[error("generator thread: {reason}")]
    Thread {
        /// What happened.
        reason: String,
    },
    /// The thread of the run could not be started, or died.
    #[error(transparent)]
    Session(#[from] ThreadError),
    /// The caller gave the run up.
    #[error(transparent)]
    GivenUp(#[from] GivenUp),
}

impl From<SocketError> for GenerateError {
    fn from(error: SocketError) -> Self {
        Self::Kernel {
            what: "give a socket to send from",
            reason: error.to_string(),
        }
    }
}

/// An error of a system call that sending needs.
pub(crate) fn failed(what: &'static str) -> impl Fn(std::io::Error) -> GenerateError {
    move |error| GenerateError::Kernel {
        what,
        reason: error.to_string(),
    }
}

impl InstrumentError for GenerateError {
    fn is_usage(&self) -> bool {
        match self {
            Self::Distribution(_) | Self::Workload(_) | Self::Option { .. } => true,
            Self::Interface { .. } | Self::Namespace { .. } => true,
            Self::Sizes(error) => error.is_usage(),
            Self::Replay(error) => matches!(error, ReplayError::Workload(_)),
            Self::Trace(_) | Self::Kernel { .. } => false,
            Self::Thread { .. } | Self::Session(_) | Self::GivenUp(_) => false,
        }
    }
}
