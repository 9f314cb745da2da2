//! Errors of logs.

use std::io;

/// Maximum length of a text from a damaged file in a message.
const FOUND_MAX: usize = 160;

/// Text from a file for a message: one line, without control characters, and not too long.
pub(super) fn plain(text: &str) -> String {
    let mut letters = text.chars();
    let mut escaped = String::new();
    for letter in letters.by_ref().take(FOUND_MAX) {
        if letter.is_control() {
            escaped.extend(letter.escape_default());
        } else {
            escaped.push(letter);
        }
    }
    if letters.next().is_some() {
        escaped.push_str("...");
    }
    escaped
}

/// An error of the log writer or reader.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum LogError {
    /// The header is invalid.
    #[error("log header: {key} is {found}, expected {expected}")]
    Header {
        key: &'static str,
        found: String,
        expected: &'static str,
    },
    /// The file took only a part of the bytes. The writer keeps the rest and can continue.
    #[error(
        "log: writing failed after {written_bytes} bytes: {source}; make room, the log goes on where it stopped"
    )]
    Write {
        /// Bytes written to the file.
        written_bytes: u64,
        source: io::Error,
    },
    /// A batch could not be encoded.
    #[error("log: a batch of {rows} rows could not be encoded: {reason}; please report this")]
    Encode { rows: usize, reason: String },
    /// The file cannot be opened or read.
    #[error("{path}: cannot be read: {source}; check that it exists and that you may read it")]
    Read { path: String, source: io::Error },
    /// The file is something else.
    #[error(
        "{path}: {found}, expected a Parshall TCP state log; make one with: parshall tcp -o FILE"
    )]
    NotALog { path: String, found: String },
    /// The file has not even a head, as what is left of a new file after a loss of power.
    #[error(
        "{path}: {found}, expected a Parshall TCP state log; make one with: parshall tcp -o FILE"
    )]
    Headless { path: String, found: &'static str },
    /// The file is no Arrow stream.
    #[error("{path}: not an Arrow stream; make a path log with: parshall path -o FILE")]
    NotAPathLog { path: String },
    /// A directory is not that of one log.
    #[error("{path}: {found}, expected the files of one; {remedy}")]
    Series {
        path: String,
        found: String,
        remedy: String,
        source: io::Error,
    },
    /// The file was written by a newer Parshall.
    #[error(
        "{path}: log format version {found}, this Parshall reads up to {supported}; upgrade with: pip install -U parshall"
    )]
    NewerVersion {
        path: String,
        found: String,
        /// The newest version that this code reads.
        supported: &'static str,
    },
    /// The file is damaged, and continues after the damage.
    #[error(
        "{path}: damaged at byte {at_byte}: {reason}, expected an intact message; what is before it can be saved with: head -c {at_byte}"
    )]
    Corrupt {
        path: String,
        at_byte: u64,
        reason: String,
    },
}
