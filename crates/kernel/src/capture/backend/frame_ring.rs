//! The rings between an `AF_XDP` socket and the kernel.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;

use super::mapping::Mapping;

/// A ring of one producer and one consumer, of which the kernel is one.
pub(crate) struct Ring {
    mapping: Mapping,
    producer_at: usize,
    consumer_at: usize,
    entries_at: usize,
    /// Entries, a power of two, less one.
    mask: u32,
}

impl Ring {
    pub(crate) fn map<T>(
        fd: BorrowedFd<'_>,
        offsets: &libc::xdp_ring_offset,
        entries: u32,
        page_offset: u64,
    ) -> io::Result<Self> {
        let entries_at = offsets.desc as usize;
        let bytes = entries_at + entries as usize * size_of::<T>();
        Ok(Self {
            mapping: Mapping::of(fd, bytes, page_offset)?,
            producer_at: offsets.producer as usize,
            consumer_at: offsets.consumer as usize,
            entries_at,
            mask: entries - 1,
        })
    }

    pub(crate) fn producer(&self) -> &AtomicU32 {
        // SAFETY: aligned and inside the mapping, as `at` checks; both sides go about it as an atomic.
        unsafe { AtomicU32::from_ptr(self.mapping.at(self.producer_at)) }
    }

    pub(crate) fn consumer(&self) -> &AtomicU32 {
        // SAFETY: aligned and inside the mapping, as `at` checks; both sides go about it as an atomic.
        unsafe { AtomicU32::from_ptr(self.mapping.at(self.consumer_at)) }
    }

    /// The entry of a position.
    pub(crate) fn entry<T>(&self, position: u32) -> *mut T {
        let number = (position & self.mask) as usize;
        self.mapping.at(self.entries_at + number * size_of::<T>())
    }
}
