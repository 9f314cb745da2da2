//! The two formats of capture files.

use super::error::TraceError;
use std::path::Path;

/// How packets are written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// pcapng: interfaces, directions, comments, the environment and the ledger.
    #[default]
    Pcapng,
    /// Classic pcap with nanoseconds: times, lengths and bytes only.
    Pcap,
}

/// How a file is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip (RFC 1952), one member a flush.
    Gzip,
    /// Zstandard (RFC 8878), one frame a flush.
    Zstd,
}

impl Format {
    /// The format that a file name asks for: classic for `.pcap` and `.cap` (also before `.gz` and
    /// `.zst`), else pcapng.
    pub fn of_name(path: &Path) -> Self {
        let name = path.to_string_lossy();
        let name = name.strip_suffix(Compression::of_name(path).suffix());
        match name.map(|name| Path::new(name).extension()) {
            Some(Some(extension)) if extension == "pcap" || extension == "cap" => Self::Pcap,
            _ => Self::Pcapng,
        }
    }
}

impl Compression {
    /// The compression that a file name asks for, by its end: `.gz`, `.zst`, else none.
    pub fn of_name(path: &Path) -> Self {
        match path.extension() {
            Some(extension) if extension == "gz" => Self::Gzip,
            Some(extension) if extension == "zst" => Self::Zstd,
            _ => Self::None,
        }
    }

    /// What a file name with this compression ends in; empty for none.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Gzip => ".gz",
            Self::Zstd => ".zst",
        }
    }
}

/// Makes one self-contained piece (a frame, a member) of what was written since the last flush.
///
/// Pieces are compressed whole and not as a stream: what is on the disk then always ends at a piece,
/// so it opens whatever happened to the process or the disk.
pub(super) struct Compressor {
    kind: Kind,
}

enum Kind {
    Gzip,
    Zstd(zstd::bulk::Compressor<'static>),
}

/// Level of zstd: 500 MB/s and core; level 3 takes 1.6 times as long for some percent.
const ZSTD_LEVEL: i32 = 1;

impl Compressor {
    /// None for no compression.
    pub(super) fn new(compression: Compression) -> Result<Option<Self>, TraceError> {
        let kind = match compression {
            Compression::None => return Ok(None),
            Compression::Gzip => Kind::Gzip,
            Compression::Zstd => {
                Kind::Zstd(zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(TraceError::Compress)?)
            }
        };
        Ok(Some(Self { kind }))
    }

    /// Compresses `bytes` into `out`, which is cleared first.
    pub(super) fn compress(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), TraceError> {
        use std::io::Write as _;
        out.clear();
        match &mut self.kind {
            Kind::Gzip => {
                let mut encoder =
                    flate2::write::GzEncoder::new(&mut *out, flate2::Compression::fast());
                encoder.write_all(bytes).map_err(TraceError::Compress)?;
                encoder.finish().map_err(TraceError::Compress)?;
            }
            Kind::Zstd(compressor) => {
                out.reserve(zstd::zstd_safe::compress_bound(bytes.len()));
                compressor
                    .compress_to_buffer(bytes, out)
                    .map_err(TraceError::Compress)?;
            }
        }
        Ok(())
    }
}
