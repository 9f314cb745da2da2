//! The two formats of capture files.

use super::error::TraceError;
use lz4_flex::frame::{BlockSize, FrameEncoder, FrameInfo};
use serde::Deserialize;
use std::io::Write as _;
use std::path::Path;

/// The format of a capture file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// pcapng: interfaces, directions, comments, the environment and the ledger.
    #[default]
    Pcapng,
    /// Classic pcap with nanoseconds: times, lengths and bytes only.
    Pcap,
}

/// The compression of a capture file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// gzip (RFC 1952), one member per flush.
    Gzip,
    /// Zstandard (RFC 8878), one block per flush.
    Zstd,
    /// LZ4 frames, one block or more per flush.
    Lz4,
}

impl Format {
    /// The format for a file name: classic for `.pcap` and `.cap` (also before `.gz`, `.zst` and `.lz4`), else
    /// pcapng.
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
    /// The compression for a file name, by its suffix: `.gz`, `.zst`, `.lz4`, else none.
    pub fn of_name(path: &Path) -> Self {
        match path.extension() {
            Some(extension) if extension == "gz" => Self::Gzip,
            Some(extension) if extension == "zst" => Self::Zstd,
            Some(extension) if extension == "lz4" => Self::Lz4,
            _ => Self::None,
        }
    }

    /// The suffix of file names; empty without compression.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Gzip => ".gz",
            Self::Zstd => ".zst",
            Self::Lz4 => ".lz4",
        }
    }
}

/// Compresses pieces. A piece is everything written since the last flush.
///
/// The file still opens if the process or the disk fails. Each piece of gzip is a member. Pieces of zstd and
/// LZ4 are blocks of one frame, because Wireshark 4.0 reads only the first frame. [`Compressor::ending`] follows the
/// last piece; the next piece overwrites it.
pub(super) struct Compressor {
    kind: Kind,
}

enum Kind {
    Gzip,
    Zstd(zstd::stream::raw::Encoder<'static>),
    Lz4(FrameEncoder<Vec<u8>>),
}

/// Level of zstd: 500 MB/s per core. Level 3 takes 1.6 times as long for a few percent.
const ZSTD_LEVEL: i32 = 1;
/// An empty block, marked as the frame's last (RFC 8878, 3.1.1.2). The frame has no checksum.
const ZSTD_LAST_BLOCK: [u8; 3] = [1, 0, 0];
/// The end mark of a frame without a checksum of its content.
const LZ4_END_MARK: [u8; 4] = [0; 4];

fn lz4_encoder() -> Kind {
    let frame = FrameInfo::new().block_size(BlockSize::Max256KB);
    Kind::Lz4(FrameEncoder::with_frame_info(frame, Vec::new()))
}

impl Compressor {
    /// None for no compression.
    pub(super) fn new(compression: Compression) -> Result<Option<Self>, TraceError> {
        let kind = match compression {
            Compression::None => return Ok(None),
            Compression::Gzip => Kind::Gzip,
            Compression::Zstd => Kind::Zstd(
                zstd::stream::raw::Encoder::new(ZSTD_LEVEL).map_err(TraceError::Compress)?,
            ),
            Compression::Lz4 => lz4_encoder(),
        };
        Ok(Some(Self { kind }))
    }

    /// The bytes that must follow the last piece of a file.
    pub(super) fn ending(&self) -> &'static [u8] {
        match self.kind {
            Kind::Gzip => &[],
            Kind::Zstd(_) => &ZSTD_LAST_BLOCK,
            Kind::Lz4(_) => &LZ4_END_MARK,
        }
    }

    /// Forgets the pieces so far: the next piece does not refer to them.
    ///
    /// # Errors
    /// [`TraceError::Compress`].
    pub(super) fn restart(&mut self) -> Result<(), TraceError> {
        use zstd::stream::raw::Operation as _;
        match &mut self.kind {
            Kind::Gzip => Ok(()),
            Kind::Zstd(encoder) => encoder.reinit().map_err(TraceError::Compress),
            Kind::Lz4(_) => {
                self.kind = lz4_encoder();
                Ok(())
            }
        }
    }

    /// Compresses `bytes` into `out`, which is cleared first.
    pub(super) fn compress(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), TraceError> {
        out.clear();
        let compressed = match &mut self.kind {
            Kind::Gzip => compress_member(bytes, out),
            Kind::Zstd(encoder) => compress_blocks(encoder, bytes, out),
            Kind::Lz4(encoder) => {
                std::mem::swap(encoder.get_mut(), out);
                let done = encoder.write_all(bytes).and_then(|()| encoder.flush());
                std::mem::swap(encoder.get_mut(), out);
                done
            }
        };
        compressed.map_err(TraceError::Compress)
    }
}

fn compress_member(bytes: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
    let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()?;
    Ok(())
}

fn compress_blocks(
    encoder: &mut zstd::stream::raw::Encoder<'_>,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> std::io::Result<()> {
    use zstd::stream::raw::{InBuffer, Operation as _, OutBuffer};
    let mut input = InBuffer::around(bytes);
    loop {
        // Keeps the content of `out`, and always makes room for more.
        out.reserve(zstd::zstd_safe::compress_bound(bytes.len() - input.pos()));
        let done_bytes = out.len();
        let mut output = OutBuffer::around_pos(out, done_bytes);
        if input.pos() < bytes.len() {
            encoder.run(&mut input, &mut output)?;
        } else if encoder.flush(&mut output)? == 0 {
            return Ok(());
        }
    }
}
