//! The reading end of one lane.
//!
//! A reader copies a block of records, in one go where it wants most of their bytes, and only then
//! reads how far the writers have come: what they may have overwritten meanwhile is discarded and
//! counted. So the writers' counter, a cache line that every write moves between CPUs, is read a few
//! times a block and not twice a record.

use std::sync::atomic::{Ordering, fence};

use parshall_core::abi::{LANE_INDEX_SLOTS, RECORD_ALIGN_BYTES, RecordHeader, view_plain};

use super::memory::Lane;

const HEADER_WORDS: usize = size_of::<RecordHeader>() / 8;
const SEQ_WORD: usize = 1;
const LENGTH_WORD: usize = 2;

/// What a lane's reader has taken and missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderCounts {
    /// Records delivered.
    pub read: u64,
    /// Gaps in the lane's sequence numbers: records overwritten before they could be read.
    pub gaps: i64,
}

/// How much of a record is worth copying.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The word of a record that says who wants it.
    pub mask_word: usize,
    /// The bits of ours in that word.
    pub mask: u64,
    /// Maximum words of a record that one of ours wants.
    pub words: usize,
    /// Maximum words of any other record; the header is always copied.
    pub words_of_others: usize,
}

impl Default for Wanted {
    /// Everything.
    fn default() -> Self {
        Self {
            mask_word: 0,
            mask: 0,
            words: usize::MAX,
            words_of_others: usize::MAX,
        }
    }
}

impl Wanted {
    /// Words to be copied of a record of `words` words with this mask.
    #[inline]
    fn words(&self, words: usize, mask: Option<u64>) -> usize {
        let wanted = match mask {
            Some(mask) if mask & self.mask != 0 => self.words,
            _ => self.words_of_others,
        };
        wanted.clamp(HEADER_WORDS, words)
    }
}

/// Reads one lane.
#[derive(Debug)]
pub struct LaneReader {
    lane: Lane,
    position: u64,
    next_seq: Option<u64>,
    counts: ReaderCounts,
    /// Of the last block, most was wanted.
    wants_most: bool,
}

/// A block of records, copied out of a lane and known to be whole.
#[derive(Debug, Default)]
pub struct Block {
    words: Vec<u64>,
    /// Where each record starts, in words; one more entry marks the end.
    starts: Vec<u32>,
    /// Where each record starts in the lane, in bytes from the first one.
    offsets: Vec<u32>,
    next: usize,
}

impl Block {
    /// Whether every record has been taken.
    pub fn is_empty(&self) -> bool {
        self.next >= self.len()
    }

    fn len(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// The next record, header included, without taking it.
    #[inline]
    pub fn peek(&self) -> Option<&[u64]> {
        let start = *self.starts.get(self.next)? as usize;
        let end = *self.starts.get(self.next + 1)? as usize;
        self.words.get(start..end)
    }

    /// Takes the next record, header included.
    #[inline]
    pub fn take(&mut self) -> Option<&[u64]> {
        self.next += 1;
        let start = *self.starts.get(self.next - 1)? as usize;
        let end = *self.starts.get(self.next)? as usize;
        self.words.get(start..end)
    }

    /// The next `count` records, which lie one behind the other.
    #[inline]
    pub fn peek_many(&self, count: usize) -> &[u64] {
        let bounds = (
            self.starts.get(self.next),
            self.starts.get(self.next + count),
        );
        match bounds {
            (Some(start), Some(end)) => &self.words[*start as usize..*end as usize],
            _ => &[],
        }
    }

    /// How many of the next records `belongs` accepts without a refusal in between.
    #[inline]
    pub fn run_length(&self, belongs: impl Fn(&[u64]) -> bool) -> usize {
        self.starts[self.next.min(self.starts.len())..]
            .windows(2)
            .take_while(|bounds| belongs(&self.words[bounds[0] as usize..bounds[1] as usize]))
            .count()
    }

    /// Takes `count` records.
    #[inline]
    pub fn advance_many(&mut self, count: usize) {
        self.next += count;
    }

    /// Takes the record that [`Block::peek`] showed.
    #[inline]
    pub fn advance(&mut self) {
        self.next += 1;
    }

    fn clear(&mut self) {
        self.words.clear();
        self.starts.clear();
        self.starts.push(0);
        self.offsets.clear();
        self.next = 0;
    }
}

impl LaneReader {
    /// A reader that starts at the ring's first record: what was overwritten counts as missed.
    pub fn from_start(lane: Lane) -> Self {
        Self::from_position(lane, 0, 0)
    }

