//! Opens files that may be compressed: their first bytes show gzip, zstd and lz4.

use lz4_flex::frame::FrameDecoder;
use std::io::{self, BufRead, BufReader, Cursor, Read};

/// Bytes that are read at once from a compressed file.
const COMPRESSED_BUFFER_BYTES: usize = 256 << 10;
/// Bytes that identify a kind of file.
const MAGIC_BYTES: usize = 8;

/// A source of bytes that may move to another thread.
pub(super) type Source = Box<dyn Read + Send>;

/// The first [`MAGIC_BYTES`] of a file, or all of a shorter one.
fn first_bytes(source: &mut Source) -> io::Result<Vec<u8>> {
    let mut first = Vec::with_capacity(MAGIC_BYTES);
    source.take(MAGIC_BYTES as u64).read_to_end(&mut first)?;
    Ok(first)
}

/// Returns the uncompressed bytes of `source`, and the first of them.
pub(super) fn decompress(mut source: Source) -> io::Result<(Source, Vec<u8>)> {
    let first = first_bytes(&mut source)?;
    let whole = Cursor::new(first.clone()).chain(source);
    let mut plain: Source = match first.as_slice() {
        // A file that was written in pieces has several members; all of them are read.
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(
            BufReader::with_capacity(COMPRESSED_BUFFER_BYTES, whole),
        )),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::stream::read::Decoder::with_buffer(
            BufReader::with_capacity(COMPRESSED_BUFFER_BYTES, whole),
        )?),
        [0x04, 0x22, 0x4d, 0x18, ..] => Box::new(Lz4Frames::new(BufReader::with_capacity(
            COMPRESSED_BUFFER_BYTES,
            whole,
        ))),
        _ => return Ok((Box::new(whole), first)),
    };
    let first = first_bytes(&mut plain)?;
    Ok((Box::new(Cursor::new(first.clone()).chain(plain)), first))
}

/// A source that knows whether it was read to its end.
struct Watched<R> {
    source: R,
    has_ended: bool,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.source.read(buffer)?;
        self.has_ended |= bytes == 0 && !buffer.is_empty();
        Ok(bytes)
    }
}

/// All LZ4 frames of a file. The decoder itself ends behind each, and takes the end of the file for the end of a frame.
struct Lz4Frames<R: Read> {
    decoder: FrameDecoder<Watched<R>>,
    is_complete: bool,
}

impl<R: BufRead> Lz4Frames<R> {
    fn new(source: R) -> Self {
        let has_ended = false;
        Self {
            decoder: FrameDecoder::new(Watched { source, has_ended }),
            is_complete: false,
        }
    }
}

impl<R: BufRead> Read for Lz4Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.is_complete {
            let bytes = self.decoder.read(buffer)?;
            if bytes > 0 || buffer.is_empty() {
                return Ok(bytes);
            }
            let watched = self.decoder.get_mut();
            // Behind the mark of its end a frame reads no more.
            if watched.has_ended {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.is_complete = watched.source.fill_buf()?.is_empty();
        }
        Ok(0)
    }
}

/// Describes the first bytes of a file that is no capture file.
pub(super) fn looks_like(first: &[u8]) -> String {
    match first {
        [] => "is empty".into(),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "is compressed with xz".into(),
        [b'B', b'Z', b'h', ..] => "is compressed with bzip2".into(),
        [b's', b'n', b'o', b'o', b'p', ..] => "is a snoop file".into(),
        _ => {
            let bytes: Vec<String> = first.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("starts with the bytes {}", bytes.join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lz4_flex::frame::FrameEncoder;
    use std::io::Write as _;

    #[test]
    fn every_cut_within_an_lz4_frame_is_an_error() {
        let (mut file, mut content, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for part in [&b"first, first"[..], b"", b"second, second"] {
            let mut encoder = FrameEncoder::new(file);
            // Two blocks.
            for half in part.chunks(7) {
                encoder.write_all(half).expect("memory");
                encoder.flush().expect("memory");
            }
            file = encoder.finish().expect("memory");
            content.extend_from_slice(part);
            ends.push(file.len());
        }
        for length in 4..=file.len() {
            let mut found = Vec::new();
            let source = Box::new(Cursor::new(file[..length].to_vec()));
            let read = decompress(source).and_then(|(mut plain, _)| plain.read_to_end(&mut found));
            assert_eq!(read.is_ok(), ends.contains(&length), "{length}");
            assert!(content.starts_with(&found));
            assert!(length < file.len() || found == content);
        }
    }
}
