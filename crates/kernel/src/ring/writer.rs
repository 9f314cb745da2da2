//! A writing end in user space: the algorithm of `bpf/ring.h`, word for word, on the same layout.
//!
//! It lets the ring be tested hard without privileges, and serves instruments without kernel side.

use std::sync::atomic::{Ordering, fence};

use parshall_core::abi::{RECORD_ALIGN_BYTES, RecordHeader};

use super::memory::Lane;
use super::registry::LaneReaders;

const HEADER_WORDS: usize = size_of::<RecordHeader>() / 8;

/// Writes into one lane. Any number of writers may share a lane, on any threads, unless its layout
/// says that writers are alone: then one at a time.
#[derive(Clone, Debug)]
pub struct LaneWriter {
    lane: Lane,
    readers: Option<LaneReaders>,
}

impl LaneWriter {
    /// A writer that honours the ring's preference; `readers` is used under slow-reader preference only.
    pub fn new(lane: Lane, readers: Option<LaneReaders>) -> Self {
        Self { lane, readers }
    }

    /// Writes one record: `payload` follows the header. Returns its number in the lane, or `None`
    /// when there was no room: under slow-reader preference because a reader lags, and always when
    /// another writer has been half-way for a whole lap.
    ///
    /// # Panics
    /// When the record would be longer than the slack: a caller's mistake.
    pub fn write(&self, kind: u16, hook: u16, payload: &[u64]) -> Option<u64> {
        let words = HEADER_WORDS + payload.len();
        let length_bytes = words * RECORD_ALIGN_BYTES;
        assert!(
            length_bytes <= self.lane.layout().slack_bytes as usize,
            "record of {length_bytes} bytes"
        );
        let position = self.reserve(length_bytes as u64)?;
        let next = position + length_bytes as u64;
        let layout = self.lane.layout();
        if (position ^ next) >> layout.part_shift != 0 {
            self.lane
                .boundary((next >> layout.part_shift) as usize)
                .store(next, Ordering::Relaxed);
        }
        // The kernel's atomics with a result imply this fence: later stores stay behind the reservation.
        fence(Ordering::SeqCst);
        let data = self.lane.data(position, words);
        let is_alone = layout.writers_alone != 0;
        let records = self.lane.records();
        let seq = if is_alone {
            let seq = records.load(Ordering::Relaxed);
            records.store(seq + 1, Ordering::Relaxed);
            seq
        } else {
            records.fetch_add(1, Ordering::SeqCst)
        };
        data[1].store(seq, Ordering::Relaxed);
        data[2].store(
            length_bytes as u64 | u64::from(kind) << 32 | u64::from(hook) << 48,
            Ordering::Relaxed,
        );
        for (word, value) in data[HEADER_WORDS..].iter().zip(payload) {
            word.store(*value, Ordering::Relaxed);
        }
        data[0].store(self.lane.stamp(position), Ordering::Release);
        let committed = self.lane.committed_bytes();
        if is_alone {
            committed.store(next, Ordering::Release);
        } else {
            committed.fetch_add(length_bytes as u64, Ordering::SeqCst);
        }
        Some(seq)
    }

    fn reserve(&self, length_bytes: u64) -> Option<u64> {
        let position = match self.lane.layout().writers_alone {
            0 => self.try_reserve(length_bytes),
            _ => self.reserve_alone(length_bytes),
        };
        if position.is_none() {
            self.lane.dropped_records().fetch_add(1, Ordering::Relaxed);
        }
        position
    }

    fn reserve_alone(&self, length_bytes: u64) -> Option<u64> {
        let position = self.lane.reserved_bytes().load(Ordering::Relaxed);
        let end = position + length_bytes;
        // If another writer is half-way nevertheless, the record is refused and counted.
        let is_half_way = self.lane.committed_bytes().load(Ordering::Relaxed) != position;
        if is_half_way || !self.has_room(end) {
            return None;
        }
        self.lane.reserved_bytes().store(end, Ordering::Release);
        Some(position)
    }

    /// Under slow-reader preference: whether the lane may be reserved up to a position.
    fn has_room(&self, end: u64) -> bool {
        let layout = self.lane.layout();
        match &self.readers {
            Some(readers) if layout.wait_for_readers != 0 => {
                end - readers.slowest(end) <= layout.size_bytes
            }
            _ => true,
        }
    }

    fn try_reserve(&self, length_bytes: u64) -> Option<u64> {
        let (lane, layout) = (&self.lane, self.lane.layout());
        loop {
            // In this order: if they are equal, no writer was half-way at this position.
            let committed = lane.committed_bytes().load(Ordering::SeqCst);
            let position = lane.reserved_bytes().load(Ordering::SeqCst);
            let quiet = match committed == position {
                true => position,
                false => lane.quiet_bytes().load(Ordering::SeqCst),
            };
            let end = position + length_bytes;
            if end - quiet > layout.size_bytes {
                return None;
            }
            if !self.has_room(end) {
                return None;
            }
            if lane
                .reserved_bytes()
                .compare_exchange(position, end, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
            {
                lane.quiet_bytes().store(quiet, Ordering::SeqCst);
                return Some(position);
            }
        }
    }
}
