//! The TCP instrument: per-packet state of every connection, from hook to log.
//!
//! [`options`] is the request, [`hooks`] is the kernel side, [`collector`] reads the ring and
//! keeps the table of [`flows`], [`session`] puts them together into a log, and `run` is the thread behind it.

pub mod collector;
pub mod flows;
pub mod hooks;
pub mod options;
mod run;
pub mod session;
mod status;

#[cfg(test)]
mod lanes_test;

use std::path::PathBuf;

use crate::session::{InstrumentError, SessionError};

/// Why a TCP state log cannot be made.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document variants and fields")]
pub enum TcpError {
    #[error("--{option} {value}: expected {expected}")]
    Option {
        option: &'static str,
        value: String,
        expected: String,
    },
    #[error(
        "the kernel did not load the TCP programs: {reason}; `parshall doctor` shows what this host offers"
    )]
    Load { reason: String },
    #[error(
        "program {program} could not be attached: {reason}; `parshall doctor` shows what this host offers"
    )]
    Attach { program: String, reason: String },
    #[error("cgroup {}: {reason}", path.display())]
    Cgroup { path: PathBuf, reason: String },
    #[error(transparent)]
    Log(#[from] parshall_core::tcp_log::LogError),
    #[error(transparent)]
    Output(#[from] parshall_core::output_file::OutputError),
    #[error(
        "log {}: {source} after {written_bytes} bytes; make room, or log to another disk",
        path.display()
    )]
    Full {
        path: PathBuf,
        written_bytes: u64,
        source: std::io::Error,
    },
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Ring(#[from] crate::ring::RingError),
}

impl InstrumentError for TcpError {
    fn is_usage(&self) -> bool {
        matches!(self, Self::Option { .. } | Self::Cgroup { .. })
    }

    fn is_reader_gone(&self) -> bool {
        matches!(self, Self::Full { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe)
    }
}

impl TcpError {
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
