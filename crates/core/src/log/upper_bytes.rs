//! A zstd frame for 8-byte numbers whose upper bytes seldom change, made without zstd.
//!
//! Times, counters and rates keep their upper bytes for hundreds of rows. zstd's search finds that
//! byte string by byte string; we know it: every value is its lower bytes (literals) and a copy of the
//! upper bytes of the value before (a match at distance 8). All these matches being alike, their
//! codes need no bits at all (RLE mode of all three code tables, RFC 8878, 3.1.1.3.2.1), and the frame
//! is little more than the lower bytes written one after the other.

use super::zstd_frame::{
    BLOCK_BYTES_MAX, Block, MATCH_BYTES_MIN, add_sequence_count, begin_block, begin_frame,
    end_block, raw_literals,
};

const WIDTH_BYTES: usize = 8;
/// The others must be enough for a match.
const LOWER_BYTES_MAX: usize = WIDTH_BYTES - MATCH_BYTES_MIN;
/// What a change of the upper bytes costs: a value in full, and two blocks.
const CHANGE_BYTES: usize = 36;
/// Of so many values one is held against the one before, to find out how many bytes to write.
const SAMPLE: usize = 5;
/// Most values of a block.
const BLOCK_VALUES: usize = BLOCK_BYTES_MAX / WIDTH_BYTES;
/// Below this the frame is all overhead.
const VALUES_MIN: usize = 64;
/// RLE mode for the codes of literal lengths, offsets and match lengths.
const ALL_RLE: u8 = 0x54;

/// Appends the frame of `values` (8-byte numbers, little-endian) to `out`, when that saves at least a
/// quarter; false, with `out` as it was, otherwise.
pub fn encode(values: &[u8], out: &mut Vec<u8>) -> bool {
    let (values, rest) = values.as_chunks::<WIDTH_BYTES>();
    if values.len() < VALUES_MIN || !rest.is_empty() {
        return false;
    }
    let Some(lower_bytes) = best_lower_bytes(values) else {
        return false;
    };
    let Ok(content_bytes) = u32::try_from(values.len() * WIDTH_BYTES) else {
        return false;
    };
    let frame_at = out.len();
    begin_frame(content_bytes, out);
    let upper = |value: &[u8; WIDTH_BYTES]| u64::from_le_bytes(*value) >> (8 * lower_bytes);
    for run in values.chunk_by(|a, b| upper(a) == upper(b)) {
        add_run(run, lower_bytes, out);
    }
    // An empty block says that it is the last one.
    let block_at = begin_block(out);
    end_block(block_at, Block::Raw, true, out);
    let is_worth_it = (out.len() - frame_at) * 4 <= values.len() * WIDTH_BYTES * 3;
    if !is_worth_it {
        out.truncate(frame_at);
    }
    is_worth_it
}

/// How many bytes of each value to write, when that is worth it by a sample of them.
fn best_lower_bytes(values: &[[u8; WIDTH_BYTES]]) -> Option<usize> {
    // How many values differ from the one before in so many lower bytes.
    let mut changed_bytes = [0u32; WIDTH_BYTES + 1];
    for pair in values.windows(2).step_by(SAMPLE) {
        let difference = u64::from_le_bytes(pair[0]) ^ u64::from_le_bytes(pair[1]);
        changed_bytes[WIDTH_BYTES - difference.leading_zeros() as usize / 8] += 1;
    }
    let (cost_bytes, lower_bytes) = (1..=LOWER_BYTES_MAX)
        .map(|lower| {
            let changes = changed_bytes[lower + 1..].iter().sum::<u32>() as usize * SAMPLE;
            (values.len() * lower + changes * CHANGE_BYTES, lower)
        })
        .min()?;
    (cost_bytes < values.len() * WIDTH_BYTES * 3 / 4).then_some(lower_bytes)
}

