//! Estimates over all replications or batches, with confidence intervals.

use serde::Serialize;

use super::batch_means::{relaxation_times, variance_ratio};
use super::interval::{Interval, interval};
use super::quantile::quantile;
use super::result::Replication;

/// The measure that is no mean, and its probability.
const P99: (&str, f64) = ("p99_ns", 0.99);

/// A measure over all replications.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    /// `network`, `sink`, `queue` or `station`.
    pub kind: &'static str,
    /// Its name; empty for the network.
    pub place: String,
    /// Name of the class; empty for all classes together.
    pub class: String,
    /// The measure: the name of a field of the results.
    pub measure: &'static str,
    /// Mean and half-width.
    #[serde(flatten)]
    pub interval: Interval,
}

/// Whether all replications are long enough to know the intervals of their quantiles; `None` for one replication.
pub(super) fn are_long_enough(replications: &[Replication], confidence: f64) -> Option<bool> {
    let sinks = replications.first().map_or(0, |first| first.tails.len());
    let known = (0..sinks).filter_map(|sink| quantile(replications, sink, P99.1, confidence));
    (replications.len() > 1).then(|| known.into_iter().all(|(_, is_long_enough)| is_long_enough))
}

/// The estimates of all measures that have a value in at least one replication.
pub(super) fn estimates(replications: &[Replication], confidence: f64) -> Vec<Estimate> {
    let all: Vec<_> = replications.iter().map(Replication::measures).collect();
    let first = all.first().map_or(&[][..], Vec::as_slice);
    let estimates =
        first
            .iter()
            .enumerate()
            .filter_map(|(at, &(kind, place, class, measure, _))| {
                // A replication without packets at the place has no mean.
                let values: Vec<f64> = all
                    .iter()
                    .map(|measures| measures[at].4)
                    .filter(|value| !value.is_nan())
                    .collect();
                if values.is_empty() {
                    return None;
                }
                let estimate = |interval| Estimate {
                    kind,
                    place: place.to_string(),
                    class: class.to_string(),
                    measure,
                    interval,
                };
                if measure == P99.0 {
                    let tails = replications.first().map_or(&[][..], |first| &first.tails);
                    let sink = tails.iter().position(|tail| tail.sink == place)?;
                    let (interval, _) = quantile(replications, sink, P99.1, confidence)?;
                    return Some(estimate(interval));
                }
                let own = interval(&values, confidence);
                let ratio = variance_ratio(relaxation_times(replications, at));
                Some(estimate(Interval {
                    half_width: own.half_width.map(|width| width / ratio.sqrt()),
                    ..own
                }))
            });
    estimates.collect()
}

/// Whether the intervals of throughput and latency at all sinks have at most this relative half-width.
pub(super) fn are_precise(estimates: &[Estimate], relative_half_width: f64) -> bool {
    let sinks = estimates
        .iter()
        .filter(|estimate| estimate.kind == "sink" && estimate.interval.mean != 0.0)
        .filter(|estimate| {
            ["throughput_pps", "throughput_bps", "latency_ns"].contains(&estimate.measure)
        });
    sinks.clone().count() > 0
        && sinks.into_iter().all(|estimate| {
            let interval = estimate.interval;
            interval
                .half_width
                .is_some_and(|half_width| half_width <= relative_half_width * interval.mean.abs())
        })
}
