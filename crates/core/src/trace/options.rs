//! Options of a capture file.

use super::format::{Compression, Format};
use crate::output_file::series::Rotation;
use std::path::Path;

/// Options of a writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterOptions {
    /// pcapng or classic pcap.
    pub format: Format,
    /// Compression of the file.
    pub compression: Compression,
    /// Maximum bytes written of a packet; 0 means all, up to 262,144.
    pub snaplen_bytes: u32,
    /// When a new file begins.
    pub rotation: Rotation,
}

impl WriterOptions {
    /// The format and the compression that a file's name stands for; else the default.
    pub fn of_name(path: &Path) -> Self {
        Self {
            format: Format::of_name(path),
            compression: Compression::of_name(path),
            ..Self::default()
        }
    }
}
