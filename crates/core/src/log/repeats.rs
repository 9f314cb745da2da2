//! A zstd frame for values that mostly repeat the one before, made without zstd.
//!
//! Of the state of a connection most stays from packet to packet, and what differs between connections
//! changes with the flow that a row belongs to. zstd's search finds such runs byte by byte; we know
//! where they end from one comparison of neighbours. A run is its value (literals) and a match at the
//! distance of one value. Lengths are coded with the tables that every decoder has, so that no
//! statistics are made; the distance, always the same, has a table of one code.

use super::fse::{BitWriter, LITERAL_LENGTHS, MATCH_LENGTHS};

const MAGIC: [u8; 4] = 0xFD2F_B528u32.to_le_bytes();
/// Single segment, content size in 4 bytes.
const FRAME_DESCRIPTOR: u8 = 0xA0;
/// The longest content of a block.
const BLOCK_BYTES: usize = 128 << 10;
/// The shortest match of zstd.
const MATCH_BYTES_MIN: usize = 3;
/// Predefined tables for the two lengths, one code for the distance.
const MODES: u8 = 0x10;
const BLOCK_RAW: u32 = 0;
const BLOCK_COMPRESSED: u32 = 2;
/// About what a run costs beside its value, in quarters of a byte.
const RUN_QUARTER_BYTES: usize = 6;

/// A run: bytes of literals, and bytes of the match behind them.
struct Sequence {
    literal_bytes: u32,
    match_bytes: u32,
}

/// Makes frames; keeps its buffers between them.
#[derive(Default)]
pub struct RepeatCoder {
    /// Of each value 1 when it differs from the one before, with zeros behind for a whole word.
    changes: Vec<u8>,
    sequences: Vec<Sequence>,
}

impl RepeatCoder {
    /// Appends the frame of `values` (each `width_bytes` long: 1, 2, 4 or 8) to `out`, when that
    /// saves an eighth; false, with `out` as it was, otherwise.
    pub fn encode(&mut self, values: &[u8], width_bytes: usize, out: &mut Vec<u8>) -> bool {
        match width_bytes {
            1 => self.encode_as::<1>(values, out),
            2 => self.encode_as::<2>(values, out),
            4 => self.encode_as::<4>(values, out),
            8 => self.encode_as::<8>(values, out),
            _ => false,
        }
    }

    fn encode_as<const WIDTH: usize>(&mut self, values: &[u8], out: &mut Vec<u8>) -> bool {
        let (all, rest) = values.as_chunks::<WIDTH>();
        let Ok(content_bytes) = u32::try_from(values.len()) else {
            return false;
        };
        if !rest.is_empty() || !self.find_changes(all) {
            return false;
        }
        let frame_at = out.len();
        out.extend_from_slice(&MAGIC);
        out.push(FRAME_DESCRIPTOR);
        out.extend_from_slice(&content_bytes.to_le_bytes());
        for start in (0..all.len()).step_by(BLOCK_BYTES / WIDTH) {
            let end = all.len().min(start + BLOCK_BYTES / WIDTH);
            self.add_block(all, start, end, out);
        }
        // An empty raw block says that it is the last one.
        out.extend_from_slice(&(BLOCK_RAW << 1 | 1).to_le_bytes()[..3]);
        if (out.len() - frame_at) * 8 > values.len() * 7 {
            out.truncate(frame_at);
            return false;
        }
        true
    }

    /// Notes where values change; whether that is seldom enough.
    fn find_changes<const WIDTH: usize>(&mut self, values: &[[u8; WIDTH]]) -> bool {
        self.changes.clear();
        self.changes.resize(values.len().next_multiple_of(8), 0);
        let mut count = 0;
        let pairs = values.iter().zip(&values[values.len().min(1)..]);
        for (change, (before, value)) in self.changes[1.min(values.len())..].iter_mut().zip(pairs) {
            *change = u8::from(before != value);
        }
        for bytes in self.changes.as_chunks::<8>().0 {
            count += u64::from_le_bytes(*bytes).count_ones() as usize;
        }
        4 * count * WIDTH + RUN_QUARTER_BYTES * count < values.len() * WIDTH * 7 / 2
    }

