//! The estimate of a quantile over replications or batches, and whether these are long enough for its interval.
//!
//! The quantile of a short replication is too small on average, so the mean of the replications' quantiles is, too. The
//! quantile of all their values together has that bias divided by their number, and the difference of both says how
//! large it is (jackknife). The replications' quantiles deviate from the estimate by chance and by their bias; both
//! count in the interval (sectioning: Nakayama, ACM Transactions on Modeling and Computer Simulation 24, 2014).

use hdrhistogram::Histogram;

use super::interval::{Interval, student_t};
use super::latency::Latencies;
use super::result::Replication;
use super::series::{Series, relaxation_of};
use super::statistics::new_histogram;
use super::time::nanoseconds;

/// Least length of a replication, in relaxation times of the latency. Below, intervals of the 99th percentile contain
/// it in 50 to 85 % in place of 95: docs/measurements/model.md.
const RELAXATION_TIMES_MIN: f64 = 80.0;

/// The quantile of the latencies of all classes at a sink, and whether the replications are long enough to know its
/// interval; `None` when no packet arrived.
pub(super) fn quantile(
    replications: &[Replication],
    sink: usize,
    probability: f64,
    confidence: f64,
) -> Option<(Interval, bool)> {
    let runs: Vec<&[Latencies]> = replications
        .iter()
        .filter_map(|replication| {
            let classes = replication.latencies.len() / replication.tails.len().max(1);
            replication.latencies.chunks(classes.max(1)).nth(sink)
        })
        .filter(|classes| classes.iter().any(|class| !class.histogram.is_empty()))
        .collect();
    let mut together = new_histogram();
    let values: Vec<f64> = runs
        .iter()
        .map(|classes| {
            let mut own = new_histogram();
            for class in *classes {
                // A histogram that resizes itself can add any other.
                let _ = own.add(&class.histogram);
            }
            let _ = together.add(&own);
            value_ns(&own, probability)
        })
        .collect();
    if values.is_empty() {
        return None;
    }
    let pooled = value_ns(&together, probability);
    let count = values.len() as f64;
    if values.len() < 2 {
        let interval = Interval {
            mean: pooled,
            half_width: None,
        };
        return Some((interval, true));
    }
    let mean = pooled - (values.iter().sum::<f64>() / count - pooled) / (count - 1.0);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let half_width = student_t(confidence, count - 1.0) * (squares / (count - 1.0) / count).sqrt();
    let is_long_enough = relaxation_times(&runs) >= RELAXATION_TIMES_MIN;
    let half_width = is_long_enough.then_some(half_width);
    Some((Interval { mean, half_width }, is_long_enough))
}

fn value_ns(histogram: &Histogram<u64>, probability: f64) -> f64 {
    nanoseconds(histogram.value_at_quantile(probability))
}

/// The mean length of the replications in relaxation times of the latency of their largest class.
fn relaxation_times(runs: &[&[Latencies]]) -> f64 {
    let classes = runs.first().map_or(0, |classes| classes.len());
    let packets =
        |class: &usize| -> u64 { runs.iter().map(|run| run[*class].histogram.len()).sum() };
    let Some(largest) = (0..classes).max_by_key(packets) else {
        return 0.0;
    };
    let series: Vec<&Series> = runs.iter().map(|run| &run[largest].series).collect();
    let values = packets(&largest) as f64 / runs.len() as f64;
    values / relaxation_of(&series)
}
