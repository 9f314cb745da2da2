//! Memory limit for callers that keep the whole content of a file.

use std::path::Path;

/// Memory that a file of any length may take, bytes.
const ANY_FILE_BYTES: u64 = 96 << 20;
/// Captures compress to a tenth; a file that expands more than this per byte is made to fill memory.
const BYTES_PER_FILE_BYTE: u64 = 32;

/// Memory that the content of a file may take, compressed or not, bytes.
pub fn allowance_bytes(path: &Path) -> u64 {
    let file_bytes = std::fs::metadata(path).map_or(0, |file| file.len());
    ANY_FILE_BYTES.max(file_bytes.saturating_mul(BYTES_PER_FILE_BYTE))
}
