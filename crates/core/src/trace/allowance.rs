//! Memory limit for callers that keep the whole content of a file.

use std::path::Path;

/// A file of any length may take so much.
const ANY_FILE_BYTES: u64 = 96 << 20;
/// Captures compress to a tenth; what gives more than this from a byte is made to fill memory.
const BYTES_PER_FILE_BYTE: u64 = 32;

/// Memory that the content of a file may take, compressed or not, bytes.
pub fn allowance_bytes(path: &Path) -> u64 {
    let file_bytes = std::fs::metadata(path).map_or(0, |file| file.len());
    ANY_FILE_BYTES.max(file_bytes.saturating_mul(BYTES_PER_FILE_BYTE))
}
