//! Time of the model: whole picoseconds since its start, in 64 bits.
//!
//! Whole numbers, so that sums do not depend on their order and runs can be compared to the last
//! bit; picoseconds, so that a cycle of a processor is hundreds of them. They last 213 days.

/// Picoseconds of a nanosecond.
pub const PS_PER_NS: u64 = 1000;

/// The nearest whole picosecond.
#[inline]
pub fn picoseconds(ns: impl std::borrow::Borrow<f64>) -> u64 {
    whole(ns.borrow() * PS_PER_NS as f64)
}

/// The nearest whole number of one that is not negative; halves go up.
#[inline]
pub fn whole(value: f64) -> u64 {
    // Not `round`, which is a call into the C library on processors without SSE 4.1.
    (value + 0.5) as u64
}

/// Nanoseconds, as results give them.
#[inline]
pub fn nanoseconds(ps: u64) -> f64 {
    ps as f64 / PS_PER_NS as f64
}

/// Seconds.
#[inline]
pub fn seconds(ps: u64) -> f64 {
    ps as f64 / 1e12
}
