//! The clocks: what the kernel's records count in, and what a log shows.

use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};

fn nanoseconds(time: Timespec) -> i64 {
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// `CLOCK_MONOTONIC`, the clock of the records, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic)) as u64
}

/// `CLOCK_REALTIME`, in nanoseconds.
pub fn realtime_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Realtime)) as u64
}

/// CPU time of the calling thread in seconds.
pub fn thread_cpu_s() -> f64 {
    nanoseconds(clock_gettime(ClockId::ThreadCPUTime)) as f64 / 1e9
}

/// Nanoseconds to add to `CLOCK_MONOTONIC` to get `CLOCK_REALTIME`: the tightest of a few readings, so
/// that an interruption between the two clocks does not count.
pub fn realtime_offset_ns() -> i64 {
    (0..16)
        .map(|_| {
            let before = nanoseconds(clock_gettime(ClockId::Monotonic));
            let realtime = nanoseconds(clock_gettime(ClockId::Realtime));
            let after = nanoseconds(clock_gettime(ClockId::Monotonic));
            (after - before, realtime - (before + after) / 2)
        })
        .min()
        .map_or(0, |(_, offset)| offset)
}

/// The kernel's `CONFIG_HZ`: the coarse clocks advance once a tick.
pub fn kernel_hz() -> u32 {
    let tick_ns = nanoseconds(clock_getres(ClockId::MonotonicCoarse)).max(1);
    ((1_000_000_000 + tick_ns / 2) / tick_ns) as u32
}
