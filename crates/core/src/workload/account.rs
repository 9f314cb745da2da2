//! Sent and requested traffic, side by side.

use super::{Packet, Workload};
use crate::distributions::GapDistribution;
use crate::sizes::SizeDistribution;
use serde::Serialize;

/// Number of values that are kept for quantiles; beyond it, every second one is dropped.
const KEPT: usize = 1 << 18;
/// Relative distance below a gap at which the distribution is also compared: more than the rounding of its
/// scale, far below the resolution of clocks.
const JUST_BELOW: f64 = 1e-9;
/// Gaps do not keep their shape when more than this share of the packets left late by at least a mean gap ...
const LATE_SHARE_MAX: f64 = 0.05;
/// ... or when gaps of a continuous distribution are farther from it than this, and than twice `ks_bound`.
const KS_DISTANCE_MAX: f64 = 0.1;
const PROBABILITIES: [f64; 7] = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99];

/// Quantiles at 1, 10, 25, 50, 75, 90 and 99 %.
pub type Quantiles = [f64; 7];

/// Statistics of the packets sent.
#[derive(Debug)]
pub struct Account {
    sizes: Vec<u64>,
    frames_bytes: u64,
    gaps_ns: Sample,
    lates_ns: Sample,
    gaps: u64,
    previous_ns: Option<u64>,
    first_ns: u64,
    last_ns: u64,
    late_ns_max: u64,
    late_ns_sum: u64,
    mean_gap_ns: f64,
    late: u64,
}

/// Equally spaced ones of many values.
#[derive(Debug)]
struct Sample {
    values: Vec<f64>,
    // One of this many values is kept.
    stride: u64,
    seen: u64,
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            stride: 1,
            seen: 0,
        }
    }
}

