//! Memory that is shared with the kernel, unmapped when it is dropped.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags};

/// A mapping of its own, readable and writable.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to the mapping alone on this side, and no thread is bound to it; what the
// kernel writes is guarded by the protocols of those who use it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps a part of what a descriptor offers.
    pub(crate) fn of(fd: BorrowedFd<'_>, bytes: usize, offset: u64) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses; nothing else is there.
        let start =
            unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, protection, flags, fd, offset) }?;
        Ok(Self::new(start, bytes))
    }

    /// Maps zeros.
    pub(crate) fn zeros(bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses; nothing else is there.
        let start =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags) }?;
        Ok(Self::new(start, bytes))
    }

    fn new(start: *mut std::ffi::c_void, bytes: usize) -> Self {
        let start = NonNull::new(start.cast()).expect("mmap gives no null pointer");
        Self { start, bytes }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A pointer to a `T` at `offset`.
    ///
    /// # Panics
    /// When it would not lie inside the mapping, or not be aligned.
    pub(crate) fn at<T>(&self, offset: usize) -> *mut T {
        let end = offset.checked_add(size_of::<T>());
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "{offset} is outside of a mapping of {} bytes",
            self.bytes
        );
        // SAFETY: offset is inside the mapping, as was just checked.
        let pointer = unsafe { self.start.as_ptr().add(offset) }.cast::<T>();
        assert!(pointer.is_aligned(), "{offset} is not aligned");
        pointer
    }

    /// Bytes of the mapping; `None` when they would not lie inside it.
    ///
    /// # Safety
    /// The kernel must not write there while the slice lives.
    pub(crate) unsafe fn slice(&mut self, offset: usize, bytes: usize) -> Option<&mut [u8]> {
        if offset.checked_add(bytes)? > self.bytes {
            return None;
        }
        // SAFETY: inside the mapping, as was just checked; ours alone, as the caller promises.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), bytes) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and bytes are those of a mapping that nobody else unmaps; slices of it
        // borrow it, so none is left. It fails only for wrong addresses.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
