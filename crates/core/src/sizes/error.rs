//! Errors of packet sizes. Every message is one line.

use std::io;

/// An error of reading or calculating packet sizes.
#[derive(Debug, thiserror::Error)]
pub enum SizesError {
    /// A line that is not what its format says.
    #[error("{source_name}:{line}: {found:?}: expected {expected}")]
    Line {
        /// Name of the file.
        source_name: String,
        /// Number of the line, from 1.
        line: u64,
        /// What stands there.
        found: String,
        /// What should.
        expected: String,
    },
    /// The input ended too early or says too little.
    #[error("{source_name}: {found}; expected {expected}")]
    Incomplete {
        /// Name of the file.
        source_name: String,
        /// What is there.
        found: String,
        /// What should be.
        expected: String,
    },
    /// Nothing that a distribution could be made of.
    #[error(
        "no packet sizes from 1 to {maximum_bytes} bytes ({above_maximum} above): give an input with packets, or a larger maximum"
    )]
    Empty {
        /// The largest size that was to be considered.
        maximum_bytes: u32,
        /// How many were larger.
        above_maximum: u64,
    },
    /// A parameter outside its range.
    #[error("{parameter} is {found}, expected {expected}")]
    Parameter {
        /// The parameter.
        parameter: &'static str,
        /// What was given.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// The text does not name a size distribution.
    #[error("sizes {found:?}: {reason}; expected {expected}")]
    Spec {
        /// What was given.
        found: String,
        /// What is wrong.
        reason: String,
        /// What there is.
        expected: &'static str,
    },
    /// The file cannot be read.
    #[error(
        "{source_name}: cannot be read: {source}; check that it exists and that you may read it"
    )]
    Read {
        /// The file.
        source_name: String,
        /// Why.
        source: io::Error,
    },
    /// The output took less than it was given.
    #[error("cannot be written: {0}; make room or name another output")]
    Write(#[source] io::Error),
}

impl SizesError {
    /// Whether the request itself was wrong, and not what a file says.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Parameter { .. } | Self::Spec { .. })
    }
}