impl Sample {
    fn push(&mut self, value: f64) {
        if self.seen.is_multiple_of(self.stride) {
            if self.values.len() == KEPT {
                let mut index = 0;
                self.values.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.stride *= 2;
            }
            if self.seen.is_multiple_of(self.stride) {
                self.values.push(value);
            }
        }
        self.seen += 1;
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

/// The smallest value that this share of the sorted values does not exceed; there is at least one.
fn at(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Sizes sent and requested.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SizeAccount {
    /// Mean of the sizes sent, bytes of the IP packet.
    pub mean_bytes: f64,
    /// Mean of the distribution, with sizes raised to the minimum.
    pub requested_mean_bytes: f64,
    /// Quantiles of the sizes sent.
    pub quantiles_bytes: Quantiles,
    /// Quantiles of the distribution.
    pub requested_quantiles_bytes: Quantiles,
    /// Kolmogorov-Smirnov distance of the sizes sent from the distribution.
    pub ks_distance: f64,
    /// Critical value of this distance at a level of 5 %, see [`ks_bound`].
    pub ks_bound: f64,
    /// Share of the distribution's sizes that are too small for headers and stamp; these packets were raised.
    pub too_small_share: f64,
}

/// Gaps sent and requested, by the sender's own clock when it sends a packet.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GapAccount {
    /// Mean gap, ns.
    pub mean_ns: f64,
    /// Mean of the distribution, ns.
    pub requested_mean_ns: f64,
    /// Quantiles of the gaps, ns.
    pub quantiles_ns: Quantiles,
    /// Quantiles of the distribution, ns; None where they are not known in closed form.
    pub requested_quantiles_ns: Option<Quantiles>,
    /// Kolmogorov-Smirnov distance from the distribution; None where it has steps, or is not known in closed form.
    pub ks_distance: Option<f64>,
    /// Critical value of this distance at a level of 5 %, see [`ks_bound`].
    pub ks_bound: Option<f64>,
    /// 99th percentile of |gap - requested gap| / requested mean, if all requested gaps are equal.
    pub error_p99: Option<f64>,
    /// Mean lateness of the packets, ns.
    pub late_mean_ns: f64,
    /// Quantiles of the lateness, ns: how far departures are from the plan, whatever the distribution.
    pub late_quantiles_ns: Quantiles,
    /// Maximum lateness, ns.
    pub late_max_ns: u64,
    /// Share of the packets that left late by at least the distribution's mean gap: the host determined their gaps.
    pub late_share: f64,
    /// Whether the gaps have the requested shape: at most 5 % of the packets were so late, and the distance
    /// from a continuous distribution is at most 0.1, or twice `ks_bound`.
    pub is_shape_kept: bool,
    /// Relative standard deviation of the mean gap by chance; None where it is not known.
    pub mean_spread: Option<f64>,
}

impl Account {
    /// An empty account.
    pub fn new(workload: &Workload) -> Self {
        Self {
            sizes: vec![0; workload.largest_ip_bytes() as usize + 1],
            frames_bytes: 0,
            gaps_ns: Sample::default(),
            lates_ns: Sample::default(),
            gaps: 0,
            previous_ns: None,
            first_ns: 0,
            last_ns: 0,
            late_ns_max: 0,
            late_ns_sum: 0,
            mean_gap_ns: workload.gaps.mean_gap_ns(),
            late: 0,
        }
    }

    /// A packet was sent; `sent_ns` since the start, if that is known.
    pub fn add(&mut self, packet: &Packet, frame_bytes: usize, sent_ns: Option<u64>) {
        self.sizes[packet.ip_bytes as usize] += 1;
        self.frames_bytes += frame_bytes as u64;
        if let Some(sent_ns) = sent_ns {
            let late_ns = sent_ns.saturating_sub(packet.due_ns);
            self.late_ns_max = self.late_ns_max.max(late_ns);
            self.late_ns_sum += late_ns;
            self.lates_ns.push(late_ns as f64);
            self.late += u64::from(late_ns as f64 >= self.mean_gap_ns);
        }
    }

    /// A packet left `sent_ns` after the start. Called in the order of time, which is not the plan's when several send.
    pub fn departed(&mut self, sent_ns: u64) {
        self.last_ns = sent_ns;
        let Some(previous_ns) = self.previous_ns.replace(sent_ns) else {
            self.first_ns = sent_ns;
            return;
        };
        self.gaps_ns
            .push(sent_ns.saturating_sub(previous_ns) as f64);
        self.gaps += 1;
    }

    /// From the first departure to the last, ns.
    pub fn departures_ns(&self) -> u64 {
        self.last_ns - self.first_ns
    }

    /// Packets sent.
    pub fn packets(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// Bytes of their frames, without check sequences.
    pub fn frames_bytes(&self) -> u64 {
        self.frames_bytes
    }

    /// The sizes and their distribution; None when nothing was sent.
    pub fn sizes(&self, workload: &Workload) -> Option<SizeAccount> {
        let packets = self.packets();
        if packets == 0 {
            return None;
        }
        let smallest = workload.smallest_ip_bytes();
        let mut seen = 0;
        let mut bytes = 0;
        let mut ks_distance = 0.0_f64;
        let mut sent_cdf = Vec::with_capacity(self.sizes.len());
        let mut requested_cdf = cumulative(&workload.sizes, self.sizes.len());
        // Smaller sizes are raised to the smallest one.
        requested_cdf[..smallest as usize].fill(0.0);
        for (size, packets_of_size) in (0_u32..).zip(&self.sizes) {
            seen += packets_of_size;
            bytes += u64::from(size) * packets_of_size;
            let share = seen as f64 / packets as f64;
            sent_cdf.push(share);
            ks_distance = ks_distance.max((share - requested_cdf[size as usize]).abs());
        }
        let quantile = |cdf: &[f64], probability: f64| {
            let last = self.sizes.len() - 1;
            let size = cdf[..last].partition_point(|share| *share < probability - 1e-12);
            size as f64
        };
        Some(SizeAccount {
            mean_bytes: bytes as f64 / packets as f64,
            requested_mean_bytes: workload
                .sizes
                .mean_of(|size| f64::from(workload.ip_bytes(size))),
            quantiles_bytes: PROBABILITIES.map(|p| quantile(&sent_cdf, p)),
            requested_quantiles_bytes: PROBABILITIES.map(|p| quantile(&requested_cdf, p)),
            ks_distance,
            ks_bound: ks_bound(packets),
            too_small_share: if smallest > 1 {
                workload.sizes.cdf(smallest - 1)
            } else {
                0.0
            },
        })
    }

    /// The gaps and their distribution; None without gaps or send times.
    pub fn gaps(&self, distribution: &GapDistribution) -> Option<GapAccount> {
        let (sorted, lates) = (self.gaps_ns.sorted(), self.lates_ns.sorted());
        if sorted.is_empty() || lates.is_empty() {
            return None;
        }
        let requested_mean_ns = distribution.mean_gap_ns();
        let fixed = distribution.fixed_gap_ns();
        let error_p99 = fixed.map(|gap_ns| {
            let mut errors: Vec<f64> = sorted
                .iter()
                .map(|gap| (gap - gap_ns).abs() / gap_ns)
                .collect();
            errors.sort_by(f64::total_cmp);
            at(&errors, 0.99)
        });
        let requested_quantiles_ns = distribution
            .quantile(0.5)
            .map(|_| PROBABILITIES.map(|p| distribution.quantile(p).unwrap_or(f64::NAN)));
        // Gaps of a real clock are always far from a distribution with steps: of one step, or of recorded gaps.
        let ks_distance = match (fixed, &requested_quantiles_ns) {
            (None, Some(_)) => ks_distance(&sorted, distribution),
            _ => None,
        };
        let bound = ks_distance.map(|_| ks_bound(sorted.len() as u64));
        let late_share = self.late as f64 / self.packets() as f64;
        let is_far = ks_distance
            .zip(bound)
            .is_some_and(|(distance, bound)| distance > KS_DISTANCE_MAX.max(2.0 * bound));
        Some(GapAccount {
            mean_ns: self.departures_ns() as f64 / self.gaps as f64,
            requested_mean_ns,
            quantiles_ns: PROBABILITIES.map(|p| at(&sorted, p)),
            requested_quantiles_ns,
            ks_distance,
            ks_bound: bound,
            error_p99,
            late_mean_ns: self.late_ns_sum as f64 / self.packets() as f64,
            late_quantiles_ns: PROBABILITIES.map(|p| at(&lates, p)),
            late_max_ns: self.late_ns_max,
            late_share,
            is_shape_kept: late_share <= LATE_SHARE_MAX && !is_far,
            mean_spread: distribution.mean_spread(self.gaps),
        })
    }
}

/// The Kolmogorov-Smirnov distance that this many independent draws of a continuous distribution exceed with a
/// probability of 5 %: 1.36 / sqrt(n), for n > 35 (F. J. Massey, The Kolmogorov-Smirnov Test for Goodness of Fit,
/// Journal of the American Statistical Association 46, 1951, table 1). Draws of a discrete distribution exceed it less
/// often. At most 1, as every distance.
pub fn ks_bound(draws: u64) -> f64 {
    (1.36 / (draws as f64).sqrt()).min(1.0)
}

fn cumulative(distribution: &SizeDistribution, length: usize) -> Vec<f64> {
    match distribution {
        SizeDistribution::TwoStage(distribution) => {
            let mut sum = 0.0;
            let mut values: Vec<f64> = distribution
                .probabilities()
                .iter()
                .map(|probability| {
                    sum += probability;
                    sum
                })
                .collect();
            values.resize(length.max(values.len()), 1.0);
            values
        }
        _ => (0..length as u32)
            .map(|size| distribution.cdf(size))
            .collect(),
    }
}

/// Maximum distance of the empirical distribution function from the distribution's: at each step, and just
/// below it, since the distribution may have a step there, too.
fn ks_distance(sorted: &[f64], distribution: &GapDistribution) -> Option<f64> {
    let count = sorted.len() as f64;
    let (mut below, mut distance) = (0, 0.0_f64);
    for equal in sorted.chunk_by(|a, b| a == b) {
        let gap = equal[0];
        let up_to = below + equal.len();
        let just_below = gap - (gap.abs() + 1.0) * JUST_BELOW;
        distance = distance
            .max((distribution.cdf(just_below)? - below as f64 / count).abs())
            .max((distribution.cdf(gap)? - up_to as f64 / count).abs());
        below = up_to;
    }
    Some(distance)
}
