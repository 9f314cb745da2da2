//! Batch means: one long run divided into batches, and how nearly independent they are (Law, Simulation
//! Modeling and Analysis, 9.5.3).

use super::network::Network;
use super::result::Replication;
use super::series::relaxation;
use super::statistics::Counts;

/// Minimum number of parts of a batch, and of all batches together. The autocorrelation of this many parts is
/// estimated far better than that of the few batches, which has a standard error of 1 / sqrt(batches).
const PARTS_MIN: u32 = 8;
const PARTS_OF_RUN: u32 = 160;

/// Minimum length of a batch in relaxation times: then the variance of the mean over all batches is underestimated by
/// at most 5 %.
const RELAXATION_TIMES_MIN: f64 = 20.0;

/// Number of parts of each batch.
pub(super) fn parts_of_batch(batches: u32) -> u32 {
    PARTS_MIN.max(PARTS_OF_RUN.div_ceil(batches))
}

/// The counts behind every measure, in the order of `Replication::measures`: a sum and its divisor. The difference of
/// two such lists gives the measures of a part of a batch.
pub(super) fn totals(network: &Network, counts: &Counts) -> Vec<(f64, f64)> {
    let period = counts.period as f64;
    let balance = &counts.balance;
    let mut totals = vec![(balance.lost as f64, balance.entered as f64)];
    for sink in counts.sinks {
        let packets = sink.packets as f64;
        totals.push((packets, period));
        totals.push((sink.bytes as f64, period));
        totals.push((sink.latencies as f64, packets));
        totals.push((sink.clone_latencies as f64, sink.clones as f64));
    }
    // Percentiles are no sums.
    totals.extend(network.model.sinks.iter().map(|_| (0.0, 0.0)));
    for visits in counts.visits {
        let served = visits.served as f64;
        totals.push((visits.lost as f64, visits.arrived as f64));
        totals.push((visits.waits as f64, served));
        totals.push((visits.sojourns as f64, served));
    }
    for queue in &counts.queues {
        totals.push((queue.occupancy as f64, period));
        totals.push((queue.work as f64, period));
    }
    for (number, station) in counts.stations.iter().enumerate() {
        totals.push((station.work as f64, period));
        if network.blocks_after_service(number) {
            totals.push((station.blocked as f64, period));
        }
    }
    totals
}

/// The measures between two totals, each up to a constant factor; NaN where nothing was counted.
pub(super) fn between(before: &[(f64, f64)], after: &[(f64, f64)]) -> Vec<f64> {
    let pairs = before.iter().zip(after);
    pairs
        .map(|(&(sum, by), &(sum_after, by_after))| (sum_after - sum) / (by_after - by))
        .collect()
}

/// The length of a batch in relaxation times of a measure, estimated from the parts of all batches. Infinite for
/// independent replications, and for a measure that is constant or has no value in more than half of the parts.
pub(super) fn relaxation_times(batches: &[Replication], measure: usize) -> f64 {
    let parts = batches.iter().flat_map(|batch| &batch.parts);
    let all = parts.clone().count();
    let values: Vec<f64> = parts
        .map(|part| part[measure])
        .filter(|value| value.is_finite())
        .collect();
    if values.is_empty() || 2 * values.len() < all {
        return f64::INFINITY;
    }
    let time = relaxation(&values);
    if time.is_nan() || time == 0.0 {
        return f64::INFINITY;
    }
    all as f64 / batches.len() as f64 / time
}

/// The ratio of the variance between batches to that between independent runs, for an autocorrelation that
/// decays exponentially and batches that last this many relaxation times.
pub(super) fn variance_ratio(relaxation_times: f64) -> f64 {
    if relaxation_times.is_infinite() {
        return 1.0;
    }
    // Shorter batches carry no information: this limits how much they widen an interval.
    let times = relaxation_times.max(1.0);
    1.0 + libm::expm1(-times) / times
}

/// Whether the batches are long enough for all measures to be nearly uncorrelated.
pub(super) fn are_uncorrelated(batches: &[Replication]) -> bool {
    let measures = batches
        .first()
        .map_or(0, |batch| batch.parts.first().map_or(0, Vec::len));
    (0..measures).all(|measure| relaxation_times(batches, measure) >= RELAXATION_TIMES_MIN)
}