    /// Adds the values from `start` to `end` as a block that stands alone.
    fn add_block<const WIDTH: usize>(
        &mut self,
        values: &[[u8; WIDTH]],
        start: usize,
        end: usize,
        out: &mut Vec<u8>,
    ) {
        let header_at = out.len();
        // The headers of the block and of its literals, both of 3 bytes.
        out.extend_from_slice(&[0; 6]);
        self.add_literals(values, start, end, out);
        let literal_bytes = (out.len() - header_at - 6) as u32;
        // Raw literals, their number in 20 bits.
        let literals_header = (literal_bytes << 4 | 0b1100).to_le_bytes();
        out[header_at + 3..header_at + 6].copy_from_slice(&literals_header[..3]);
        add_sequences(&self.sequences, WIDTH as u32, out);
        let raw = values[start..end].as_flattened();
        let mut kind = BLOCK_COMPRESSED;
        if out.len() - header_at - 3 >= raw.len() {
            // Decoders refuse a compressed block that is larger than what it stands for may be.
            kind = BLOCK_RAW;
            out.truncate(header_at + 3);
            out.extend_from_slice(raw);
        }
        let block_bytes = (out.len() - header_at - 3) as u32;
        let header = (block_bytes << 3 | kind << 1).to_le_bytes();
        out[header_at..header_at + 3].copy_from_slice(&header[..3]);
    }

    /// Adds the value of each run, and notes the runs.
    fn add_literals<const WIDTH: usize>(
        &mut self,
        values: &[[u8; WIDTH]],
        start: usize,
        end: usize,
        out: &mut Vec<u8>,
    ) {
        self.sequences.clear();
        let mut literal_bytes = 0u32;
        let mut run_start = start;
        let mut end_run = |run_end: usize, out: &mut Vec<u8>| {
            let match_bytes = (run_end - run_start - 1) * WIDTH;
            if match_bytes >= MATCH_BYTES_MIN {
                out.extend_from_slice(&values[run_start]);
                self.sequences.push(Sequence {
                    literal_bytes: literal_bytes + WIDTH as u32,
                    match_bytes: match_bytes as u32,
                });
                literal_bytes = 0;
            } else {
                out.extend_from_slice(values[run_start..run_end].as_flattened());
                literal_bytes += (match_bytes + WIDTH) as u32;
            }
            run_start = run_end;
        };
        let first_word = start / 8;
        for (word_index, bytes) in self.changes[..end.next_multiple_of(8)].as_chunks::<8>().0[first_word..].iter().enumerate() {
            let mut word = u64::from_le_bytes(*bytes);
            while word != 0 {
                let row = (first_word + word_index) * 8 + word.trailing_zeros() as usize / 8;
                word &= word - 1;
                if row > start && row < end {
                    end_run(row, out);
                }
            }
        }
        end_run(end, out);
    }
}

