//! Time in a model: whole picoseconds since the start, in 64 bits, which are 213 days.
//!
//! Sums of integers do not depend on their order, so that runs can be compared to the last bit. A processor cycle is
//! hundreds of picoseconds.

/// Picoseconds in a nanosecond.
pub const PS_PER_NS: u64 = 1000;

/// The nearest whole picosecond.
#[inline]
pub fn picoseconds(ns: impl std::borrow::Borrow<f64>) -> u64 {
    whole(ns.borrow() * PS_PER_NS as f64)
}

/// The nearest integer of a number that is not negative; halves are rounded up.
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
