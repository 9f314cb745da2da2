//! How much memory a piece of work takes, counted for each thread. What would take far too much fails
//! the test, before it takes this machine's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Far above what any test needs.
const THREAD_MAX_BYTES: isize = 2 << 30;

thread_local! {
    static USED_BYTES: Cell<isize> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(bytes: isize) -> bool {
    let used = USED_BYTES.get() + bytes;
    if bytes > 0 && used > THREAD_MAX_BYTES {
        return false;
    }
    USED_BYTES.set(used);
    PEAK_BYTES.set(PEAK_BYTES.get().max(used));
    true
}

// SAFETY: the system's allocator does the work; no memory at all is an answer that it may give, too.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match count(layout.size() as isize) {
            // SAFETY: as promised to us.
            true => unsafe { System.alloc(layout) },
            false => std::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as promised to us.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that the calling thread held during `work`, above what it held before.
pub fn peak_bytes<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = USED_BYTES.get();
    PEAK_BYTES.set(before);
    let result = work();
    let peak = PEAK_BYTES.get() - before;
    (result, usize::try_from(peak).unwrap_or(0))
}
