//! Lanes in mapped memory, seen as atomic words: what was read is checked afterwards.

use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parshall_core::abi::{LANE_HEADER_BYTES, LANE_INDEX_SLOTS, LaneHeader, RingLayout};

use super::{RingError, lane_bytes};
use crate::net::mapping::Mapping;

/// One lane of a ring: cheap to clone, keeps the mapping alive.
#[derive(Clone, Debug)]
pub struct Lane {
    mapping: Arc<Mapping>,
    start_bytes: usize,
    layout: RingLayout,
}

/// Maps an area of `area_bytes` for each lane; `of_lane` gets the mapping and where its area starts.
pub(super) fn cut<T>(
    lanes: usize,
    area_bytes: usize,
    map: impl FnOnce(usize) -> Result<Mapping, rustix::io::Errno>,
    of_lane: impl Fn(Arc<Mapping>, usize) -> T,
) -> Result<Vec<T>, RingError> {
    let mapping = map((area_bytes * lanes).next_multiple_of(4096));
    let mapping = Arc::new(mapping.map_err(|source| RingError::Map {
        lanes,
        lane_bytes: area_bytes,
        source,
    })?);
    Ok((0..lanes)
        .map(|lane| of_lane(Arc::clone(&mapping), lane * area_bytes))
        .collect())
}

impl Lane {
    /// The lanes of a ring whose map is `map`.
    pub fn of_map(
        map: impl AsFd,
        lanes: usize,
        layout: RingLayout,
        writable: bool,
    ) -> Result<Vec<Self>, RingError> {
        Self::cut(lanes, layout, |bytes| Mapping::of(map, bytes, 0, writable))
    }

    /// The lanes of a ring in memory of this process.
    pub fn anonymous(lanes: usize, layout: RingLayout) -> Result<Vec<Self>, RingError> {
        Self::cut(lanes, layout, Mapping::anonymous)
    }

    fn cut(
        lanes: usize,
        layout: RingLayout,
        map: impl FnOnce(usize) -> Result<Mapping, rustix::io::Errno>,
    ) -> Result<Vec<Self>, RingError> {
        let lane_bytes = lane_bytes(&layout);
        let of_lane = |mapping, start_bytes| Self {
            mapping,
            start_bytes,
            layout,
        };
        cut(lanes, lane_bytes, map, of_lane)
    }

    #[inline]
    fn word(&self, offset_bytes: usize) -> &AtomicU64 {
        self.mapping.word(self.start_bytes + offset_bytes)
    }

    /// Where the data of a position starts in the mapping.
    #[inline]
    fn data_start(&self, position: u64) -> usize {
        let offset = (position & (self.layout.size_bytes - 1)) as usize;
        self.start_bytes + LANE_HEADER_BYTES + offset
    }

    /// The constants of the ring.
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Bytes reserved by writers since the ring was made.
    #[inline]
    pub fn reserved_bytes(&self) -> &AtomicU64 {
        self.word(offset_of!(LaneHeader, reserved_bytes))
    }

    /// Records written since the ring was made.
    #[inline]
    pub fn records(&self) -> &AtomicU64 {
        self.word(offset_of!(LaneHeader, records))
    }

    /// Bytes of records that are whole.
    #[inline]
    pub fn committed_bytes(&self) -> &AtomicU64 {
        self.word(offset_of!(LaneHeader, committed_bytes))
    }

    /// A position below which every record is whole.
    #[inline]
    pub fn quiet_bytes(&self) -> &AtomicU64 {
        self.word(offset_of!(LaneHeader, quiet_bytes))
    }

    /// Records that were dropped because the lane was full.
    pub fn dropped_records(&self) -> &AtomicU64 {
        self.word(offset_of!(LaneHeader, dropped_records))
    }

    /// Where the first record of the `slot`-th part starts.
    pub fn boundary(&self, slot: usize) -> &AtomicU64 {
        self.word(offset_of!(LaneHeader, boundary) + 8 * (slot % LANE_INDEX_SLOTS))
    }

    /// `count` words of data from a position; they may run into the slack.
    #[inline]
    pub fn data(&self, position: u64, count: usize) -> &[AtomicU64] {
        self.mapping.words(self.data_start(position), count)
    }

    /// Appends `count` words of data from a position to `out`; they may run into the slack.
    pub fn append_data(&self, position: u64, count: usize, out: &mut Vec<u64>) {
        self.mapping
            .append_words(self.data_start(position), count, out);
    }

    /// A position below which every record is whole, as far as that is known without reading
    /// each.
    pub fn whole_bytes(&self) -> u64 {
        // In this order: if they are equal, no writer was half-way at this position.
        let committed = self.committed_bytes().load(Ordering::Acquire);
        let reserved = self.reserved_bytes().load(Ordering::Acquire);
        match committed == reserved || self.layout.writers_alone != 0 {
            true => committed,
            false => self.quiet_bytes().load(Ordering::Acquire),
        }
    }

    /// The commit mark of a record at a position.
    #[inline]
    pub fn stamp(&self, position: u64) -> u64 {
        position ^ self.layout.secret
    }
}
