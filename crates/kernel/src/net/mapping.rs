//! Memory that is shared with the kernel, unmapped when it is dropped.
//!
//! Writers and readers touch the same bytes at the same time by design. So shared memory is reached through atomics,
//! or through pointers whose users know from a protocol when the bytes are theirs.

use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libbpf_rs::{MapHandle, MapType};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::programs::calls::create_map;

/// Makes an array of `entries` values that can be mapped.
pub fn mappable_array(
    name: &str,
    value_bytes: usize,
    entries: usize,
) -> libbpf_rs::Result<MapHandle> {
    let options = libbpf_sys::bpf_map_create_opts {
        map_flags: libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    create_map(MapType::Array, name, value_bytes, entries, options)
}

/// A mapping that is undone when it is dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length_bytes: usize,
}

// SAFETY: no thread is bound to the memory, and the mapping outlives every reference.
unsafe impl Send for Mapping {}
// SAFETY: shared references reach the memory through atomics, or through raw pointers whose use is unsafe.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length_bytes` of what a descriptor offers, from an offset on.
    pub fn of(
        descriptor: impl AsFd,
        length_bytes: usize,
        offset_bytes: u64,
        is_writable: bool,
    ) -> Result<Self, Errno> {
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, is_writable);
        // SAFETY: a new mapping at an address that the kernel chooses aliases no other memory.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                length_bytes,
                protection,
                MapFlags::SHARED,
                descriptor,
                offset_bytes,
            )?
        };
        Self::over(start, length_bytes)
    }

    /// Maps zeroed memory of this process.
    pub fn anonymous(length_bytes: usize) -> Result<Self, Errno> {
        Self::zeroed(length_bytes, MapFlags::PRIVATE)
    }

    /// Maps zeroed memory that children of this process keep in common with it after a fork.
    pub fn common_after_fork(length_bytes: usize) -> Result<Self, Errno> {
        Self::zeroed(length_bytes, MapFlags::SHARED)
    }

    fn zeroed(length_bytes: usize, flags: MapFlags) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `of`.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), length_bytes, protection, flags)? };
        Self::over(start, length_bytes)
    }

    fn over(start: *mut std::ffi::c_void, length_bytes: usize) -> Result<Self, Errno> {
        Ok(Self {
            start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?,
            length_bytes,
        })
    }

    /// Length, bytes.
    pub fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// A pointer to a `T` at a byte offset.
    ///
    /// # Panics
    /// When it would not be aligned, or not lie inside the mapping: a caller's mistake.
    #[inline]
    pub fn pointer<T>(&self, offset_bytes: usize) -> *mut T {
        self.array(offset_bytes, 1)
    }

    /// A pointer to `count` values of `T` from a byte offset on.
    #[inline]
    fn array<T>(&self, offset_bytes: usize, count: usize) -> *mut T {
        assert!(
            offset_bytes.is_multiple_of(align_of::<T>())
                && offset_bytes + size_of::<T>() * count <= self.length_bytes
        );
        // SAFETY: inside the mapping, as just asserted; aligned, since mappings start at a page.
        unsafe { self.start.as_ptr().add(offset_bytes).cast() }
    }

    /// Bytes of the mapping; `None` when they would not lie inside it.
    ///
    /// # Safety
    /// While the slice lives, nothing else may write there, neither the kernel nor an atomic.
    pub unsafe fn bytes_mut(
        &mut self,
        offset_bytes: usize,
        length_bytes: usize,
    ) -> Option<&mut [u8]> {
        if offset_bytes.checked_add(length_bytes)? > self.length_bytes {
            return None;
        }
        // SAFETY: inside the mapping, as just checked; ours alone, as the caller promises.
        Some(unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset_bytes), length_bytes)
        })
    }

    /// The 32-bit word at a byte offset.
    ///
    /// # Panics
    /// As [`Mapping::pointer`].
    #[inline]
    pub fn word32(&self, offset_bytes: usize) -> &AtomicU32 {
        // SAFETY: aligned and inside the mapping, as `pointer` asserts; any bytes are a value.
        unsafe { AtomicU32::from_ptr(self.pointer(offset_bytes)) }
    }

    /// The 64-bit word at a byte offset.
    ///
    /// # Panics
    /// As [`Mapping::pointer`].
    #[inline]
    pub fn word(&self, offset_bytes: usize) -> &AtomicU64 {
        // SAFETY: aligned and inside the mapping, as `pointer` asserts; any bytes are a value.
        unsafe { AtomicU64::from_ptr(self.pointer(offset_bytes)) }
    }

    /// `count` 64-bit words from a byte offset on.
    ///
    /// # Panics
    /// As [`Mapping::pointer`].
    #[inline]
    pub fn words(&self, offset_bytes: usize, count: usize) -> &[AtomicU64] {
        let start = self.array::<AtomicU64>(offset_bytes, count);
        // SAFETY: as in `word`.
        unsafe { std::slice::from_raw_parts(start, count) }
    }

    /// Stores 64-bit words from a byte offset on. The mapping must be writable.
    ///
    /// # Panics
    /// As [`Mapping::pointer`].
    pub fn store_words(&self, offset_bytes: usize, words: &[u64]) {
        let places = self.words(offset_bytes, words.len());
        for (place, word) in places.iter().zip(words) {
            place.store(*word, Ordering::Relaxed);
        }
    }

    /// Appends `count` 64-bit words from a byte offset on to `out`, in one go.
    ///
    /// # Panics
    /// As [`Mapping::pointer`].
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
        // SAFETY: this is the mapping we made; references into it borrow it, so none is left. An
        // error is impossible for a whole mapping of ours, and nothing could be done about it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length_bytes) };
    }
}
