//! The register of a ring's readers: where each one is, so that under slow-reader preference no
//! writer overtakes the slowest.

use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parshall_core::abi::{self, RING_READERS_MAX};

use super::RingError;
use super::memory::cut;
use crate::net::mapping::Mapping;

/// Bytes of `struct lane_readers`.
pub const LANE_READERS_BYTES: usize = size_of::<abi::LaneReaders>();

/// The readers of one lane.
#[derive(Clone, Debug)]
pub struct LaneReaders {
    mapping: Arc<Mapping>,
    start_bytes: usize,
}

impl LaneReaders {
    /// The register of every lane of a ring, from its map.
    pub fn of_map(map: impl AsFd, lanes: usize) -> Result<Vec<Self>, RingError> {
        Self::cut(lanes, |bytes| Mapping::of(map, bytes, 0, true))
    }

    /// The register of every lane, in memory of this process.
    pub fn anonymous(lanes: usize) -> Result<Vec<Self>, RingError> {
        Self::cut(lanes, Mapping::anonymous)
    }

    fn cut(
        lanes: usize,
        map: impl FnOnce(usize) -> Result<Mapping, rustix::io::Errno>,
    ) -> Result<Vec<Self>, RingError> {
        let of_lane = |mapping, start_bytes| Self {
            mapping,
            start_bytes,
        };
        cut(lanes, LANE_READERS_BYTES, map, of_lane)
    }

    /// Bit r: reader r counts.
    fn active(&self) -> &AtomicU64 {
        self.mapping
            .word(self.start_bytes + offset_of!(abi::LaneReaders, active))
    }

    #[inline]
    fn position(&self, slot: usize) -> &AtomicU64 {
        let slot = slot % RING_READERS_MAX;
        let positions = offset_of!(abi::LaneReaders, position_bytes);
        self.mapping.word(self.start_bytes + positions + 8 * slot)
    }

    /// Takes a free slot at `position`.
    ///
    /// # Errors
    /// [`RingError::Readers`] when all are taken.
    pub fn join(&self, position: u64) -> Result<usize, RingError> {
        let active = self.active();
        loop {
            let seen = active.load(Ordering::Acquire);
            let slot = seen.trailing_ones() as usize;
            if slot >= RING_READERS_MAX {
                return Err(RingError::Readers);
            }
            self.report(slot, position);
            if active
                .compare_exchange(seen, seen | 1 << slot, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                self.report(slot, position);
                return Ok(slot);
            }
        }
    }

    /// Takes a slot that its owner knows to be free, at `position`.
    pub fn enter(&self, slot: usize, position: u64) {
        self.report(slot, position);
        self.active().fetch_or(1 << slot, Ordering::AcqRel);
    }

    /// Gives a slot back: writers no longer wait for it.
    pub fn leave(&self, slot: usize) {
        self.active().fetch_and(!(1 << slot), Ordering::AcqRel);
    }

    /// Sets the position up to which the reader in `slot` has consumed.
    #[inline]
    pub fn report(&self, slot: usize, position: u64) {
        self.position(slot).store(position, Ordering::Release);
    }

    /// The position of the slowest reader; `otherwise` when there is none.
    pub fn slowest(&self, otherwise: u64) -> u64 {
        let active = self.active().load(Ordering::Acquire);
        (0..RING_READERS_MAX)
            .filter(|slot| active & (1 << slot) != 0)
            .map(|slot| self.position(slot).load(Ordering::Acquire))
            .min()
            .unwrap_or(otherwise)
    }
}