/// Adds values that share their upper bytes: the first in full, of the others the lower bytes.
fn add_run(run: &[[u8; WIDTH_BYTES]], lower_bytes: usize, out: &mut Vec<u8>) {
    let [first, rest @ ..] = run else { return };
    let [second, rest @ ..] = rest else {
        let block_at = begin_block(out);
        out.extend_from_slice(first);
        end_block(block_at, Block::Raw, false, out);
        return;
    };
    // One match whose distance is spelled out; the matches after it repeat that distance.
    let block_at = begin_block(out);
    let literal_bytes = WIDTH_BYTES + lower_bytes;
    out.push((literal_bytes << 3) as u8);
    out.extend_from_slice(first);
    out.extend_from_slice(&second[..lower_bytes]);
    // Distance 8 is offset value 11: code 3 and the three bits 011 behind the bit that ends the stream.
    out.extend_from_slice(&[
        1,
        ALL_RLE,
        literal_bytes as u8,
        3,
        match_code(lower_bytes),
        0b1011,
    ]);
    end_block(block_at, Block::Compressed, false, out);
    for block in rest.chunks(BLOCK_VALUES) {
        add_repeats(block, lower_bytes, out);
    }
}

/// Adds values as lower bytes and a match at the distance of the match before.
fn add_repeats(values: &[[u8; WIDTH_BYTES]], lower_bytes: usize, out: &mut Vec<u8>) {
    let block_at = begin_block(out);
    let literal_bytes = values.len() * lower_bytes;
    out.extend_from_slice(&raw_literals(literal_bytes));
    // Whole values are written, each over the upper bytes of the one before.
    let start = out.len();
    out.resize(start + literal_bytes + WIDTH_BYTES, 0);
    let mut slots = &mut out[start..];
    for value in values {
        slots[..WIDTH_BYTES].copy_from_slice(value);
        slots = &mut slots[lower_bytes..];
    }
    out.truncate(start + literal_bytes);
    add_sequence_count(values.len(), out);
    // Offset code 0 is the last distance again; the bit stream holds nothing but its end.
    out.extend_from_slice(&[ALL_RLE, lower_bytes as u8, 0, match_code(lower_bytes), 1]);
    end_block(block_at, Block::Compressed, false, out);
}

/// The code of a match of the upper bytes.
fn match_code(lower_bytes: usize) -> u8 {
    (WIDTH_BYTES - lower_bytes - MATCH_BYTES_MIN) as u8
}

#[cfg(test)]
mod tests {
    use super::super::zstd_frame;
    use super::encode;
    use proptest::prelude::*;

    fn bytes_of(values: &[u64]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    }

    fn assert_round_trip(values: &[u64]) -> Option<usize> {
        let raw = bytes_of(values);
        zstd_frame::assert_round_trip(&raw, |out| encode(&raw, out))
    }

    #[test]
    fn rising_numbers_take_their_lower_bytes() {
        let times: Vec<u64> = (0..8192)
            .map(|row| 1_700_000_000_000_000_000 + row * 997)
            .collect();
        let bytes = assert_round_trip(&times).unwrap();
        assert!(bytes < 8192 * 3 + 200, "{bytes}");
        let counts: Vec<u64> = (0..100_000).collect();
        assert!(assert_round_trip(&counts).unwrap() < 100_000 * 2 + 500);
    }

    #[test]
    fn numbers_without_common_bytes_are_left_to_others() {
        let noise: Vec<u64> = (0..1000u64)
            .map(|row| row.wrapping_mul(0x9E37_79B9_7F4A_7C15))
            .collect();
        assert_eq!(assert_round_trip(&noise), None);
        assert_eq!(assert_round_trip(&[1, 2, 3]), None);
    }

    proptest! {
        #[test]
        fn any_steps_survive(
            start in any::<u64>(),
            steps in prop::collection::vec((0..64u32, any::<u64>()), 60..2000),
            rare in 1..60u32,
        ) {
            let mut value = start;
            let values: Vec<u64> = steps
                .iter()
                .map(|(when, step)| {
                    // Mostly small steps, some of any size.
                    let bits = if *when < 64 / rare { step % 64 } else { 40 };
                    value = value.wrapping_add(step >> bits.max(step % 48));
                    value
                })
                .collect();
            assert_round_trip(&values);
        }

        #[test]
        fn every_number_of_lower_bytes_survives(lower in 1..=5u32, values in prop::collection::vec(any::<u64>(), 64..400), upper in any::<u64>()) {
            let mask = (1u64 << (8 * lower)) - 1;
            let values: Vec<u64> = values.iter().map(|value| upper & !mask | value & mask).collect();
            prop_assert!(assert_round_trip(&values).is_some());
        }
    }
}
