//! What the packets of windows say of the whole time: their number, and quantiles of their times, with 95 % intervals.
//!
//! A window comes at a random time of a span, or after a random pause, whose length or mean was decided before. So it
//! stands for that time (D. Horvitz and D. Thompson, J. Am. Stat. Assoc. 47, 1952), as a part of all time without a window
//! (J. Hajek, 1971). What a window saw may decide on the next one; its own length must not depend on it.
//! With a budget both are true nearly: a window waits until ten seconds have room for it, and ends early where it costs much.

use parshall_core::abi::PATH_CODE_COUNT;
use parshall_core::path_log::{CODE_NAMES, TimeHistogram, bucket_from_ns};
use parshall_core::queueing::student_t;
use serde::Serialize;

const CONFIDENCE: f64 = 0.95;
/// With fewer windows after a pause, their spread says little.
const PAUSES_MIN: u32 = 10;
/// Groups of windows, between half of these and all, whose spread gives the interval of a quantile.
const GROUPS: usize = 40;
/// Packets above a quantile, over all windows, with fewer of which it is not estimated.
const PACKETS_ABOVE_MIN: f64 = 50.0;
/// How well the ends of a window are known, seconds: packets that are under way count in it, or do not.
const EDGE_S: f64 = 0.000_5;
/// Packets count in fractions of this.
const UNIT: f64 = 256.0;
const QUANTILES: [f64; 2] = [0.5, 0.99];

/// Packets of one code path in the whole time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathEstimate {
    /// Code path.
    pub path: &'static str,
    /// Packets, and their interval.
    pub packets: f64,
    /// See `packets`.
    pub low_packets: f64,
    /// See `packets`.
    pub high_packets: f64,
    /// Median of the time from first to last stage, ns, and its interval; `None`: too few packets or windows.
    pub median_ns: Option<[f64; 3]>,
    /// The 99th percentile, likewise.
    pub p99_ns: Option<[f64; 3]>,
}

/// What was measured in a window.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Seconds that it lasted.
    pub length_s: f64,
    /// Packets that ended in it, by code path.
    pub packets: [u64; PATH_CODE_COUNT],
    /// Their times from first to last stage, by code path.
    pub whole: Vec<TimeHistogram>,
}

/// Sums over the windows so far: their memory does not grow.
#[derive(Debug, Default)]
pub(super) struct Estimates {
    observed_s: f64,
    observed: [f64; PATH_CODE_COUNT],
    /// Windows after a pause, for which times they stand, and the squares of these.
    pauses: u32,
    stand_for_s: f64,
    squares: f64,
    /// Of the same windows: what they stand for, by their lengths.
    edges: f64,
    /// Of the same windows: rates, times what they stand for, its square; and squared rates, times its square.
    rates: [[f64; 3]; PATH_CODE_COUNT],
    groups: Vec<Vec<TimeHistogram>>,
    group_windows: u32,
    windows_in_last: u32,
}

impl Estimates {
    /// Takes in the next window, which stands for itself and for so many seconds without one: 0, if there was no pause.
    pub fn add(&mut self, window: &Window, stands_for_s: f64) {
        self.observed_s += window.length_s.max(1e-9);
        for code in 0..PATH_CODE_COUNT {
            self.observed[code] += window.packets[code] as f64;
            let per_s = window.packets[code] as f64 / window.length_s.max(1e-9);
            let [weighed, weighed_twice, squared] = &mut self.rates[code];
            *weighed += stands_for_s * per_s;
            *weighed_twice += stands_for_s.powi(2) * per_s;
            *squared += (stands_for_s * per_s).powi(2);
        }
        self.pauses += u32::from(stands_for_s > 0.0);
        self.stand_for_s += stands_for_s;
        self.squares += stands_for_s.powi(2);
        self.edges += stands_for_s / window.length_s.max(1e-9);
        self.weigh(window, 1.0 + stands_for_s / window.length_s.max(1e-9));
    }

    /// The estimates for a measurement of so many seconds; none with fewer than ten pauses.
    pub fn finish(&self, length_s: f64) -> Vec<PathEstimate> {
        if self.pauses < PAUSES_MIN {
            return Vec::new();
        }
        let unobserved_s = (length_s - self.observed_s).max(0.0);
        (0..PATH_CODE_COUNT)
            // Windows make packets open that would have ended.
            .filter(|&code| self.observed[code] > 0.0 && CODE_NAMES[code] != "open")
            .map(|code| self.estimate(code, unobserved_s))
            .collect()
    }

