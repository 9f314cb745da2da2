//! The parts of a zstd frame (RFC 8878, 3.1.1) that our own coders have in common.
//!
//! A frame is begun with the length of its content, blocks follow, and the last of them says that it is.

const MAGIC: [u8; 4] = 0xFD2F_B528u32.to_le_bytes();
/// Single segment, content size in 4 bytes.
const FRAME_DESCRIPTOR: u8 = 0xA0;
/// The longest content of a block.
pub const BLOCK_BYTES_MAX: usize = 128 << 10;
/// The shortest match.
pub const MATCH_BYTES_MIN: usize = 3;

/// What is in a block.
#[derive(Clone, Copy)]
pub enum Block {
    /// The content as it is.
    Raw = 0,
    /// Literals and sequences.
    Compressed = 2,
}

/// Begins a frame of so many bytes of content.
pub fn begin_frame(content_bytes: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&MAGIC);
    out.push(FRAME_DESCRIPTOR);
    out.extend_from_slice(&content_bytes.to_le_bytes());
}

/// Begins a block; returns where it stands, for [`end_block`].
pub fn begin_block(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&[0; 3]);
    out.len() - 3
}

/// Ends the block that was begun at a place with everything behind it.
pub fn end_block(begun_at: usize, block: Block, is_last: bool, out: &mut [u8]) {
    let bytes = (out.len() - begun_at - 3) as u32;
    let header = bytes << 3 | (block as u32) << 1 | u32::from(is_last);
    out[begun_at..begun_at + 3].copy_from_slice(&header.to_le_bytes()[..3]);
}

/// The header of literals that are not compressed, with their number in 20 bits.
pub fn raw_literals(bytes: usize) -> [u8; 3] {
    let [header @ .., _] = ((bytes as u32) << 4 | 0b1100).to_le_bytes();
    header
}

/// Appends how many sequences a block has.
pub fn add_sequence_count(sequences: usize, out: &mut Vec<u8>) {
    match sequences as u32 {
        count @ ..0x80 => out.push(count as u8),
        count @ ..0x7F00 => out.extend_from_slice(&[(count >> 8) as u8 + 0x80, count as u8]),
        count => {
            out.push(0xFF);
            out.extend_from_slice(&((count - 0x7F00) as u16).to_le_bytes());
        }
    }
}

/// Holds what a coder appends against zstd's decoder; returns its length, None when it declined.
#[cfg(test)]
pub fn assert_round_trip(raw: &[u8], encode: impl FnOnce(&mut Vec<u8>) -> bool) -> Option<usize> {
    let mut frame = vec![7];
    let coded = encode(&mut frame);
    assert_eq!(frame[0], 7);
    if !coded {
        assert_eq!(frame.len(), 1);
        return None;
    }
    assert_eq!(zstd::bulk::decompress(&frame[1..], raw.len()).unwrap(), raw);
    assert_eq!(zstd::decode_all(&frame[1..]).unwrap(), raw);
    Some(frame.len() - 1)
}
