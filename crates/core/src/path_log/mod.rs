//! The log of the path instrument: one row a packet, with the time at which it passed each stage, and one row a read
//! from a socket. One Arrow IPC stream; the account is custom metadata of batches without rows, as in the TCP log.

mod columns;
mod histogram;
mod reader;
mod rows;
mod writer;

pub use columns::{COLUMNS, Column, Kind, path_schema};
pub use histogram::{TimeHistogram, bucket_from_ns};
pub use reader::{Account, PathLogReader, stream_format};
pub use rows::{PathRows, Row};
pub use writer::PathLogWriter;

use crate::abi::PATH_CODE_COUNT;

/// Value of the metadata key `parshall.format`.
pub const FORMAT: &str = "path";
/// Value of the metadata key `parshall.format_version`.
pub const FORMAT_VERSION: &str = "1.1";

/// The code paths, in the order of `enum path_code`.
pub const CODE_NAMES: [&str; PATH_CODE_COUNT] = [
    "forwarded",
    "delivered",
    "sent",
    "dropped",
    "consumed",
    "merged",
    "segmented",
    "unknown",
    "displaced",
    "open",
];
