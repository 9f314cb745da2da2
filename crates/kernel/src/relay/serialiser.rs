//! The serialiser: frames leave one after the other, each after the time that its bits take.

/// When the serialiser has finished all that it was given.
#[derive(Clone, Debug, Default)]
pub struct Serialiser {
    /// At `whole_ns + remainder / rate`: whole nanoseconds and the exact rest, so that rounding never adds up.
    whole_ns: u64,
    remainder: u64,
}

impl Serialiser {
    /// When it is free, rounded up to a nanosecond.
    pub fn free_ns(&self) -> u64 {
        self.whole_ns + u64::from(self.remainder > 0)
    }

    /// Takes a frame, at once or when it is free (Lindley's recursion); returns when the last bit has left.
    pub fn serialise(&mut self, arrival_ns: u64, size_bytes: u64, rate_bps: u64) -> u64 {
        if arrival_ns > self.free_ns() {
            self.whole_ns = arrival_ns;
            self.remainder = 0;
        }
        let work = size_bytes * 8 * 1_000_000_000 + self.remainder;
        self.whole_ns += work / rate_bps;
        self.remainder = work % rate_bps;
        self.free_ns()
    }
}
