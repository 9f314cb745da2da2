//! Errors of packet sizes. Every message is one line.

use std::io;

/// An error of reading or calculating packet sizes.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum SizesError {
    /// A line that its format does not allow.
    #[error("{source_name}:{line}: {found:?}: expected {expected}")]
    Line {
        source_name: String,
        /// Number of the line, from 1.
        line: u64,
        found: String,
        expected: String,
    },
    /// The input ended too early, is incomplete, or is no text.
    #[error("{source_name}: {found}; expected {expected}")]
    Incomplete {
        source_name: String,
        found: String,
        expected: String,
    },
    /// No packets for a distribution.
    #[error(
        "no packet sizes from 1 to {maximum_bytes} bytes ({above_maximum} above): give an input with packets, or a larger maximum"
    )]
    Empty {
        maximum_bytes: u32,
        above_maximum: u64,
    },
    /// A parameter outside its range.
    #[error("{parameter} is {found}, expected {expected}")]
    Parameter {
        parameter: &'static str,
        found: String,
        expected: String,
    },
    /// The text does not name a size distribution.
    #[error("sizes {found:?}: {reason}; expected {expected}")]
    Spec {
        found: String,
        reason: String,
        expected: &'static str,
    },
    /// The file cannot be read.
    #[error(
        "{source_name}: cannot be read: {source}; check that it exists and that you may read it"
    )]
    Read {
        source_name: String,
        source: io::Error,
    },
    /// The output could not be written.
    #[error("cannot be written: {0}; make room or name another output")]
    Write(#[source] io::Error),
}

impl SizesError {
    /// Whether the request itself was wrong, and not the content of a file.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Parameter { .. } | Self::Spec { .. })
    }
}