    fn estimate(&self, code: usize, unobserved_s: f64) -> PathEstimate {
        let [weighed, weighed_twice, squared] = self.rates[code];
        let per_s = weighed / self.stand_for_s;
        let residuals = squared - 2.0 * per_s * weighed_twice + per_s.powi(2) * self.squares;
        let windows = f64::from(self.pauses);
        let error = (residuals.max(0.0) * windows / (windows - 1.0)).sqrt() / self.stand_for_s;
        // Windows that stand for little add little.
        let equal_windows = self.stand_for_s.powi(2) / self.squares;
        let by_chance = student_t(CONFIDENCE, (equal_windows - 1.0).max(1.0)) * error;
        let by_edges = per_s * EDGE_S * self.edges / self.stand_for_s;
        let half = unobserved_s * (by_chance + by_edges);
        let packets = self.observed[code] + unobserved_s * per_s;
        let [mut median_ns, mut p99_ns] = QUANTILES.map(|part| self.quantile(code, part));
        if let (Some([_, median_low, median_high]), Some([_, low, high])) =
            (&mut median_ns, &mut p99_ns)
        {
            // A higher quantile is no smaller.
            *low = low.max(*median_low);
            *median_high = median_high.min(*high);
        }
        PathEstimate {
            path: CODE_NAMES[code],
            packets,
            low_packets: (packets - half).max(self.observed[code]),
            high_packets: packets + half,
            median_ns,
            p99_ns,
        }
    }

    /// A quantile with its interval, by the jackknife over groups of windows (Quenouille, 1956); no interval is narrower
    /// than a bucket.
    fn quantile(&self, code: usize, part: f64) -> Option<[f64; 3]> {
        let groups = self.groups.len() as f64;
        let mut all = TimeHistogram::default();
        for group in &self.groups {
            let one = &group[code];
            all.add(one.counts.iter().copied(), one.sum_ns, one.max_ns);
        }
        if self.groups.len() < GROUPS / 4 || self.observed[code] * (1.0 - part) < PACKETS_ABOVE_MIN
        {
            return None;
        }
        let value_ns = all.quantile_ns(part);
        let others: Vec<f64> = (self.groups.iter())
            .map(|group| {
                let mut rest = all.clone();
                for (total, own) in rest.counts.iter_mut().zip(&group[code].counts) {
                    *total -= own;
                }
                rest.quantile_ns(part)
            })
            .filter(|other| other.is_finite())
            .collect();
        let mean = others.iter().sum::<f64>() / others.len() as f64;
        let spread = (others.iter().map(|other| (other - mean).powi(2))).sum::<f64>();
        let error = ((groups - 1.0) / groups * spread).sqrt();
        let half = student_t(CONFIDENCE, groups - 1.0) * error;
        let bucket = (0..all.counts.len())
            .rfind(|&bucket| bucket_from_ns(bucket) as f64 <= value_ns)
            .unwrap_or(0);
        let [low, high] = [bucket, bucket + 1].map(|edge| bucket_from_ns(edge) as f64);
        Some([
            value_ns,
            (value_ns - half).min(low).max(0.0),
            (value_ns + half).max(high),
        ])
    }

    /// Adds a window to the last group, as often as it counts.
    fn weigh(&mut self, window: &Window, times: f64) {
        if self.groups.is_empty() || self.windows_in_last >= self.group_windows.max(1) {
            if self.groups.len() == GROUPS {
                self.halve();
            }
            self.groups
                .push(vec![TimeHistogram::default(); PATH_CODE_COUNT]);
            self.windows_in_last = 0;
            self.group_windows = self.group_windows.max(1);
        }
        self.windows_in_last += 1;
        let Some(group) = self.groups.last_mut() else {
            return;
        };
        for (sum, one) in group.iter_mut().zip(&window.whole) {
            let weighed = |count: &u64| (*count as f64 * times * UNIT).round() as u64;
            sum.add(one.counts.iter().map(weighed), 0, one.max_ns);
        }
    }

    /// Joins neighbours, so that there are half as many groups.
    fn halve(&mut self) {
        let mut joined = Vec::with_capacity(GROUPS);
        for pair in self.groups.chunks(2) {
            let mut sums = pair[0].clone();
            for other in &pair[1..] {
                for (sum, one) in sums.iter_mut().zip(other) {
                    sum.add(one.counts.iter().copied(), 0, one.max_ns);
                }
            }
            joined.push(sums);
        }
        self.groups = joined;
        self.group_windows *= 2;
    }
}

#[cfg(test)]
#[path = "estimates_tests.rs"]
mod tests;
