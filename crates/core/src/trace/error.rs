//! Errors of capture files.

use crate::output_file::OutputError;
use std::io;

/// An error of the writer or the reader of capture files.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum TraceError {
    /// A file cannot be created.
    #[error(transparent)]
    Create(#[from] OutputError),
    /// The file took only a part of the bytes. The writer keeps the rest, and can continue.
    #[error(
        "{path}: takes no more after {written_bytes} bytes: {source}; what is in it opens, packets from now on are counted as unwritten until there is room"
    )]
    Write {
        path: String,
        /// Bytes that are in it.
        written_bytes: u64,
        source: io::Error,
    },
    /// The reader of the pipe closed it. This is no fault, but no more can be written.
    #[error("{path}: its reader closed the pipe after {written_bytes} bytes")]
    ReaderGone {
        path: String,
        /// Bytes that the reader took.
        written_bytes: u64,
    },
    /// The compressor failed.
    #[error("compressor: {0}; is there memory left?")]
    Compress(io::Error),
    /// The options of the writer are invalid.
    #[error("{option} {found}: {expected}")]
    Option {
        option: &'static str,
        found: String,
        expected: String,
    },
    /// A packet has an interface that the writer does not know.
    #[error("packet of interface {interface}: the writer has {known} interfaces, numbered from 0")]
    UnknownInterface { interface: u32, known: usize },
    /// The file cannot be opened or read.
    #[error("{path}: cannot be read: {source}; check that it exists and that you may read it")]
    Read { path: String, source: io::Error },
    /// The file is something else.
    #[error(
        "{path}: {found}, expected a capture file: pcapng or pcap, as it is or in gzip or zstd"
    )]
    NotATrace { path: String, found: String },
    /// The file ends in the middle of something.
    #[error(
        "{path}: ends at byte {end_byte} within {what} that starts at byte {at_byte}; the {packets} packets before it are good"
    )]
    Truncated {
        path: String,
        what: &'static str,
        /// Where it starts, counted in the uncompressed file.
        at_byte: u64,
        /// Where the file ends, counted likewise.
        end_byte: u64,
        packets: u64,
    },
    /// The file has too many packets to be kept in memory.
    #[error(
        "{path}: has more than {packets} packets, too many for its length; decompress it first, or take a part of it (editcap)"
    )]
    TooMuch { path: String, packets: u64 },
    /// The file is damaged.
    #[error(
        "{path}: damaged at byte {at_byte}: {found}, expected {expected}; the {packets} packets before it are good"
    )]
    Corrupt {
        path: String,
        /// Where the damaged thing starts, counted in the uncompressed file.
        at_byte: u64,
        found: String,
        expected: String,
        packets: u64,
    },
}

impl TraceError {
    /// Whether the reader of a pipe closed it, which ends a command without a fault.
    pub fn is_reader_gone(&self) -> bool {
        matches!(self, Self::ReaderGone { .. })
    }
}
