//! Errors of conversions.

use super::format::Format;
use crate::tcp_log::LogError;

/// An error of a conversion.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ConvertError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The result cannot be written.
    #[error("writing failed: {0}; make room or write elsewhere with -o")]
    Write(#[from] std::io::Error),
    /// The format needs a flow.
    #[error(
        "{path}: holds no packet of an established connection, {format} needs at least one flow in its last line; \
         convert to csv or parquet instead"
    )]
    NoFlow { path: String, format: Format },
    /// The log has no such flow.
    #[error("--flow {flow}: is not in {path}, which has {flows} flows; parshall show lists them")]
    UnknownFlow {
        flow: u32,
        path: String,
        flows: usize,
    },
    /// The format has no such name.
    #[error("format: {found:?} is unknown, expected one of {}", Format::NAMES.join(", "))]
    UnknownFormat { found: String },
    /// The format has no such option.
    #[error("--{option}: not for {format}: {reason}; leave it out")]
    Option {
        option: &'static str,
        format: Format,
        reason: &'static str,
    },
    /// A polled view would be too long.
    #[error(
        "--every: {every_ns} ns make {lines} lines or more of this log, {} GB, expected at most {lines_max} lines: \
         poll every {least_ns} ns or less often",
        lines / LINES_A_GB
    )]
    TooManyLines {
        every_ns: i64,
        lines: i128,
        lines_max: i128,
        least_ns: i128,
    },
    /// The Parquet library failed.
    #[error("conversion to parquet: {0}; please report this")]
    Parquet(::parquet::errors::ParquetError),
}

/// Lines of a polled view have some 400 bytes.
const LINES_A_GB: i128 = 2_500_000;

impl From<::parquet::errors::ParquetError> for ConvertError {
    /// An error of the output is not one of the Parquet library.
    fn from(error: ::parquet::errors::ParquetError) -> Self {
        match error {
            ::parquet::errors::ParquetError::External(source) => match source.downcast() {
                Ok(source) => Self::Write(*source),
                Err(source) => Self::Parquet(::parquet::errors::ParquetError::External(source)),
            },
            error => Self::Parquet(error),
        }
    }
}
