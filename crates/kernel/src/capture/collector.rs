//! From the ring to whoever wants the packets: reads every lane, puts the packets in order of time.

use parshall_core::abi::{CaptureRecord, RECORD_PACKET, bytes_of_words, view_plain};

use super::kept_ring::Start;
use crate::ring::memory::Lane;
use crate::ring::reader::{Block, LaneReader, Wanted};
use crate::ring::registry::LaneReaders;

/// Bytes copied out of a lane at once: fits a second-level cache beside the file's buffer.
const BLOCK_BYTES: usize = 128 << 10;
const RECORD_WORDS: usize = size_of::<CaptureRecord>() / 8;
const SUBSCRIBERS_WORD: usize = 4;

struct Source {
    reader: LaneReader,
    block: Block,
    register: Option<(LaneReaders, usize)>,
}

/// Reads all lanes of a ring for the subscribers of one process.
pub struct Collector {
    sources: Vec<Source>,
    /// Packets of our subscribers, as much as one of them wants; of others nothing but the record.
    wanted: Wanted,
}

impl Collector {
    /// A collector of what these subscribers want, from these places on. With a register, it is
    /// told how far everything has been read.
    pub fn new(
        lanes: &[Lane],
        starts: &[Start],
        register: Option<(&[LaneReaders], usize)>,
        subscribers: u64,
        snaplen: u32,
    ) -> Self {
        let sources = lanes
            .iter()
            .zip(starts)
            .enumerate()
            .map(|(lane, (memory, start))| Source {
                reader: LaneReader::from_position(memory.clone(), start.position, start.records),
                block: Block::default(),
                register: register.map(|(readers, slot)| (readers[lane].clone(), slot)),
            })
            .collect();
        Self {
            sources,
            wanted: Wanted {
                mask_word: SUBSCRIBERS_WORD,
                mask: subscribers,
                words: RECORD_WORDS + (snaplen as usize).div_ceil(8),
                words_of_others: RECORD_WORDS,
            },
        }
    }

    /// Takes what is in the lanes and not younger than `horizon_ns` (`CLOCK_MONOTONIC`), and hands the
    /// packets that one of ours wants to `sink`, in order of time. Returns how many those were.
    pub fn collect(
        &mut self,
        horizon_ns: u64,
        mut sink: impl FnMut(&CaptureRecord, &[u8]),
    ) -> usize {
        let wanted = self.wanted;
        for source in &mut self.sources {
            source.refill(wanted);
        }
        let mut taken = 0;
        while let Some((oldest, limit_ns)) = self.oldest(horizon_ns) {
            let source = &mut self.sources[oldest];
            loop {
                if source.block.is_empty() {
                    source.refill(wanted);
                }
                let Some((record, bytes)) = source.next() else {
                    break;
                };
                if record.time_ns > limit_ns {
                    break;
                }
                if record.subscribers & wanted.mask != 0 {
                    sink(record, bytes);
                    taken += 1;
                }
                source.block.advance();
            }
        }
        taken
    }

    /// The source whose next packet is oldest, and up to which time it may go on.
    fn oldest(&self, horizon_ns: u64) -> Option<(usize, u64)> {
        let mut oldest: Option<(u64, usize)> = None;
        let mut second_ns = u64::MAX;
        for (index, source) in self.sources.iter().enumerate() {
            let Some((record, _)) = source.next() else {
                continue;
            };
            let time = record.time_ns;
            match oldest {
                Some((best, _)) if best <= time => second_ns = second_ns.min(time),
                _ => {
                    second_ns = oldest.map_or(second_ns, |(best, _)| second_ns.min(best));
                    oldest = Some((time, index));
                }
            }
        }
        let (time, index) = oldest?;
        (time <= horizon_ns).then_some((index, second_ns.min(horizon_ns)))
    }

    /// Whether every lane has been taken up to these positions.
    pub fn has_reached(&self, ends: &[u64]) -> bool {
        self.sources
            .iter()
            .zip(ends)
            .all(|(source, end)| source.block.is_empty() && source.reader.position() >= *end)
    }

    /// Whether everything that was written has been taken.
    pub fn is_caught_up(&self) -> bool {
        self.sources
            .iter()
            .all(|source| source.block.is_empty() && source.reader.is_caught_up())
    }

    /// Packets of anybody's that were overwritten before they were read, by the lanes' own numbers.
    pub fn sequence_gaps(&self) -> u64 {
        self.sources
            .iter()
            .map(|source| source.reader.counts().gaps.max(0) as u64)
            .sum()
    }

    /// Counts what was overwritten at the very end. For when all is read.
    pub fn settle(&mut self) {
        for source in &mut self.sources {
            source.reader.settle();
        }
    }
}

impl Source {
    fn refill(&mut self, wanted: Wanted) {
        if !self.block.is_empty() {
            return;
        }
        self.reader
            .read_block_of(&mut self.block, BLOCK_BYTES, wanted);
        if let Some((readers, slot)) = &self.register {
            readers.report(*slot, self.reader.position());
        }
    }

    /// The next packet and its bytes; what is no packet is none.
    fn next(&self) -> Option<(&CaptureRecord, &[u8])> {
        let words = self.block.peek()?;
        let record: &CaptureRecord = view_plain(words)?;
        debug_assert_eq!(record.header.kind, RECORD_PACKET);
        let bytes = bytes_of_words(&words[RECORD_WORDS..]);
        let length = bytes.len().min(record.captured_length_bytes as usize);
        Some((record, &bytes[..length]))
    }
}
