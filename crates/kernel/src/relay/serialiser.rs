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
        if arrival_ns > self.whole_ns {
            self.whole_ns = arrival_ns;
            self.remainder = 0;
        }
        let work = size_bytes * 8 * 1_000_000_000 + self.remainder;
        self.whole_ns += work / rate_bps;
        self.remainder = work % rate_bps;
        self.free_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::Serialiser;

    #[test]
    fn rounding_never_adds_up_while_it_is_busy_and_a_rest_is_no_head_start() {
        // 14 bytes at 3 bit/ns take 37 1/3 ns.
        let mut busy = Serialiser::default();
        let times: Vec<u64> = (0..3)
            .map(|_| busy.serialise(0, 14, 3_000_000_000))
            .collect();
        assert_eq!(times, [38, 75, 112]);
        // One that comes when the last bit has just left begins then.
        let mut idle = Serialiser::default();
        assert_eq!(idle.serialise(0, 14, 3_000_000_000), 38);
        assert_eq!(idle.serialise(38, 14, 3_000_000_000), 38 + 38);
    }
}
