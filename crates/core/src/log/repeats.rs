//! A zstd frame for values that mostly repeat the one before, made without zstd.
//!
//! Of the state of a connection most stays from packet to packet, and what differs between connections
//! changes with the flow that a row belongs to. zstd's search finds such runs byte by byte; we know
//! where they end. A run is its value (literals) and a match at the
//! distance of one value. Lengths are coded with the tables that every decoder has, so that no
//! statistics are made; the distance, always the same, has a table of one code.

use super::fse::{BitWriter, LITERAL_LENGTHS, MATCH_LENGTHS};
use super::runs::Runs;
use super::zstd_frame::{
    BLOCK_BYTES_MAX, Block, MATCH_BYTES_MIN, add_sequence_count, begin_block, begin_frame,
    end_block, raw_literals,
};

/// Predefined tables for the two lengths, one code for the distance.
const MODES: u8 = 0x10;
/// About what a run costs beside its value, in quarters of a byte.
const RUN_QUARTER_BYTES: usize = 6;
/// Below this the frame is all overhead.
const CONTENT_BYTES_MIN: usize = 64;

/// A run: bytes of literals, and bytes of the match behind them.
struct Sequence {
    literal_bytes: u32,
    match_bytes: u32,
}

/// Makes frames; keeps its buffer between them.
#[derive(Default)]
pub struct RepeatCoder {
    sequences: Vec<Sequence>,
}

impl RepeatCoder {
    /// Appends the frame of a column to `out`, when that saves an eighth and fits one block; false,
    /// with `out` as it was, otherwise.
    pub fn encode(&mut self, runs: &Runs, out: &mut Vec<u8>) -> bool {
        let content_bytes = runs.rows() * runs.width_bytes();
        let runs_quarter_bytes = runs.starts().len() * (4 * runs.width_bytes() + RUN_QUARTER_BYTES);
        if !(CONTENT_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&content_bytes)
            || runs_quarter_bytes > content_bytes * 4 * 7 / 8
        {
            return false;
        }
        let frame_at = out.len();
        begin_frame(content_bytes as u32, out);
        let block_at = begin_block(out);
        let header_at = out.len();
        out.extend_from_slice(&raw_literals(0));
        let literals_at = out.len();
        self.sequences.clear();
        if runs.width_bytes() > MATCH_BYTES_MIN {
            self.add_long_values(runs, out);
        } else {
            self.add_short_values(runs, out);
        }
        let header = raw_literals(out.len() - literals_at);
        out[header_at..literals_at].copy_from_slice(&header);
        add_sequences(&self.sequences, runs.width_bytes() as u32, out);
        end_block(block_at, Block::Compressed, true, out);
        if (out.len() - frame_at) * 8 > content_bytes * 7 {
            out.truncate(frame_at);
            return false;
        }
        true
    }

    /// Every repeat of a value is long enough for a match, so each value is a literal once.
    fn add_long_values(&mut self, runs: &Runs, out: &mut Vec<u8>) {
        out.extend_from_slice(runs.values());
        let width_bytes = runs.width_bytes() as u32;
        let mut literal_bytes = 0;
        for (start, end) in runs.bounds() {
            literal_bytes += width_bytes;
            if end - start > 1 {
                self.sequences.push(Sequence {
                    literal_bytes,
                    match_bytes: (end - start - 1) * width_bytes,
                });
                literal_bytes = 0;
            }
        }
    }

    /// A few repeats are too short for a match, and stay literals.
    fn add_short_values(&mut self, runs: &Runs, out: &mut Vec<u8>) {
        let width_bytes = runs.width_bytes();
        let mut literal_bytes = 0;
        for ((start, end), value) in runs.bounds().zip(runs.values().chunks_exact(width_bytes)) {
            let match_bytes = (end - start - 1) as usize * width_bytes;
            out.extend_from_slice(value);
            literal_bytes += width_bytes;
            if match_bytes >= MATCH_BYTES_MIN {
                self.sequences.push(Sequence {
                    literal_bytes: literal_bytes as u32,
                    match_bytes: match_bytes as u32,
                });
                literal_bytes = 0;
            } else {
                for _ in start + 1..end {
                    out.extend_from_slice(value);
                }
                literal_bytes += match_bytes;
            }
        }
    }
}

