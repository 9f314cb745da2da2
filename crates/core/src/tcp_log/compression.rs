//! Compression of the rows of a log.

use lz4_flex::frame::{BlockSize, FrameEncoder, FrameInfo};
use serde::Deserialize;
use std::io::{self, Cursor, Write};
use zstd::bulk::Compressor;
use zstd::zstd_safe::compress_bound;

/// Higher levels take more time than they save bytes; see `docs/measurements/tcp.md`.
const ZSTD_LEVEL: i32 = 1;
/// The length prefix of a buffer that is not compressed.
const NOT_COMPRESSED: i64 = -1;
/// Bytes of the length prefix of a buffer.
pub const PREFIX_BYTES: usize = 8;

/// The compression of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// LZ4 for batches of 25,000 records a second and more, zstd for others.
    #[default]
    Auto,
    /// LZ4 for all batches: the least CPU time.
    Lz4,
    /// zstd level 1 for all batches: about half the bytes of LZ4.
    Zstd,
    /// No compression.
    None,
}

impl Compression {
    /// Records a second from which CPU time matters more than bytes: zstd would take more than about 1 % of a
    /// CPU, which the traffic may need.
    const LZ4_FROM_PER_S: u64 = 25_000;

    /// The codec for `rows` records within `span_ns` nanoseconds.
    pub fn codec(self, rows: usize, span_ns: u64) -> Codec {
        let is_fast = (rows as u64).saturating_mul(1_000_000_000)
            >= span_ns.saturating_mul(Self::LZ4_FROM_PER_S);
        match self {
            Self::Auto if is_fast => Codec::Lz4,
            Self::Auto | Self::Zstd => Codec::Zstd,
            Self::Lz4 => Codec::Lz4,
            Self::None => Codec::None,
        }
    }
}

/// The compression of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// LZ4 frames.
    Lz4,
    /// zstd frames.
    Zstd,
    /// The values as they are, without a length.
    None,
}

/// Compresses buffers for bodies of Arrow messages.
pub struct BufferCompressor {
    lz4: FrameEncoder<Vec<u8>>,
    zstd: Compressor<'static>,
}

impl BufferCompressor {
    /// Allocates the compressors.
    ///
    /// # Errors
    /// When zstd has no memory.
    pub fn new() -> io::Result<Self> {
        let frame = FrameInfo::new().block_size(BlockSize::Max64KB);
        Ok(Self {
            lz4: FrameEncoder::with_frame_info(frame, Vec::new()),
            zstd: Compressor::new(ZSTD_LEVEL)?,
        })
    }

    /// Appends a buffer to a body: the values, or with a codec their length and a frame, or -1 and the values when the
    /// frame is not shorter.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn add(&mut self, raw: &[u8], codec: Codec, body: &mut Vec<u8>) -> io::Result<()> {
        let begin = body.len();
        if codec == Codec::None {
            body.extend_from_slice(raw);
            return Ok(());
        }
        body.extend_from_slice(&(raw.len() as i64).to_le_bytes());
        if codec == Codec::Lz4 {
            self.add_lz4(raw, body)?;
        } else {
            body.reserve(compress_bound(raw.len()));
            let mut end = Cursor::new(&mut *body);
            end.set_position((begin + PREFIX_BYTES) as u64);
            self.zstd.compress_to_buffer(raw, &mut end)?;
        }
        if body.len() - begin >= PREFIX_BYTES + raw.len() {
            body.truncate(begin);
            body.extend_from_slice(&NOT_COMPRESSED.to_le_bytes());
            body.extend_from_slice(raw);
        }
        Ok(())
    }

    fn add_lz4(&mut self, raw: &[u8], body: &mut Vec<u8>) -> io::Result<()> {
        // The encoder keeps its tables between frames, and the body is its output meanwhile.
        std::mem::swap(self.lz4.get_mut(), body);
        let result = self
            .lz4
            .write_all(raw)
            .and_then(|()| Ok(self.lz4.try_finish()?));
        std::mem::swap(self.lz4.get_mut(), body);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::{Codec, Compression};

    #[test]
    fn fast_records_are_compressed_by_lz4_and_slow_ones_by_zstd() {
        let second_ns = 1_000_000_000;
        assert_eq!(Compression::Auto.codec(25_000, second_ns), Codec::Lz4);
        assert_eq!(Compression::Auto.codec(24_999, second_ns), Codec::Zstd);
        assert_eq!(Compression::Zstd.codec(25_000, second_ns), Codec::Zstd);
        assert_eq!(Compression::Lz4.codec(1, second_ns), Codec::Lz4);
        assert_eq!(Compression::None.codec(1, second_ns), Codec::None);
    }
}
