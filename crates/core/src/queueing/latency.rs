//! Latencies at the sinks: histograms of each replication, and their summaries over all of them.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::network::Network;
use super::series::Series;
use super::statistics::{SinkTotals, new_histogram};
use super::time::nanoseconds;

/// Latencies of a class at a sink, in one replication.
#[derive(Clone)]
pub(super) struct Latencies {
    pub histogram: Histogram<u64>,
    pub clones: Histogram<u64>,
    pub series: Series,
}

impl std::fmt::Debug for Latencies {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Latencies of {} packets", self.histogram.len())
    }
}

/// Latencies at a sink, over all replications.
#[derive(Clone, Debug, Serialize)]
pub struct LatencySummary {
    /// Name of the sink.
    pub sink: String,
    /// Name of the class; empty for all classes together.
    pub class: String,
    /// Number of packets.
    pub packets: u64,
    /// Minimum, ns.
    pub min_ns: f64,
    /// Maximum, ns.
    pub max_ns: f64,
    /// `[p, ns]`: the quantile at probability `p`, with three significant digits.
    pub quantiles: Vec<(f64, f64)>,
    /// `[ns, P(latency > ns)]`, with more points towards the tail.
    pub ccdf: Vec<(f64, f64)>,
}

/// Probabilities of the quantiles in a summary.
const QUANTILES: [f64; 7] = [0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999];

impl Latencies {
    /// The latencies that a run has counted.
    pub fn new(totals: &SinkTotals) -> Self {
        let copy = |histogram: &Option<Box<Histogram<u64>>>| {
            histogram.as_deref().cloned().unwrap_or_else(new_histogram)
        };
        Self {
            histogram: copy(&totals.histogram),
            clones: copy(&totals.clone_histogram),
            series: totals.series.clone(),
        }
    }
}

impl LatencySummary {
    fn new(sink: &str, class: &str, histogram: &Histogram<u64>) -> Self {
        let total = histogram.len() as f64;
        let mut ccdf: Vec<(f64, f64)> = Vec::new();
        let mut cumulative = 0;
        for step in histogram.iter_quantiles(8) {
            cumulative += step.count_since_last_iteration();
            let point = (
                nanoseconds(step.value_iterated_to()),
                1.0 - cumulative as f64 / total,
            );
            match ccdf.last_mut() {
                Some(last) if last.0 == point.0 => *last = point,
                _ => ccdf.push(point),
            }
        }
        Self {
            sink: sink.to_string(),
            class: class.to_string(),
            packets: histogram.len(),
            min_ns: nanoseconds(histogram.min()),
            max_ns: nanoseconds(histogram.max()),
            quantiles: QUANTILES
                .iter()
                .map(|&q| (q, nanoseconds(histogram.value_at_quantile(q))))
                .collect(),
            ccdf,
        }
    }
}

/// The latencies of the packets, or of the clones, that `which` picks, at every sink: of each class, and of all
/// classes together if there are several.
pub(super) fn latencies(
    network: &Network,
    replications: &[&[Latencies]],
    which: impl Fn(&Latencies) -> &Histogram<u64>,
) -> Vec<LatencySummary> {
    let model = &network.model;
    let mut summaries = Vec::new();
    for (sink, name) in model.sinks.iter().enumerate() {
        let mut together = new_histogram();
        let mut classes = 0;
        for (class, class_name) in model.classes.iter().enumerate() {
            let mut own = new_histogram();
            for replication in replications {
                // A histogram that resizes itself can add any other.
                let _ = own.add(which(&replication[sink * network.classes + class]));
            }
            if !own.is_empty() {
                classes += 1;
                let _ = together.add(&own);
                summaries.push(LatencySummary::new(name, class_name, &own));
            }
        }
        if classes > 1 {
            summaries.push(LatencySummary::new(name, "", &together));
        }
    }
    summaries
}
