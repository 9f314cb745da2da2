//! A second of CPU time and 256 MiB of Rust's heap for one input; ten seconds to merge filters.

use rustix::time::{ClockId, clock_gettime};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

const SECONDS_MAX: f64 = 1.0;
/// A merge is limited by visits, which are slow in a fuzzing build: see docs/filters.md.
const MERGE_SECONDS_MAX: f64 = 10.0;
const BYTES_MAX: isize = 256 << 20;

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, with the current and the peak number of bytes of each thread.
struct Counting;

fn count(bytes: isize) {
    // A thread that ends has already dropped these variables, and its last bytes do not matter.
    let _ = LIVE_BYTES.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK_BYTES.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: everything is done by the system's allocator; the counters allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are handed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are handed on.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promises are handed on.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Runs the parser of this name, and panics if it exceeds a limit. Other threads do not count.
pub fn within<R>(name: &str, work: impl FnOnce() -> R) -> R {
    let began_bytes = LIVE_BYTES.get();
    PEAK_BYTES.set(began_bytes);
    let began_s = cpu_s();
    let done = work();
    let spent_s = cpu_s() - began_s;
    let taken_bytes = PEAK_BYTES.get() - began_bytes;
    let limit_s = match name {
        "filters" => MERGE_SECONDS_MAX,
        _ => SECONDS_MAX,
    };
    assert!(spent_s <= limit_s, "it took {spent_s:.2} s");
    assert!(
        taken_bytes <= BYTES_MAX,
        "it took {} MiB",
        taken_bytes >> 20
    );
    done
}

#[test]
fn exceeded_limits_are_detected() {
    let found = |work: fn()| std::panic::catch_unwind(|| within("test", work)).is_err();
    // Reserved and not written: where a virtual machine has yet to give the pages, writing takes longer than a second.
    fn reserve(mib: usize) {
        drop(std::hint::black_box(Vec::<u8>::with_capacity(mib << 20)));
    }
    assert!(found(|| reserve(257)));
    assert!(!found(|| reserve(255)));
    assert!(found(|| {
        let began_s = cpu_s();
        while cpu_s() < began_s + 1.1 {}
    }));
}