fn add_sequences(sequences: &[Sequence], width_bytes: u32, out: &mut Vec<u8>) {
    match sequences.len() as u32 {
        count @ ..0x80 => out.push(count as u8),
        count @ ..0x7F00 => out.extend_from_slice(&[(count >> 8) as u8 + 0x80, count as u8]),
        count => {
            out.push(0xFF);
            out.extend_from_slice(&((count - 0x7F00) as u16).to_le_bytes());
        }
    }
    let Some((last, before)) = sequences.split_last() else {
        return;
    };
    // A distance is coded plus 3: the code is the place of the highest bit, the others follow.
    let distance_code = (width_bytes + 3).ilog2();
    let distance = width_bytes + 3 - (1 << distance_code);
    out.extend_from_slice(&[MODES, distance_code as u8]);
    // The decoder reads from the end, so the last sequence comes first.
    let mut bits = BitWriter::new(out);
    let mut literal_state = LITERAL_LENGTHS.start(last.literal_bytes);
    let mut match_state = MATCH_LENGTHS.start(last.match_bytes);
    LITERAL_LENGTHS.extra(last.literal_bytes, &mut bits);
    MATCH_LENGTHS.extra(last.match_bytes, &mut bits);
    bits.add(distance, distance_code);
    bits.flush();
    for sequence in before.iter().rev() {
        match_state = MATCH_LENGTHS.step(match_state, sequence.match_bytes, &mut bits);
        literal_state = LITERAL_LENGTHS.step(literal_state, sequence.literal_bytes, &mut bits);
        LITERAL_LENGTHS.extra(sequence.literal_bytes, &mut bits);
        MATCH_LENGTHS.extra(sequence.match_bytes, &mut bits);
        bits.add(distance, distance_code);
        bits.flush();
    }
    MATCH_LENGTHS.finish(match_state, &mut bits);
    LITERAL_LENGTHS.finish(literal_state, &mut bits);
    bits.flush();
    bits.finish();
}

#[cfg(test)]
mod tests {
    use super::RepeatCoder;
    use proptest::prelude::*;

    fn assert_round_trip(raw: &[u8], width_bytes: usize) -> Option<usize> {
        let mut frame = vec![7];
        let coded = RepeatCoder::default().encode(raw, width_bytes, &mut frame);
        assert_eq!(frame[0], 7);
        if !coded {
            assert_eq!(frame.len(), 1);
            return None;
        }
        assert_eq!(zstd::bulk::decompress(&frame[1..], raw.len()).unwrap(), raw);
        assert_eq!(zstd::decode_all(&frame[1..]).unwrap(), raw);
        Some(frame.len() - 1)
    }

    fn column(runs: &[(usize, u64)], width_bytes: usize) -> Vec<u8> {
        runs.iter()
            .flat_map(|(rows, value)| value.to_le_bytes()[..width_bytes].repeat(*rows))
            .collect()
    }

    #[test]
    fn two_flows_that_alternate_take_a_few_bytes_a_run() {
        let runs: Vec<(usize, u64)> = (0..1000).map(|run| (5 + run % 7, run as u64 % 2 * 77_000)).collect();
        let raw = column(&runs, 4);
        let bytes = assert_round_trip(&raw, 4).unwrap();
        assert!(bytes < 1000 * 6 + 100, "{bytes} of {}", raw.len());
    }

    #[test]
    fn every_length_has_its_code() {
        for width_bytes in [1, 2, 4, 8] {
            let mut rows = 1;
            while rows * width_bytes < 300_000 {
                for more in 0..3 {
                    // Before the run so many single values as it has rows, up to the worth of it.
                    let singles = (0..rows.min(3000) as u64).map(|single| (1, single + 1));
                    let runs: Vec<_> = singles.chain([(20 * rows + more, 5), (3, 6), (rows + more, 7)]).collect();
                    assert_round_trip(&column(&runs, width_bytes), width_bytes);
                }
                rows = rows * 3 / 2 + 1;
            }
        }
    }

    #[test]
    fn values_that_hardly_repeat_are_left_to_others() {
        let raw = column(&(0..4096).map(|row| (1, row * row)).collect::<Vec<_>>(), 4);
        assert_eq!(assert_round_trip(&raw, 4), None);
        assert_eq!(assert_round_trip(&[], 4), None);
    }

    proptest! {
        #[test]
        fn any_runs_survive(
            width in 0..4u32,
            runs in prop::collection::vec((prop_oneof![1..4usize, 1..60usize, 1..9000usize], any::<u64>()), 0..400),
        ) {
            let width_bytes = 1 << width;
            assert_round_trip(&column(&runs, width_bytes), width_bytes);
        }
    }
}