    /// A reader that joins now: what was written before does not count as missed.
    pub fn from_now(lane: Lane) -> Self {
        let position = lane.reserved_bytes().load(Ordering::Acquire);
        Self {
            next_seq: None,
            ..Self::from_position(lane, position, 0)
        }
    }

    /// A reader that starts at the record at `position`, before which there were `records` (or a few
    /// more: what it misses at the very beginning is then overestimated by these).
    pub fn from_position(lane: Lane, position: u64, records: u64) -> Self {
        Self {
            lane,
            position,
            next_seq: Some(records),
            counts: ReaderCounts::default(),
            wants_most: true,
        }
    }

    /// What was delivered and missed so far.
    pub fn counts(&self) -> ReaderCounts {
        self.counts
    }

    /// The position up to which everything is consumed.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The lane that is read.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Whether everything that was reserved up to now has been read.
    pub fn is_caught_up(&self) -> bool {
        self.position >= self.lane.reserved_bytes().load(Ordering::Acquire)
    }

    /// Copies up to about `limit_bytes` of committed records into `block`, which is cleared first.
    ///
    /// The block is empty when nothing is committed behind the reader's position. A record that a
    /// writer has reserved but not committed ends the block: order in a lane is kept.
    pub fn read_block(&mut self, block: &mut Block, limit_bytes: usize) {
        self.read_block_of(block, limit_bytes, Wanted::default());
    }

    /// As [`LaneReader::read_block`], but what is not wanted of a record may be missing at its end.
    pub fn read_block_of(&mut self, block: &mut Block, limit_bytes: usize, wanted: Wanted) {
        block.clear();
        let size_bytes = self.lane.layout().size_bytes;
        let mut reserved = self.lane.reserved_bytes().load(Ordering::Acquire);
        if reserved - self.position > size_bytes {
            self.skip_overwritten(reserved);
            reserved = self.lane.reserved_bytes().load(Ordering::Acquire);
        }
        let start = self.position;
        let wanted_bytes = match self.wants_most {
            true => self.copy_at_once(block, limit_bytes, wanted),
            false => 0,
        };
        let wanted_bytes = match wanted_bytes {
            0 => self.copy_each(block, limit_bytes, reserved, wanted),
            bytes => bytes,
        };
        if self.position > start {
            self.wants_most = 2 * wanted_bytes as u64 >= self.position - start;
        }
        // The copies above happen before the load below.
        fence(Ordering::Acquire);
        let reserved = self.lane.reserved_bytes().load(Ordering::Relaxed);
        let overwritten_below = reserved.saturating_sub(size_bytes);
        while block.next < block.len()
            && start + u64::from(block.offsets[block.next]) < overwritten_below
        {
            block.next += 1;
        }
        self.count(block);
    }

    /// Copies everything up to a limit, and looks for the records in the copy: the quickest way when
    /// most is wanted. Returns how many of the bytes are; 0 when there is no whole record.
    fn copy_at_once(&mut self, block: &mut Block, limit_bytes: usize, wanted: Wanted) -> usize {
        let layout = self.lane.layout();
        let start = self.position;
        // A record that begins before the end of the data goes on in the slack behind it.
        let to_end_bytes = layout.size_bytes - (start & (layout.size_bytes - 1));
        let bytes = (self.lane.whole_bytes().saturating_sub(start))
            .min(to_end_bytes + layout.slack_bytes)
            .min(limit_bytes as u64);
        self.lane
            .append_data(start, bytes as usize / 8, &mut block.words);
        let (mut at, mut wanted_words) = (0, 0);
        while (8 * at as u64) < to_end_bytes
            && let Some(record) = block.words.get(at..)
            && let Some(&[stamp, _, length]) = record.first_chunk()
        {
            let words = length as u32 as usize / RECORD_ALIGN_BYTES;
            // What is no record was overwritten during the copy, or is behind the last one.
            if stamp != self.lane.stamp(start + 8 * at as u64)
                || !(HEADER_WORDS..=record.len()).contains(&words)
            {
                break;
            }
            wanted_words += wanted.words(words, record.get(wanted.mask_word).copied());
            block.offsets.push(8 * at as u32);
            at += words;
            block.starts.push(at as u32);
        }
        self.position = start + 8 * at as u64;
        8 * wanted_words
    }

