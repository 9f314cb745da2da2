//! The ring: per-CPU lanes in shared memory, written without locks, read by any number of readers.
//!
//! `bpf/abi.h` describes the layout; the kernel's writing end is `bpf/ring.h`. Here are the
//! mapped memory ([`memory`]), the reading end of a lane ([`reader`]) and of all ([`merge`]), a writing end in user space for tests
//! and for instruments that have no kernel side ([`writer`]), and the readers' register that
//! slow-reader preference needs ([`registry`]).

pub mod memory;
pub mod merge;
pub mod reader;
pub mod registry;
pub mod writer;

use parshall_core::abi::{LANE_HEADER_BYTES, LANE_INDEX_SLOTS, LANE_SLACK_BYTES, RingLayout};
use serde::Deserialize;

/// Who waits for whom when a reader lags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Preference {
    /// Writers never wait; a reader that lags loses records and counts them.
    #[serde(rename = "fast")]
    FastReader,
    /// Writers drop and count new records while the ring of the slowest reader is full.
    #[serde(rename = "slow")]
    SlowReader,
}

/// Why a ring cannot be made or opened.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document variants and fields")]
pub enum RingError {
    #[error("ring size {size_bytes} bytes a CPU: expected a power of two from {min} to {max}", min = LANE_SIZE_MIN_BYTES, max = LANE_SIZE_MAX_BYTES)]
    Size { size_bytes: u64 },
    #[error(
        "ring of {lanes} lanes of {lane_bytes} bytes could not be mapped: {source}; choose a smaller ring"
    )]
    Map {
        lanes: usize,
        lane_bytes: usize,
        source: rustix::io::Errno,
    },
    #[error("ring has {max} readers already: end one first", max = parshall_core::abi::RING_READERS_MAX)]
    Readers,
}

/// Records younger than this wait for the next poll, so that lanes can be merged by time although a hook on another CPU may
/// still be at work.
pub const HOLD_BACK_NS: u64 = 1_000_000;
/// Smallest data area of a lane: its parts must hold the largest TCP record.
pub const LANE_SIZE_MIN_BYTES: u64 = 16 * 1024;
/// Largest data area of a lane: the verifier's bound on offsets into a map value.
pub const LANE_SIZE_MAX_BYTES: u64 = 256 * 1024 * 1024;

/// Makes the constants of a ring of small records, with a fresh secret.
///
/// # Errors
/// [`RingError::Size`] unless `size_bytes` is a power of two within bounds.
pub fn layout(size_bytes: u64, preference: Preference) -> Result<RingLayout, RingError> {
    layout_with_slack(size_bytes, preference, LANE_SLACK_BYTES)
}

/// Makes the constants of a ring whose records have up to `slack_bytes` bytes, with a fresh secret.
pub fn layout_with_slack(
    size_bytes: u64,
    preference: Preference,
    slack_bytes: usize,
) -> Result<RingLayout, RingError> {
    if !size_bytes.is_power_of_two()
        || !(LANE_SIZE_MIN_BYTES..=LANE_SIZE_MAX_BYTES).contains(&size_bytes)
    {
        return Err(RingError::Size { size_bytes });
    }
    Ok(RingLayout {
        size_bytes,
        part_shift: u64::from((size_bytes / LANE_INDEX_SLOTS as u64).trailing_zeros()),
        secret: random_secret(),
        wait_for_readers: u64::from(preference == Preference::SlowReader),
        slack_bytes: slack_bytes as u64,
        writers_alone: 0,
    })
}

/// Bytes of one lane with its header and slack: a whole number of pages.
pub fn lane_bytes(layout: &RingLayout) -> usize {
    LANE_HEADER_BYTES + layout.size_bytes as usize + layout.slack_bytes as usize
}

/// Whether `writers_alone` of a layout holds on this host: programs with bottom halves disabled run
/// one after another on a CPU, and stores keep their order.
pub fn bottom_halves_run_alone() -> bool {
    let uname = rustix::system::uname();
    let is_real_time = uname
        .version()
        .to_bytes()
        .windows(10)
        .any(|part| part == b"PREEMPT_RT");
    cfg!(target_arch = "x86_64") && !is_real_time
}

fn random_secret() -> u64 {
    let mut bytes = [0; 8];
    // getrandom gives 8 bytes at once on every kernel that runs eBPF; if it ever did not, a clock
    // still keeps network bytes from guessing.
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => {
            rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_nsec as u64
                ^ 0x9e37_79b9_7f4a_7c15
        }
    }
}
