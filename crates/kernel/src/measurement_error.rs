//! Why packets or connections cannot be measured: one error for all instruments that have programs, a ring and a log.

use std::io;
use std::path::{Path, PathBuf};

use parshall_core::output_file::OutputError;
use parshall_core::tcp_log::LogError;

use crate::filter::ExpressionError;
use crate::programs::ProgramError;
use crate::ring::RingError;
use crate::session::{InstrumentError, SessionError};

/// An error of a measurement: one line with the remedy.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document variants and fields")]
pub enum MeasurementError {
    #[error("--{option} {value}: expected {expected}")]
    Option {
        option: &'static str,
        value: String,
        expected: String,
    },
    #[error(
        "the kernel did not load the programs: {reason}; `parshall doctor` shows what this host offers"
    )]
    Load { reason: String },
    #[error(
        "program {program} could not be attached: {reason}; `parshall doctor` shows what this host offers"
    )]
    Attach { program: String, reason: String },
    #[error(
        "memory: the maps and rings need {needed_mib} MiB on a host of {cpus} CPUs, more than half of the {free_mib} MiB that are free; lower {remedy}"
    )]
    Memory {
        needed_mib: u64,
        cpus: usize,
        free_mib: u64,
        remedy: &'static str,
    },
    #[error("cgroup {}: {reason}", path.display())]
    Cgroup { path: PathBuf, reason: String },
    #[error(transparent)]
    Filter(#[from] ExpressionError),
    #[error(transparent)]
    Log(LogError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(
        "log {}: {source} after {written_bytes} bytes; make room, or log to another disk",
        path.display()
    )]
    Full {
        path: PathBuf,
        written_bytes: u64,
        source: io::Error,
    },
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Ring(#[from] RingError),
}

impl InstrumentError for MeasurementError {
    fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Option { .. }
                | Self::Memory { .. }
                | Self::Cgroup { .. }
                | Self::Filter(_)
                | Self::Output(OutputError::NameInUse { .. })
        )
    }

    fn is_reader_gone(&self) -> bool {
        matches!(self, Self::Full { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl From<ProgramError> for MeasurementError {
    fn from(error: ProgramError) -> Self {
        match error {
            ProgramError::Load(reason) => Self::Load { reason },
            ProgramError::Attach { program, source } => Self::attach(&program, source),
        }
    }
}

impl MeasurementError {
    pub(crate) fn load(error: impl std::fmt::Display) -> Self {
        Self::Load {
            reason: error.to_string(),
        }
    }

    pub(crate) fn attach(program: &str, error: impl std::fmt::Display) -> Self {
        Self::Attach {
            program: program.into(),
            reason: error.to_string(),
        }
    }

    /// The error of a log that takes no more.
    pub(crate) fn log(path: &Path, error: LogError) -> Self {
        match error {
            LogError::Write {
                written_bytes,
                source,
            } => Self::Full {
                path: path.into(),
                written_bytes,
                source,
            },
            error => Self::Log(error),
        }
    }
}
