//! The path instrument: when each packet passed which stage of the kernel.
//!
//! | room | holds |
//! |---|---|
//! | [`request`] | what is wanted |
//! | `stages` | the table of the stages and their programs |
//! | [`selection`] | what this kernel offers of a request |
//! | `settings` | what the programs are given of it |
//! | `load` | the object: maps, programs |
//! | `attachment` | programs at their hooks |
//! | `arrays` | what the programs fill, mapped |
//! | [`hooks`] | the kernel side as a whole |
//! | `account` | the arrays as tables |
//! | `status` | what a measurement reports |
//! | [`session`] | starts a measurement; `run` is the thread behind it |

mod account;
mod arrays;
mod attachment;
pub mod hooks;
pub(crate) mod load;
pub mod request;
mod run;
pub mod selection;
pub mod session;
mod settings;
mod stages;
mod status;

use crate::session::{InstrumentError, SessionError};

/// Why paths cannot be measured.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document variants and fields")]
pub enum PathError {
    #[error("--{option} {value}: expected {expected}")]
    Option {
        option: &'static str,
        value: String,
        expected: String,
    },
    #[error(
        "the kernel did not load the path programs: {reason}; `parshall doctor` shows what this host offers"
    )]
    Load { reason: String },
    #[error(
        "program {program} could not be attached: {reason}; `parshall doctor` shows what this host offers"
    )]
    Attach { program: String, reason: String },
    #[error("{reason}")]
    Cgroup { reason: String },
    #[error(transparent)]
    Filter(#[from] crate::filter::ExpressionError),
    #[error(transparent)]
    Log(#[from] parshall_core::tcp_log::LogError),
    #[error(transparent)]
    Output(#[from] parshall_core::output_file::OutputError),
    #[error("log {path}: {source} after {written_bytes} bytes; make room, or log to another disk")]
    Full {
        path: String,
        written_bytes: u64,
        source: std::io::Error,
    },
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Ring(#[from] crate::ring::RingError),
}

impl InstrumentError for PathError {
    fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Option { .. } | Self::Cgroup { .. } | Self::Filter(_)
        )
    }

    fn is_reader_gone(&self) -> bool {
        matches!(self, Self::Full { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe)
    }
}

impl PathError {
    fn load(error: impl std::fmt::Display) -> Self {
        Self::Load {
            reason: error.to_string(),
        }
    }

    fn attach(program: &str, error: impl std::fmt::Display) -> Self {
        Self::Attach {
            program: program.into(),
            reason: error.to_string(),
        }
    }
}
