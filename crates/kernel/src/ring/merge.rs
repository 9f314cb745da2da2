//! The lanes of a ring as one stream, in order of time. What a record means is its reader's business.

use parshall_core::abi::RecordHeader;

use super::reader::{Block, LaneReader, Wanted};
use super::registry::LaneReaders;

/// Every record has its time right behind the header.
const TIME_WORD: usize = size_of::<RecordHeader>() / 8;

/// Lanes that are read together. The lane with the oldest record gives records until another one's is
/// older, so that it is not asked for each record which lane is next.
pub struct MergedLanes {
    sources: Vec<Source>,
    block_bytes: usize,
    wanted: Wanted,
}

struct Source {
    reader: LaneReader,
    block: Block,
    register: Option<(LaneReaders, usize)>,
}

impl MergedLanes {
    /// No lanes yet. Out of each, `block_bytes` are copied at once, of each record what is wanted.
    pub fn new(block_bytes: usize, wanted: Wanted) -> Self {
        Self {
            sources: Vec::new(),
            block_bytes,
            wanted,
        }
    }

    /// Words of each wanted record that are read from now on.
    pub fn set_words(&mut self, words: usize) {
        self.wanted.words = words;
    }

    /// Adds a lane. `register` reports how far the lane has been read.
    pub fn add(&mut self, reader: LaneReader, register: Option<(LaneReaders, usize)>) {
        self.sources.push(Source {
            reader,
            block: Block::default(),
            register,
        });
    }

    /// Copies new records out of every lane whose records were all taken.
    pub fn refill(&mut self) {
        for lane in 0..self.sources.len() {
            self.block(lane);
        }
    }

    /// The lane whose next record is oldest, and up to which time (ns of the records' clock) its records
    /// come before those of the others; none when no record is as old as `horizon_ns`.
    pub fn oldest(&self, horizon_ns: u64) -> Option<(usize, u64)> {
        let mut oldest: Option<(u64, usize)> = None;
        let mut second_ns = u64::MAX;
        for (lane, source) in self.sources.iter().enumerate() {
            let Some(record) = source.block.peek() else {
                continue;
            };
            let time = time_ns(record);
            match oldest {
                Some((best, _)) if best <= time => second_ns = second_ns.min(time),
                _ => {
                    second_ns = oldest.map_or(second_ns, |(best, _)| second_ns.min(best));
                    oldest = Some((time, lane));
                }
            }
        }
        let (time, lane) = oldest?;
        (time <= horizon_ns).then_some((lane, second_ns.min(horizon_ns)))
    }

    /// What was copied out of a lane and waits to be taken; copied anew when nothing waits.
    #[inline]
    pub fn block(&mut self, lane: usize) -> &mut Block {
        let source = &mut self.sources[lane];
        if source.block.is_empty() {
            source.refill(self.block_bytes, self.wanted);
        }
        &mut source.block
    }

    /// Whether everything that was written has been taken.
    pub fn is_caught_up(&self) -> bool {
        self.sources
            .iter()
            .all(|source| source.block.is_empty() && source.reader.is_caught_up())
    }

    /// Whether every lane has been taken up to these positions.
    pub fn has_reached(&self, ends: &[u64]) -> bool {
        self.sources
            .iter()
            .zip(ends)
            .all(|(source, end)| source.block.is_empty() && source.reader.position() >= *end)
    }

    /// Records overwritten before they were read, by the lanes' own sequence numbers. Exact after
    /// [`MergedLanes::settle`].
    pub fn sequence_gaps(&self) -> u64 {
        self.sources
            .iter()
            .map(|source| source.reader.counts().gaps.max(0) as u64)
            .sum()
    }

    /// Counts what was overwritten at the very end. For when the writers are at rest and all is read.
    pub fn settle(&mut self) {
        for source in &mut self.sources {
            source.reader.settle();
        }
    }
}

impl Source {
    fn refill(&mut self, block_bytes: usize, wanted: Wanted) {
        self.reader
            .read_block_of(&mut self.block, block_bytes, wanted);
        if let Some((readers, slot)) = &self.register {
            readers.report(*slot, self.reader.position());
        }
    }
}

/// When a record was written, in ns of the records' clock; 0 of what is no record.
#[inline]
pub fn time_ns(record: &[u64]) -> u64 {
    record.get(TIME_WORD).copied().unwrap_or(0)
}
