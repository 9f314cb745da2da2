//! The TCP instrument: per-packet state of every connection, from hook to log.
//!
//! [`options`] says what is wanted, [`hooks`] is the kernel side, [`collector`] reads the ring and
//! keeps the table of [`flows`], [`session`] puts them together into a log, and `run` is the thread behind it.

pub mod collector;
pub mod flows;
pub mod hooks;
pub mod options;
mod run;
pub mod session;

#[cfg(test)]
mod lanes_test;

use std::path::PathBuf;

use crate::session::{GivenUp, InstrumentError, ThreadError};

/// Why a TCP state log cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TcpError {
    /// An option is out of bounds: a mistake of the request.
    #[error("--{option} {value}: expected {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        expected: String,
    },
    /// The programs were not accepted.
    #[error(
        "the kernel did not load the TCP programs: {reason}; `parshall doctor` tells what this host offers"
    )]
    Load {
        /// What the kernel or libbpf said.
        reason: String,
    },
    /// A program could not be attached.
    #[error(
        "program {program} could not be attached: {reason}; `parshall doctor` tells what this host offers"
    )]
    Attach {
        /// Name of the program.
        program: String,
        /// What the kernel said.
        reason: String,
    },
    /// The control group cannot be used.
    #[error("cgroup {}: {reason}", path.display())]
    Cgroup {
        /// What was given.
        path: PathBuf,
        /// What is wrong with it, and the remedy.
        reason: String,
    },
    /// The log could not be written.
    #[error(transparent)]
    Log(#[from] parshall_core::tcp_log::LogError),
    /// The output file could not be made.
    #[error(transparent)]
    Output(#[from] parshall_core::output_file::OutputError),
    /// The file took no more.
    #[error(
        "log {}: {source} after {written_bytes} bytes; make room, or log to another disk",
        path.display()
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// Bytes that the file has taken.
        written_bytes: u64,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The reader's thread could not be started, or died.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// The caller gave the log up.
    #[error(transparent)]
    GivenUp(#[from] GivenUp),
    /// The ring could not be made.
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
}
