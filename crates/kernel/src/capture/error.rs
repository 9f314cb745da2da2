//! Why packets cannot be captured, each in one line.

use std::path::PathBuf;

use parshall_core::trace::TraceError;

use crate::net::interface::InterfaceError;
use crate::session::{GivenUp, InstrumentError, ThreadError};

/// An error of the capture instrument.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// An option is out of bounds: a mistake of the request.
    #[error("--{option} {value}: {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        expected: String,
    },
    /// An interface cannot be used.
    #[error("interface {name}: {reason}")]
    Interface {
        /// Its name.
        name: String,
        /// What is wrong, and the remedy.
        reason: String,
    },
    /// A filter is not in libpcap's language.
    #[error("{reason}")]
    Filter {
        /// The expression, what libpcap says, and where.
        reason: String,
    },
    /// The programs were not accepted.
    #[error(
        "the kernel did not load the capture programs: {reason}; `parshall doctor` tells what this host offers"
    )]
    Load {
        /// What the kernel or libbpf said.
        reason: String,
    },
    /// The filters of all subscribers are more than the verifier takes.
    #[error(
        "the filters of this ring and the one that was to come, {filters} in all, make a program of {instructions} instructions, which the kernel refuses ({reason}); give a simpler filter, or found a ring of your own with --name"
    )]
    Merged {
        /// Subscribers, with those that were to come.
        filters: usize,
        /// Length of the program.
        instructions: usize,
        /// What the verifier said.
        reason: String,
    },
    /// Merging the filters of all subscribers, or loading them, takes too much.
    #[error(
        "the filters of this ring and the one that was to come, {filters} in all: to merge and load them takes more than {memory_mib} MiB of memory or {seconds} s; give a simpler filter, or found a ring of your own with --name"
    )]
    TooMuch {
        /// Subscribers, with those that were to come.
        filters: usize,
        /// What it may take, MiB.
        memory_mib: u64,
        /// What it may take, seconds.
        seconds: u64,
    },
    /// The ring is larger than what is free.
    #[error(
        "--buffer {asked_bytes}: a ring of {total_bytes} bytes for {cpus} CPUs, but {free_bytes} bytes of memory are free; choose a smaller one"
    )]
    Memory {
        /// Bytes for each CPU.
        asked_bytes: u64,
        /// Bytes in all.
        total_bytes: u64,
        /// CPUs of this host.
        cpus: usize,
        /// Bytes that the kernel calls available.
        free_bytes: u64,
    },
    /// No bit is free for another subscriber.
    #[error(
        "ring {ring} has {present} subscribers, and {asked} more would be above the {max} that a ring can have; end one, or found a ring of your own",
        max = parshall_core::abi::CAPTURE_SUBSCRIBERS_MAX
    )]
    Subscribers {
        /// Name of the ring.
        ring: String,
        /// Subscribers that it has.
        present: usize,
        /// Subscribers that were to come.
        asked: usize,
    },
    /// A ring cannot be found, joined or founded.
    #[error("ring {name}: {reason}")]
    Name {
        /// The ring.
        name: String,
        /// What is wrong, and the remedy.
        reason: String,
    },
    /// A directory or socket of the rings cannot be used.
    #[error("{}: {reason}", path.display())]
    Path {
        /// What was to be used.
        path: PathBuf,
        /// What is wrong, and the remedy.
        reason: String,
    },
    /// What the keeper answered to a request of ours.
    #[error("{message}")]
    Refused {
        /// Its line.
        message: String,
        /// Whether the request itself was wrong.
        is_usage: bool,
    },
    /// The keeper has gone.
    #[error(
        "the keeper of ring {ring} died, and the capture with it; the files are whole up to here"
    )]
    KeeperGone {
        /// The ring.
        ring: String,
    },
    /// No interface of the ring is there any more.
    #[error("no interface of ring {ring} is left; the files are whole up to here")]
    InterfacesGone {
        /// The ring.
        ring: String,
    },
    /// The keeper could not be started, or does not speak as it should.
    #[error("keeper: {reason}")]
    Keeper {
        /// What happened.
        reason: String,
    },
    /// The caller gave the capture up.
    #[error(transparent)]
    GivenUp(#[from] GivenUp),
    /// The reader's thread could not be started, or died.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// The ring could not be made or mapped.
    #[error(transparent)]
    Ring(#[from] crate::ring::RingError),
    /// A socket cannot capture.
    #[error(transparent)]
    Backend(#[from] super::backend::BackendError),
    /// A file could not be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl From<InterfaceError> for CaptureError {
    fn from(error: InterfaceError) -> Self {
        Self::Interface {
            name: error.name,
            reason: error.reason,
        }
    }
}

impl CaptureError {
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

impl InstrumentError for CaptureError {
    fn is_usage(&self) -> bool {
        match self {
            Self::Option { .. } | Self::Filter { .. } | Self::Trace(TraceError::Option { .. }) => {
                true
            }
            Self::Interface { .. } | Self::Name { .. } | Self::Path { .. } => true,
            Self::Backend(error) => error.is_usage(),
            Self::Refused { is_usage, .. } => *is_usage,
            _ => false,
        }
    }
    fn is_reader_gone(&self) -> bool {
        matches!(self, Self::Trace(error) if error.is_reader_gone())
    }
}
