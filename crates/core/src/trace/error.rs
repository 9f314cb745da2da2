//! What can be wrong with a capture file, each in one line: the thing, the value, what was expected,
//! the remedy.

use crate::output_file::OutputError;
use std::io;

/// An error of the writer or the reader of capture files.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A file cannot be made.
    #[error(transparent)]
    Create(#[from] OutputError),
    /// The file took less than it was given. The writer keeps what waits, and can go on.
    #[error(
        "{path}: takes no more after {written_bytes} bytes: {source}; what is in it opens, packets from now on are counted as unwritten until there is room"
    )]
    Write {
        /// The file.
        path: String,
        /// Bytes that are in it.
        written_bytes: u64,
        /// Why it takes no more.
        source: io::Error,
    },
    /// Who read the pipe has gone: no fault, but nothing more can be written.
    #[error("{path}: its reader closed the pipe after {written_bytes} bytes")]
    ReaderGone {
        /// What was written to.
        path: String,
        /// Bytes that the reader took.
        written_bytes: u64,
    },
    /// The oldest file of a rotation could not be removed.
    #[error("{path}: cannot be removed to stay within the number of files: {source}; remove it")]
    Remove {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The compressor failed.
    #[error("compressor: {0}; is there memory left?")]
    Compress(io::Error),
    /// What was asked of the writer cannot be.
    #[error("{option} {found}: {expected}")]
    Option {
        /// Which option.
        option: &'static str,
        /// Its value.
        found: String,
        /// What would do, and how to get there.
        expected: String,
    },
    /// A packet names an interface that the writer was not told of.
    #[error("packet of interface {interface}: the writer has {known} interfaces, numbered from 0")]
    UnknownInterface {
        /// Number in the packet.
        interface: u32,
        /// Number of interfaces.
        known: usize,
    },
    /// The file cannot be opened or read.
    #[error("{path}: cannot be read: {source}; check that it exists and that you may read it")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The file is something else.
    #[error(
        "{path}: {found}, expected a capture file: pcapng or pcap, as it is or in gzip or zstd"
    )]
    NotATrace {
        /// The file.
        path: String,
        /// What it starts with.
        found: String,
    },
    /// The file ends in the middle of something.
    #[error(
        "{path}: ends at byte {end_byte} within {what} that starts at byte {at_byte}; the {packets} packets before it are good"
    )]
    Truncated {
        /// The file.
        path: String,
        /// What is cut.
        what: &'static str,
        /// Where it starts, counted in the uncompressed file.
        at_byte: u64,
        /// Where the file ends, counted likewise.
        end_byte: u64,
        /// Packets that were delivered before.
        packets: u64,
    },
    /// The file holds more than it may, for those who keep its content in memory.
    #[error(
        "{path}: has more than {packets} packets, too many for its length; decompress it first, or take a part of it (editcap)"
    )]
    TooMuch {
        /// The file.
        path: String,
        /// How many packets it may have.
        packets: u64,
    },
    /// The file is damaged.
    #[error(
        "{path}: damaged at byte {at_byte}: {found}, expected {expected}; the {packets} packets before it are good"
    )]
    Corrupt {
        /// The file.
        path: String,
        /// Where the damaged thing starts, counted in the uncompressed file.
        at_byte: u64,
        /// What stands there.
        found: String,
        /// What should.
        expected: String,
        /// Packets that were delivered before.
        packets: u64,
    },
}

impl TraceError {
    /// Whether the reader of a pipe has gone, which ends a command without a fault.
    pub fn is_reader_gone(&self) -> bool {
        matches!(self, Self::ReaderGone { .. })
    }
}
