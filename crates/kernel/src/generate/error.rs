//! Why packets cannot be generated.

use crate::net::interface::InterfaceError;
use crate::net::socket::SocketError;
use crate::programs::ProgramError;
use parshall_core::workload::ReplayError;

use crate::session::{InstrumentError, SessionError};

/// An error of the generator: one line with the remedy.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document variants and fields")]
pub enum GenerateError {
    #[error(transparent)]
    Distribution(#[from] parshall_core::distributions::DistributionError),
    #[error(transparent)]
    Sizes(#[from] parshall_core::sizes::SizesError),
    #[error(transparent)]
    Workload(#[from] parshall_core::workload::WorkloadError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error("{option} {found}: expected {expected}")]
    Option {
        option: &'static str,
        found: String,
        expected: String,
    },
    #[error(transparent)]
    Trace(#[from] parshall_core::trace::TraceError),
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error("network namespace {path}: {source}; `ip netns list` names those there are")]
    Namespace {
        path: String,
        source: std::io::Error,
    },
    #[error("the kernel did not {what}: {reason}; `parshall doctor` shows what this host offers")]
    Kernel { what: &'static str, reason: String },
    #[error("generator thread: {reason}")]
    Thread { reason: String },
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl From<ProgramError> for GenerateError {
    fn from(error: ProgramError) -> Self {
        Self::Kernel {
            what: "load the generator",
            reason: error.to_string(),
        }
    }
}

impl From<SocketError> for GenerateError {
    fn from(error: SocketError) -> Self {
        Self::Kernel {
            what: "give a socket to send from",
            reason: error.to_string(),
        }
    }
}

impl GenerateError {
    /// The error of an unsuitable option, with the remedy.
    pub(crate) fn option(
        option: &'static str,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::Option {
            option,
            found: found.into(),
            expected: expected.into(),
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
            Self::Interface(_) | Self::Namespace { .. } => true,
            Self::Sizes(error) => error.is_usage(),
            Self::Replay(error) => matches!(error, ReplayError::Workload(_)),
            Self::Trace(_) | Self::Kernel { .. } => false,
            Self::Thread { .. } | Self::Session(_) => false,
        }
    }
}
