//! From the ring to the outputs: reads every lane, puts the packets in order of time.

use parshall_core::abi::{CaptureRecord, RECORD_PACKET, bytes_of_words, view_plain};

use super::kept_ring::Start;
use crate::ring::memory::Lane;
use crate::ring::merge::{MergedLanes, time_ns};
use crate::ring::reader::{LaneReader, Wanted};
use crate::ring::registry::LaneReaders;

/// Bytes copied out of a lane at once: fits a second-level cache beside the file's buffer.
const BLOCK_BYTES: usize = 128 << 10;
const RECORD_WORDS: usize = size_of::<CaptureRecord>() / 8;
const SUBSCRIBERS_WORD: usize = 4;

/// Reads all lanes of a ring for the subscribers of one process.
pub struct Collector {
    lanes: MergedLanes,
    subscribers: u64,
    /// The lane that [`Collector::next`] reads, and up to which time.
    current: Option<(usize, u64)>,
}

impl Collector {
    /// A collector of what these subscribers want, from these places on. A register gets
    /// reports of how far everything has been read.
    pub fn new(
        lanes: &[Lane],
        starts: &[Start],
        register: Option<(&[LaneReaders], usize)>,
        subscribers: u64,
        snaplen: u32,
    ) -> Self {
        let wanted = Wanted {
            mask_word: SUBSCRIBERS_WORD,
            mask: subscribers,
            words: words_of(snaplen),
            words_of_others: RECORD_WORDS,
        };
        let mut merged = MergedLanes::new(BLOCK_BYTES, wanted);
        for (lane, (memory, start)) in lanes.iter().zip(starts).enumerate() {
            merged.add(
                LaneReader::from_position(memory.clone(), start.position, start.records),
                register.map(|(readers, slot)| (readers[lane].clone(), slot)),
            );
        }
        Self {
            lanes: merged,
            subscribers,
            current: None,
        }
    }

    /// Bytes of each packet that are read from now on. Packets that were read ahead have as many as before.
    pub fn set_snaplen(&mut self, snaplen: u32) {
        self.lanes.set_words(words_of(snaplen));
    }

    /// The next packet that one of ours wants, if it is not younger than `horizon_ns` (`CLOCK_MONOTONIC`). For callers
    /// that may stop after any packet; [`Collector::collect`] is faster.
    pub fn next(&mut self, horizon_ns: u64) -> Option<(&CaptureRecord, &[u8])> {
        let lane = self.find(horizon_ns)?;
        packet(self.lanes.block(lane).take()?)
    }

    /// Whether [`Collector::next`] has a packet.
    pub fn has_next(&mut self, horizon_ns: u64) -> bool {
        self.find(horizon_ns).is_some()
    }

    /// The lane whose next record is the next packet of ours; skips what is not ours.
    fn find(&mut self, horizon_ns: u64) -> Option<usize> {
        loop {
            let (lane, limit_ns) = match self.current {
                Some(current) => current,
                None => {
                    self.lanes.refill();
                    *self.current.insert(self.lanes.oldest(horizon_ns)?)
                }
            };
            let block = self.lanes.block(lane);
            match block.peek() {
                Some(record) if time_ns(record) <= limit_ns => {
                    if packet(record)
                        .is_some_and(|(one, _)| one.subscribers & self.subscribers != 0)
                    {
                        return Some(lane);
                    }
                    block.advance();
                }
                _ => self.current = None,
            }
        }
    }

    /// Takes what is in the lanes and not younger than `horizon_ns` (`CLOCK_MONOTONIC`), and hands the
    /// packets that one of ours wants to `sink`, in order of time. Returns how many those were.
    pub fn collect(
        &mut self,
        horizon_ns: u64,
        mut sink: impl FnMut(&CaptureRecord, &[u8]),
    ) -> usize {
        self.lanes.refill();
        let mut taken = 0;
        while let Some((oldest, limit_ns)) = self.lanes.oldest(horizon_ns) {
            loop {
                let block = self.lanes.block(oldest);
                if block.peek().is_none_or(|record| time_ns(record) > limit_ns) {
                    break;
                }
                if let Some((record, bytes)) = block.peek().and_then(packet)
                    && record.subscribers & self.subscribers != 0
                {
                    sink(record, bytes);
                    taken += 1;
                }
                block.advance();
            }
        }
        taken
    }

    /// The lanes: how far they are read, and what was missed.
    pub fn lanes(&self) -> &MergedLanes {
        &self.lanes
    }

    /// Counts what was overwritten at the very end. For when all is read.
    pub fn settle(&mut self) {
        self.lanes.settle();
    }
}

/// A record as a packet and its bytes; `None` for other records.
fn packet(words: &[u64]) -> Option<(&CaptureRecord, &[u8])> {
    let record: &CaptureRecord = view_plain(words)?;
    debug_assert_eq!(record.header.kind, RECORD_PACKET);
    let bytes = bytes_of_words(&words[RECORD_WORDS..]);
    let length = bytes.len().min(record.captured_length_bytes as usize);
    Some((record, &bytes[..length]))
}

/// Words of a record with so many bytes of its packet.
fn words_of(snaplen: u32) -> usize {
    RECORD_WORDS + (snaplen as usize).div_ceil(8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::writer::LaneWriter;
    use crate::ring::{LANE_SIZE_MIN_BYTES, Preference, layout};

    #[test]
    fn non_packet_records_are_skipped() {
        let layout = layout(LANE_SIZE_MIN_BYTES, Preference::FastReader).unwrap();
        let lanes = Lane::anonymous(1, layout).unwrap();
        let writer = LaneWriter::new(lanes[0].clone(), None);
        let (mine, others) = (0b10, 0b01);
        writer.write(RECORD_PACKET, 0, &[1, mine, 0, 0]);
        writer.write(RECORD_PACKET, 0, &[2, mine]); // shorter than any packet's
        writer.write(RECORD_PACKET, 0, &[3, others, 0, 0]);
        writer.write(RECORD_PACKET, 0, &[4, mine, 0, 0]);
        let start = Start {
            position: 0,
            records: 0,
        };
        let mut collector = Collector::new(&lanes, &[start], None, mine, 64);
        let mut times = Vec::new();
        let taken = collector.collect(u64::MAX, |record, _| times.push(record.time_ns));
        assert_eq!((taken, times), (2, vec![1, 4]));
        assert!(collector.lanes().is_caught_up());
    }
}