    /// Copies the wanted part of each record, until one is not committed. Returns the number of bytes.
    fn copy_each(
        &mut self,
        block: &mut Block,
        limit_bytes: usize,
        reserved: u64,
        wanted: Wanted,
    ) -> usize {
        let slack_bytes = self.lane.layout().slack_bytes as usize;
        let start = self.position;
        let mut position = start;
        block.words.clear();
        while position < reserved && block.words.len() * 8 < limit_bytes {
            let header = self.lane.data(position, HEADER_WORDS);
            // Acquire: the words of a record are read after its stamp.
            if header[0].load(Ordering::Acquire) != self.lane.stamp(position) {
                break;
            }
            let length_bytes = header[LENGTH_WORD].load(Ordering::Relaxed) as u32 as usize;
            if !(HEADER_WORDS * 8..=slack_bytes).contains(&length_bytes)
                || !length_bytes.is_multiple_of(RECORD_ALIGN_BYTES)
            {
                break; // overwritten during the copy: `reserved`, read afterwards, shows it
            }
            let record = self.lane.data(position, length_bytes / 8);
            let mask = record.get(wanted.mask_word);
            let words = wanted.words(record.len(), mask.map(|word| word.load(Ordering::Relaxed)));
            block.words.extend(
                record[..words]
                    .iter()
                    .map(|word| word.load(Ordering::Relaxed)),
            );
            block.starts.push(block.words.len() as u32);
            block.offsets.push((position - start) as u32);
            position += length_bytes as u64;
        }
        self.position = position;
        block.words.len() * 8
    }

    fn count(&mut self, block: &Block) {
        let records = (block.len() - block.next) as u64;
        let seq = |record: usize| block.words[block.starts[record] as usize + SEQ_WORD];
        // As a rule nothing is missing: the first and the last number show it.
        if records > 0
            && self.next_seq.is_none_or(|next| next == seq(block.next))
            && seq(block.len() - 1) == seq(block.next) + records - 1
        {
            self.counts.read += records;
            self.next_seq = Some(seq(block.next) + records);
            return;
        }
        for record in block.next..block.len() {
            let start = block.starts[record] as usize;
            let Some(header) = view_plain::<RecordHeader>(&block.words[start..]) else {
                continue;
            };
            let expected = self.next_seq.unwrap_or(header.lane_seq);
            // Two writers that interrupted each other may have taken place and number in opposite
            // order: the later number makes a gap, the earlier one closes it.
            if header.lane_seq >= expected {
                self.counts.gaps += (header.lane_seq - expected) as i64;
                self.next_seq = Some(header.lane_seq + 1);
            } else {
                self.counts.gaps -= 1;
                self.next_seq = Some(expected);
            }
            self.counts.read += 1;
        }
    }

    /// Goes on at the oldest record start that leaves the writers an eighth of the lane.
    fn skip_overwritten(&mut self, reserved: u64) {
        let size_bytes = self.lane.layout().size_bytes;
        let oldest = reserved.saturating_sub(size_bytes - size_bytes / 8);
        self.position = (0..LANE_INDEX_SLOTS)
            .map(|slot| self.lane.boundary(slot).load(Ordering::Acquire))
            .filter(|boundary| (oldest..=reserved).contains(boundary))
            .min()
            .unwrap_or(reserved);
    }

    /// Counts the records at the end of the lane that were overwritten after the last one that
    /// could be read. Call it when the writers are at rest and the lane is read to its end.
    pub fn settle(&mut self) {
        let written = self.lane.records().load(Ordering::Acquire);
        if let Some(expected) = self.next_seq
            && written > expected
        {
            self.counts.gaps += (written - expected) as i64;
            self.next_seq = Some(written);
        }
    }
}