fn add_sequences(sequences: &[Sequence], width_bytes: u32, out: &mut Vec<u8>) {
    add_sequence_count(sequences.len(), out);
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
    use super::super::runs::{History, Kept, Runs};
    use super::super::zstd_frame;
    use super::RepeatCoder;
    use proptest::prelude::*;

    fn runs_of(lengths: &[(usize, u64)], width_bytes: usize) -> Runs {
        let words: Vec<u64> = lengths
            .iter()
            .flat_map(|(rows, value)| std::iter::repeat_n(*value, *rows))
            .collect();
        let rows = words.len();
        let mut history = History::new(rows);
        for block in (0..rows).step_by(1000) {
            let block = block..rows.min(block + 1000);
            history.extend(block.map(|row| (row as u32, words[row])));
        }
        let history = Kept::Changes(history);
        let mut runs = Runs::default();
        match width_bytes {
            1 => runs.take(&history, rows, |word| [word as u8]),
            2 => runs.take(&history, rows, |word| (word as u16).to_le_bytes()),
            4 => runs.take(&history, rows, |word| (word as u32).to_le_bytes()),
            _ => runs.take(&history, rows, u64::to_le_bytes),
        }
        runs
    }

    fn assert_round_trip(lengths: &[(usize, u64)], width_bytes: usize) -> Option<usize> {
        let runs = runs_of(lengths, width_bytes);
        let raw: Vec<u8> = lengths
            .iter()
            .flat_map(|(rows, value)| value.to_le_bytes()[..width_bytes].repeat(*rows))
            .collect();
        assert_eq!(runs.every_row(&mut vec![1]), raw);
        zstd_frame::assert_round_trip(&raw, |out| RepeatCoder::default().encode(&runs, out))
    }

    #[test]
    fn two_flows_that_alternate_take_a_few_bytes_a_run() {
        let lengths: Vec<_> = (0..1000)
            .map(|run| (5 + run % 7, run as u64 % 2 * 77_000))
            .collect();
        let bytes = assert_round_trip(&lengths, 4).unwrap();
        assert!(bytes < 1000 * 6 + 100, "{bytes}");
    }

    #[test]
    fn every_length_has_its_code() {
        for width_bytes in [1, 2, 4, 8] {
            let mut rows = 1;
            let mut coded = 0;
            while 22 * rows * width_bytes < 128 << 10 {
                for more in 0..3 {
                    // Before the long run as many single values as it has rows.
                    let singles = (0..rows as u64).map(|single| (1, single % 200 + 1));
                    let runs = [(20 * rows + more, 0), (3, 250), (rows + more, 251)];
                    let lengths: Vec<_> = singles.chain(runs).collect();
                    coded += usize::from(assert_round_trip(&lengths, width_bytes).is_some());
                }
                rows = rows * 3 / 2 + 1;
            }
            assert!(coded > 20, "{coded} at {width_bytes} bytes");
            let longest = (128 << 10) / width_bytes;
            assert!(assert_round_trip(&[(longest, 1)], width_bytes).is_some());
            assert_eq!(assert_round_trip(&[(longest + 1, 1)], width_bytes), None);
        }
    }

    #[test]
    fn values_that_hardly_repeat_are_left_to_others() {
        let lengths: Vec<_> = (0..4096).map(|row| (1, row * row)).collect();
        assert_eq!(assert_round_trip(&lengths, 4), None);
        assert_eq!(assert_round_trip(&[], 4), None);
    }

    proptest! {
        #[test]
        fn any_runs_survive(
            width in 0..4u32,
            lengths in prop::collection::vec((prop_oneof![1..4usize, 1..60usize, 1..900usize], any::<u64>()), 0..400),
        ) {
            assert_round_trip(&lengths, 1 << width);
        }
    }
}
