//! What can go wrong in a conversion.

use super::format::Format;
use crate::log::LogError;

/// An error of a conversion.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The result cannot be written.
    #[error("writing failed: {0}; make room or write elsewhere with -o")]
    Write(#[from] std::io::Error),
    /// The format cannot say "no flow".
    #[error(
        "{path}: holds no flow, {format} needs at least one in its last line; convert to csv or parquet instead"
    )]
    NoFlow {
        /// The log.
        path: String,
        /// The format.
        format: Format,
    },
    /// The format has no such name.
    #[error("format: {found:?} is unknown, expected one of {}", Format::NAMES.join(", "))]
    UnknownFormat {
        /// What was asked for.
        found: String,
    },
    /// The format has no such option.
    #[error("option {option}: not for {format}: {reason}; leave it out")]
    Option {
        /// The option.
        option: &'static str,
        /// The format.
        format: Format,
        /// Why not.
        reason: &'static str,
    },
    /// The Parquet library failed.
    #[error("conversion to parquet: {0}; please report this")]
    Parquet(#[from] ::parquet::errors::ParquetError),
}
