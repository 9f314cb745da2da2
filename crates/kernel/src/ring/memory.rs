//! Lanes in mapped memory, seen as atomic words.
//!
//! Writers and readers touch the same bytes at the same time by design, so every access goes
//! through `AtomicU64`: what was read is checked afterwards, and nothing here is undefined.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::{MapHandle, MapType};
use parshall_core::abi::{LANE_HEADER_BYTES, LANE_INDEX_SLOTS, RingLayout};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::{RingError, lane_bytes};

/// Makes an array of `entries` values that can be mapped.
///
/// # Errors
/// What the kernel says.
pub fn mappable_array(
    name: &str,
    value_bytes: usize,
    entries: usize,
) -> libbpf_rs::Result<MapHandle> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    MapHandle::create(
        MapType::Array,
        Some(name),
        4,
        value_bytes as u32,
        entries as u32,
        &options,
    )
}

/// A mapping that is undone when its last user is gone.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length_bytes: usize,
}

// SAFETY: the memory is only reached through atomics, and the mapping outlives every reference.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length_bytes` of a map that was made with `BPF_F_MMAPABLE`.
    ///
    /// # Errors
    /// What `mmap(2)` says.
    pub fn of_map(
        map: impl AsFd,
        length_bytes: usize,
        writable: bool,
    ) -> Result<Self, rustix::io::Errno> {
        let protection = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                length_bytes,
                protection,
                MapFlags::SHARED,
                map,
                0,
            )?
        };
        Ok(Self {
            start: NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?,
            length_bytes,
        })
    }

    /// Maps zeroed memory of this process.
    ///
    /// # Errors
    /// What `mmap(2)` says.
    pub fn anonymous(length_bytes: usize) -> Result<Self, rustix::io::Errno> {
        // SAFETY: as in `of_map`.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                length_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )?
        };
        Ok(Self {
            start: NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?,
            length_bytes,
        })
    }

    /// The word at a byte offset.
    ///
    /// # Panics
    /// When the offset is not a multiple of 8 or lies outside: a caller's mistake.
    #[inline]
    pub fn word(&self, offset_bytes: usize) -> &AtomicU64 {
        assert!(offset_bytes.is_multiple_of(8) && offset_bytes + 8 <= self.length_bytes);
        // SAFETY: inside the mapping and aligned, as just asserted (mappings start at a page);
        // AtomicU64 has the layout of u64 and any bytes are a value of it.
        unsafe { &*self.start.as_ptr().add(offset_bytes).cast::<AtomicU64>() }
    }

    /// `count` words from a byte offset.
    ///
    /// # Panics
    /// As [`Mapping::word`].
    #[inline]
    pub fn words(&self, offset_bytes: usize, count: usize) -> &[AtomicU64] {
        assert!(offset_bytes.is_multiple_of(8) && offset_bytes + 8 * count <= self.length_bytes);
        // SAFETY: as in `word`.
        unsafe {
            std::slice::from_raw_parts(
                self.start.as_ptr().add(offset_bytes).cast::<AtomicU64>(),
                count,
            )
        }
    }

    /// Appends `count` words from a byte offset to `out`, in one go.
    ///
    /// # Panics
    /// As [`Mapping::word`].
    pub fn append_words(&self, offset_bytes: usize, count: usize, out: &mut Vec<u64>) {
        let words = self.words(offset_bytes, count);
        #[cfg(target_arch = "x86_64")]
        {
            out.reserve(count);
            // SAFETY: both ends have so many bytes, one in the mapping and one reserved, and do not
            // overlap. Others may write the words meanwhile: to the machine these are loads like any,
            // and any bytes are a value. The vector has its words only when they are written.
            unsafe {
                // By words: by bytes, processors of AMD take two to four times as long for a copy whose
                // place in its page is a few bytes behind that of the original.
                std::arch::asm!(
                    "rep movsq",
                    inout("rcx") count => _,
                    inout("rsi") words.as_ptr() => _,
                    inout("rdi") out.as_mut_ptr().add(out.len()) => _,
                    options(nostack, preserves_flags),
                );
                out.set_len(out.len() + count);
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        out.extend(words.iter().map(|word| word.load(Ordering::Relaxed)));
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping we made; nobody can hold a reference into it any more. An
        // error is impossible for a whole mapping of ours, and nothing could be done about it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length_bytes) };
    }
}

/// One lane of a ring: cheap to clone, keeps the mapping alive.
#[derive(Clone, Debug)]
pub struct Lane {
    mapping: Arc<Mapping>,
    start_bytes: usize,
    layout: RingLayout,
}

const RESERVED_WORD: usize = 0;
const COMMITTED_WORD: usize = 8;
const QUIET_WORD: usize = 16;
const RECORDS_WORD: usize = 24;
const DROPPED_WORD: usize = 32;
const BOUNDARY_WORDS: usize = 64;

impl Lane {
    /// The lanes of a ring whose map is `map`.
    ///
    /// # Errors
    /// [`RingError::Map`].
    pub fn of_map(
        map: impl AsFd,
        lanes: usize,
        layout: RingLayout,
        writable: bool,
    ) -> Result<Vec<Self>, RingError> {
        Self::cut(lanes, layout, |bytes| Mapping::of_map(map, bytes, writable))
    }

    /// The lanes of a ring in memory of this process.
    ///
    /// # Errors
    /// [`RingError::Map`].
    pub fn anonymous(lanes: usize, layout: RingLayout) -> Result<Vec<Self>, RingError> {
        Self::cut(lanes, layout, Mapping::anonymous)
    }

    fn cut(
        lanes: usize,
        layout: RingLayout,
        map: impl FnOnce(usize) -> Result<Mapping, rustix::io::Errno>,
    ) -> Result<Vec<Self>, RingError> {
        let lane_bytes = lane_bytes(&layout);
        let mapping = map(lane_bytes * lanes).map_err(|source| RingError::Map {
            lanes,
            lane_bytes,
            source,
        })?;
        let mapping = Arc::new(mapping);
        Ok((0..lanes)
            .map(|lane| Self {
                mapping: Arc::clone(&mapping),
                start_bytes: lane * lane_bytes,
                layout,
            })
            .collect())
    }

    /// The constants of the ring.
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Bytes reserved by writers since the ring was made.
    #[inline]
    pub fn reserved_bytes(&self) -> &AtomicU64 {
        self.mapping.word(self.start_bytes + RESERVED_WORD)
    }

    /// Records written since the ring was made.
    #[inline]
    pub fn records(&self) -> &AtomicU64 {
        self.mapping.word(self.start_bytes + RECORDS_WORD)
    }

    /// Bytes of records that are whole.
    #[inline]
    pub fn committed_bytes(&self) -> &AtomicU64 {
        self.mapping.word(self.start_bytes + COMMITTED_WORD)
    }

    /// A position below which every record is whole.
    #[inline]
    pub fn quiet_bytes(&self) -> &AtomicU64 {
        self.mapping.word(self.start_bytes + QUIET_WORD)
    }

    /// Records that were refused for want of room.
    pub fn dropped_records(&self) -> &AtomicU64 {
        self.mapping.word(self.start_bytes + DROPPED_WORD)
    }

    /// Where the first record of the `slot`-th part starts.
    pub fn boundary(&self, slot: usize) -> &AtomicU64 {
        self.mapping
            .word(self.start_bytes + BOUNDARY_WORDS + 8 * (slot % LANE_INDEX_SLOTS))
    }

    /// `count` words of data from a position; they may run into the slack.
    #[inline]
    pub fn data(&self, position: u64, count: usize) -> &[AtomicU64] {
        let offset = (position & (self.layout.size_bytes - 1)) as usize;
        self.mapping
            .words(self.start_bytes + LANE_HEADER_BYTES + offset, count)
    }

    /// Appends `count` words of data from a position to `out`; they may run into the slack.
    pub fn append_data(&self, position: u64, count: usize, out: &mut Vec<u64>) {
        let offset = (position & (self.layout.size_bytes - 1)) as usize;
        self.mapping
            .append_words(self.start_bytes + LANE_HEADER_BYTES + offset, count, out);
    }

    /// A position below which every record is whole, as far as that is known without a look at
    /// each.
    pub fn whole_bytes(&self) -> u64 {
        // In this order: equal, they say that nobody was half-way at this position.
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
