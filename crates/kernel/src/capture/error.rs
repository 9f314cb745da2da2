//! Why packets cannot be captured, each in one line.

use std::path::PathBuf;

use parshall_core::trace::TraceError;

use crate::net::interface::InterfaceError;
use crate::programs::ProgramError;
use crate::session::{InstrumentError, SessionError};

/// An error of the capture instrument.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document variants and fields")]
pub enum CaptureError {
    #[error("--{option} {value}: {expected}")]
    Option {
        option: &'static str,
        value: String,
        expected: String,
    },
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error("{reason}")]
    Filter { reason: String },
    #[error(
        "the kernel did not load the capture programs: {reason}; `parshall doctor` shows what this host offers"
    )]
    Load { reason: String },
    #[error(
        "the filters of this ring and the one that was to come, {filters} in all, make a program of {instructions} instructions, which the kernel refuses ({reason}); give a simpler filter, or create a ring of your own with --name"
    )]
    Merged {
        filters: usize,
        instructions: usize,
        reason: String,
    },
    #[error(
        "the filters of this ring and the one that was to come, {filters} in all: to merge and load them takes more than {memory_mib} MiB of memory or {seconds} s; give a simpler filter, or create a ring of your own with --name"
    )]
    TooMuch {
        filters: usize,
        memory_mib: u64,
        seconds: u64,
    },
    #[error(
        "--buffer {requested_bytes}: a ring of {total_bytes} bytes for {cpus} CPUs, but {free_bytes} bytes of memory are free; choose a smaller one"
    )]
    Memory {
        requested_bytes: u64,
        total_bytes: u64,
        cpus: usize,
        free_bytes: u64,
    },
    #[error(
        "ring {ring} has {present} subscribers, and {asked} more would be above the {max} that a ring can have; end one, or create a ring of your own",
        max = parshall_core::abi::CAPTURE_SUBSCRIBERS_MAX
    )]
    Subscribers {
        ring: String,
        present: usize,
        asked: usize,
    },
    #[error("ring {name}: {reason}")]
    Name { name: String, reason: String },
    #[error("{}: {reason}", path.display())]
    Path { path: PathBuf, reason: String },
    #[error("{message}")]
    Refused { message: String, is_usage: bool },
    #[error(
        "the keeper of ring {ring} died, and the capture with it; the files are whole up to here"
    )]
    KeeperGone { ring: String },
    #[error("no interface of ring {ring} is left; the files are whole up to here")]
    InterfacesGone { ring: String },
    #[error("keeper: {reason}")]
    Keeper { reason: String },
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Ring(#[from] crate::ring::RingError),
    #[error(transparent)]
    Backend(#[from] super::backend::BackendError),
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl CaptureError {
    /// The error of an unsuitable option, with the remedy.
    pub(crate) fn option(
        option: &'static str,
        value: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::Option {
            option,
            value: value.into(),
            expected: expected.into(),
        }
    }

    pub(crate) fn load(error: impl std::fmt::Display) -> Self {
        Self::Load {
            reason: error.to_string(),
        }
    }

    pub(crate) fn keeper(error: impl std::fmt::Display) -> Self {
        Self::Keeper {
            reason: error.to_string(),
        }
    }
}

impl From<ProgramError> for CaptureError {
    fn from(error: ProgramError) -> Self {
        Self::load(error)
    }
}

impl InstrumentError for CaptureError {
    fn is_usage(&self) -> bool {
        match self {
            Self::Option { .. } | Self::Filter { .. } | Self::Trace(TraceError::Option { .. }) => {
                true
            }
            Self::Interface(_) | Self::Name { .. } | Self::Path { .. } => true,
            Self::Backend(error) => error.is_usage(),
            Self::Refused { is_usage, .. } => *is_usage,
            _ => false,
        }
    }
    fn is_reader_gone(&self) -> bool {
        matches!(self, Self::Trace(error) if error.is_reader_gone())
    }
}
