//! Histograms of times in log-linear buckets, as the programs of the kernel fill them.

use crate::abi::PATH_BUCKETS;

/// Smallest time of a bucket, ns: 8 buckets to each power of two, and below 8 ns one for each.
pub fn bucket_from_ns(bucket: usize) -> u64 {
    match bucket {
        0..8 => bucket as u64,
        _ => (8 + bucket as u64 % 8) << (bucket / 8 - 1),
    }
}

/// Times by bucket, summed over CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeHistogram {
    /// Times in each bucket.
    pub counts: [u64; PATH_BUCKETS],
    /// Sum of all, ns.
    pub sum_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
}

impl Default for TimeHistogram {
    fn default() -> Self {
        Self {
            counts: [0; PATH_BUCKETS],
            sum_ns: 0,
            max_ns: 0,
        }
    }
}

impl TimeHistogram {
    /// Number of times.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds a part of the same histogram.
    pub fn add(&mut self, counts: impl IntoIterator<Item = u64>, sum_ns: u64, max_ns: u64) {
        for (total, count) in self.counts.iter_mut().zip(counts) {
            *total += count;
        }
        self.sum_ns += sum_ns;
        self.max_ns = self.max_ns.max(max_ns);
    }

    /// What was added since an earlier state of it.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            counts: std::array::from_fn(|bucket| {
                self.counts[bucket].saturating_sub(before.counts[bucket])
            }),
            sum_ns: self.sum_ns.saturating_sub(before.sum_ns),
            max_ns: self.max_ns,
        }
    }

    /// The time that a fraction of all times does not exceed, ns; linear within its bucket. NaN without times.
    pub fn quantile_ns(&self, fraction: f64) -> f64 {
        let total = self.total();
        if total == 0 {
            return f64::NAN;
        }
        let wanted = fraction * total as f64;
        let mut below = 0.0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            let count = count as f64;
            if count > 0.0 && below + count >= wanted {
                let from = bucket_from_ns(bucket) as f64;
                let until = bucket_from_ns(bucket + 1) as f64;
                if until - from <= 1.0 {
                    return from;
                }
                let part = ((wanted - below) / count).clamp(0.0, 1.0);
                return (from + part * (until - from)).min(self.max_ns as f64);
            }
            below += count;
        }
        self.max_ns as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bucket of a time, by the definition in `bpf/abi.h`.
    fn bucket_of(time_ns: u32) -> usize {
        if time_ns < 8 {
            return time_ns as usize;
        }
        let log2 = time_ns.ilog2() as usize;
        (log2 - 2) * 8 + (time_ns >> (log2 - 3) & 7) as usize
    }

    #[test]
    fn a_time_that_fills_its_bucket_is_exact() {
        let mut histogram = TimeHistogram::default();
        histogram.counts[0] = 5;
        histogram.counts[7] = 5;
        histogram.max_ns = 7;
        assert_eq!(
            (histogram.quantile_ns(0.4), histogram.quantile_ns(0.9)),
            (0.0, 7.0)
        );
    }

    proptest! {
        #[test]
        fn a_time_lies_in_its_bucket(time_ns in any::<u32>()) {
            let bucket = bucket_of(time_ns);
            prop_assert!(bucket_from_ns(bucket) <= time_ns.into());
            prop_assert!(bucket_from_ns(bucket + 1) > time_ns.into());
        }

        #[test]
        fn a_quantile_is_at_most_a_bucket_away(mut times in prop::collection::vec(1_u32..10_000_000, 1..300), fraction in 0.01_f64..1.0) {
            let mut histogram = TimeHistogram::default();
            for time in &times {
                histogram.counts[bucket_of(*time)] += 1;
                histogram.max_ns = histogram.max_ns.max((*time).into());
            }
            times.sort_unstable();
            let rank = ((fraction * times.len() as f64).ceil() as usize).clamp(1, times.len());
            let exact = f64::from(times[rank - 1]);
            let found = histogram.quantile_ns(fraction);
            prop_assert!((found - exact).abs() <= 0.125 * exact + 1.0, "{found} {exact}");
        }
    }
}
