//! What a log that runs knows of itself at each tick, for those who watch it.

use std::collections::BTreeMap;

use parshall_core::ledger::Ledger;
use parshall_core::tcp_log::ListenerRow;
use serde::Serialize;

use super::budget::BudgetAccount;

/// Microseconds; from a rack to a satellite.
const SRTT_BOUNDS_US: [u32; 20] = [
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 50_000, 70_000, 100_000,
    150_000, 200_000, 300_000, 500_000, 1_000_000, 2_000_000, 5_000_000,
];

/// The account of a log at its last tick.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunningAccount {
    /// The ledger of the whole run.
    pub ledger: Ledger,
    /// Flows that have not ended.
    pub flows_open: u64,
    /// Flows that ended, by how.
    pub flows_ended: BTreeMap<&'static str, u64>,
    /// Listeners that refused something, those that refused most first.
    pub listeners: Vec<ListenerRow>,
    /// Segments that came to listeners for which the kernel's table had no room.
    pub segments_unlisted: u64,
    /// Segments that were sent again, by cause.
    pub sent_again: BTreeMap<&'static str, u64>,
    /// Smoothed round-trip times.
    pub srtt: SrttHistogram,
    /// What the budget came to; `None`: there is none.
    pub budget: Option<BudgetAccount>,
}

/// The smoothed round-trip time of each flow that had packets, once a tick.
#[derive(Clone, Debug, Serialize)]
pub struct SrttHistogram {
    /// Upper bounds of the buckets, microseconds; longer times are in one more bucket.
    pub bounds_us: [u32; SRTT_BOUNDS_US.len()],
    /// Times in each bucket.
    pub counts: [u64; SRTT_BOUNDS_US.len() + 1],
    /// Their sum, microseconds.
    pub sum_us: u64,
}

impl Default for SrttHistogram {
    fn default() -> Self {
        Self {
            bounds_us: SRTT_BOUNDS_US,
            counts: Default::default(),
            sum_us: 0,
        }
    }
}

impl SrttHistogram {
    /// Adds a time.
    pub fn add(&mut self, srtt_us: u32) {
        let bucket = SRTT_BOUNDS_US.partition_point(|bound| *bound < srtt_us);
        self.counts[bucket] += 1;
        self.sum_us += u64::from(srtt_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_bucket_whose_bound_it_does_not_exceed() {
        let mut histogram = SrttHistogram::default();
        for time in [1, 50, 51, 5_000_000, 5_000_001, u32::MAX] {
            histogram.add(time);
        }
        let last = SRTT_BOUNDS_US.len();
        assert_eq!(histogram.counts[..2], [2, 1]);
        assert_eq!(histogram.counts[last - 1..], [1, 2]);
        assert_eq!(histogram.counts.iter().sum::<u64>(), 6);
    }
}
