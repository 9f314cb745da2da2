//! Opens files that may be compressed: their first bytes show gzip and zstd.

use std::io::{self, BufReader, Cursor, Read};

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
        _ => return Ok((Box::new(whole), first)),
    };
    let first = first_bytes(&mut plain)?;
    Ok((Box::new(Cursor::new(first.clone()).chain(plain)), first))
}

/// Describes the first bytes of a file that is no capture file.
pub(super) fn looks_like(first: &[u8]) -> String {
    match first {
        [] => "is empty".into(),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "is compressed with xz".into(),
        [b'B', b'Z', b'h', ..] => "is compressed with bzip2".into(),
        [0x04, 0x22, 0x4d, 0x18, ..] => "is compressed with lz4".into(),
        [b's', b'n', b'o', b'o', b'p', ..] => "is a snoop file".into(),
        _ => {
            let bytes: Vec<String> = first.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("starts with the bytes {}", bytes.join(" "))
        }
    }
}
