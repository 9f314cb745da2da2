//! The results of a replication, as plain data.

use serde::Serialize;

use super::latency::Latencies;
use super::model::StationKind;
use super::network::Network;
use super::statistics::{Balance, Counts, new_histogram};
use super::time::{nanoseconds, seconds};
use super::trace::Trace;

/// The results of one replication or batch.
#[derive(Clone, Debug, Serialize)]
pub struct Replication {
    /// Its number, from 0.
    pub number: u64,
    /// Measured time, s.
    pub time_s: f64,
    /// Events in that time.
    pub events: u64,
    /// Packets that entered, left and are inside.
    pub balance: Balance,
    /// One for each sink and class.
    pub sinks: Vec<SinkCounts>,
    /// One for each sink, over all classes.
    pub tails: Vec<Tail>,
    /// One for each queue and class.
    pub queues: Vec<QueueCounts>,
    /// One for each queue.
    pub lengths: Vec<QueueLength>,
    /// One for each station.
    pub stations: Vec<StationLoad>,
    // one for each sink and class, as `sinks`
    #[serde(skip)]
    pub(super) latencies: Vec<Latencies>,
    // of a batch: the measures in each of its parts, in the order of `measures`
    #[serde(skip)]
    pub(super) parts: Vec<Vec<f64>>,
    /// The trace, if it was requested.
    #[serde(skip)]
    pub trace: Trace,
}

/// Packets of a class that left by a sink.
#[derive(Clone, Debug, Serialize)]
pub struct SinkCounts {
    /// Name of the sink.
    pub sink: String,
    /// Name of the class.
    pub class: String,
    /// Number of packets, without clones.
    pub packets: u64,
    /// Number of clones.
    pub clones: u64,
    /// Bytes.
    pub bytes: u64,
    /// Packets per second.
    pub throughput_pps: f64,
    /// Bits per second.
    pub throughput_bps: f64,
    /// Mean time from source to sink, ns.
    pub latency_ns: f64,
    /// Mean time of clones from the source of their packet to the sink, ns.
    pub clone_latency_ns: f64,
}

/// The tail of the latencies at a sink.
#[derive(Clone, Debug, Serialize)]
pub struct Tail {
    /// Name of the sink.
    pub sink: String,
    /// 99th percentile of the latency of packets of all classes, ns.
    pub p99_ns: f64,
}

/// Packets of a class at a queue.
#[derive(Clone, Debug, Serialize)]
pub struct QueueCounts {
    /// Name of the queue.
    pub queue: String,
    /// Name of the class.
    pub class: String,
    /// Number of arrivals.
    pub arrived: u64,
    /// Number of packets that were dropped because the queue was full.
    pub lost: u64,
    /// Their bytes.
    pub lost_bytes: u64,
    /// Number of packets whose service ended.
    pub served: u64,
    /// `lost / arrived`.
    pub loss: f64,
    /// Mean time from arrival to the first start of service, ns.
    pub wait_ns: f64,
    /// Mean time from arrival to the end of service, ns.
    pub sojourn_ns: f64,
}

/// The length of a queue.
#[derive(Clone, Debug, Serialize)]
pub struct QueueLength {
    /// Name of the queue.
    pub queue: String,
    /// Time average of the number of packets, waiting or in service.
    pub mean: f64,
    /// Maximum number of packets.
    pub longest: u64,
    /// Utilisation of the station's servers by its packets.
    pub utilisation: f64,
}

/// The load of a station.
#[derive(Clone, Debug, Serialize)]
pub struct StationLoad {
    /// Name of the station.
    pub station: String,
    /// Mean fraction of busy servers; for a delay, the mean number of packets.
    pub utilisation: f64,
    /// Mean fraction of servers blocked after service; for a shared station, the mean number of blocked packets. None
    /// if no queue blocks after service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<f64>,
}

impl Replication {
    /// Makes results from the counts of a run.
    pub(super) fn new(network: &Network, number: u64, counts: &Counts) -> Self {
        let latencies: Vec<_> = counts.sinks.iter().map(Latencies::new).collect();
        Self {
            number,
            time_s: seconds(counts.period),
            events: counts.events,
            balance: counts.balance,
            sinks: sink_counts(network, counts),
            tails: tails(network, &latencies),
            queues: queue_counts(network, counts),
            lengths: queue_lengths(network, counts),
            stations: station_loads(network, counts),
            latencies,
            parts: Vec::new(),
            trace: Trace::default(),
        }
    }

    /// The measures that are estimated: kind, place, class, name and value. Every replication has the same ones.
    pub(super) fn measures(&self) -> Vec<(&'static str, &str, &str, &'static str, f64)> {
        let mut all = Vec::new();
        let loss = match self.balance.entered {
            0 => f64::NAN,
            entered => self.balance.lost as f64 / entered as f64,
        };
        all.push(("network", "", "", "loss", loss));
        for sink in &self.sinks {
            for (measure, value) in [
                ("throughput_pps", sink.throughput_pps),
                ("throughput_bps", sink.throughput_bps),
                ("latency_ns", sink.latency_ns),
                ("clone_latency_ns", sink.clone_latency_ns),
            ] {
                all.push(("sink", &*sink.sink, &*sink.class, measure, value));
            }
        }
        for tail in &self.tails {
            all.push(("sink", &*tail.sink, "", "p99_ns", tail.p99_ns));
        }
        for queue in &self.queues {
            for (measure, value) in [
                ("loss", queue.loss),
                ("wait_ns", queue.wait_ns),
                ("sojourn_ns", queue.sojourn_ns),
            ] {
                all.push(("queue", &*queue.queue, &*queue.class, measure, value));
            }
        }
        for length in &self.lengths {
            let name = &*length.queue;
            all.push(("queue", name, "", "length", length.mean));
            all.push(("queue", name, "", "utilisation", length.utilisation));
        }
        for station in &self.stations {
            let name = &*station.station;
            all.push(("station", name, "", "utilisation", station.utilisation));
            let blocked = station.blocked.iter();
            all.extend(blocked.map(|&blocked| ("station", name, "", "blocked", blocked)));
        }
        all
    }
}

fn sink_counts(network: &Network, counts: &Counts) -> Vec<SinkCounts> {
    let per_second = |count: f64| match counts.period {
        0 => 0.0,
        period => count / seconds(period),
    };
    let sinks = counts.sinks.iter().enumerate();
    let sinks = sinks.map(|(at, totals)| SinkCounts {
        sink: network.model.sinks[at / network.classes].clone(),
        class: class_of(network, at),
        packets: totals.packets,
        clones: totals.clones,
        bytes: totals.bytes,
        throughput_pps: per_second(totals.packets as f64),
        throughput_bps: per_second(totals.bytes as f64 * 8.0),
        latency_ns: mean_ns(totals.latencies, totals.packets),
        clone_latency_ns: mean_ns(totals.clone_latencies, totals.clones),
    });
    sinks.collect()
}

fn tails(network: &Network, latencies: &[Latencies]) -> Vec<Tail> {
    let sinks = network.model.sinks.iter();
    let tails = sinks.zip(latencies.chunks(network.classes));
    let tails = tails.map(|(sink, classes)| {
        let mut all = new_histogram();
        for class in classes.iter().filter(|class| !class.histogram.is_empty()) {
            // A histogram that resizes itself can add any other.
            let _ = all.add(&class.histogram);
        }
        Tail {
            sink: sink.clone(),
            p99_ns: match all.is_empty() {
                true => f64::NAN,
                false => nanoseconds(all.value_at_quantile(0.99)),
            },
        }
    });
    tails.collect()
}

fn queue_counts(network: &Network, counts: &Counts) -> Vec<QueueCounts> {
    let visits = counts.visits.iter().enumerate();
    let queues = visits.map(|(at, visits)| QueueCounts {
        queue: network.model.queues[at / network.classes].name.clone(),
        class: class_of(network, at),
        arrived: visits.arrived,
        lost: visits.lost,
        lost_bytes: visits.lost_bytes,
        served: visits.served,
        loss: match visits.arrived {
            0 => 0.0,
            arrived => visits.lost as f64 / arrived as f64,
        },
        wait_ns: mean_ns(visits.waits, visits.served),
        sojourn_ns: mean_ns(visits.sojourns, visits.served),
    });
    queues.collect()
}

fn queue_lengths(network: &Network, counts: &Counts) -> Vec<QueueLength> {
    let queues = network.queues.iter().zip(&network.model.queues);
    let lengths = queues.zip(&counts.queues);
    let lengths = lengths.map(|((plan, queue), totals)| QueueLength {
        queue: queue.name.clone(),
        mean: match counts.period {
            0 => 0.0,
            period => totals.occupancy as f64 / period as f64,
        },
        longest: totals.max,
        utilisation: counts.mean(totals.work)
            / network.stations[plan.station as usize].servers as f64,
    });
    lengths.collect()
}

fn station_loads(network: &Network, counts: &Counts) -> Vec<StationLoad> {
    let stations = network.model.stations.iter().zip(&counts.stations);
    let loads = stations.enumerate().map(|(number, (station, totals))| {
        let blocked = counts.mean(totals.blocked);
        let servers = match station.kind {
            StationKind::Delay => 1.0,
            _ => f64::from(station.servers),
        };
        StationLoad {
            station: station.name.clone(),
            utilisation: counts.mean(totals.work) / servers,
            blocked: network
                .blocks_after_service(number)
                .then(|| match station.kind.is_shared() {
                    true => blocked,
                    false => blocked / servers,
                }),
        }
    });
    loads.collect()
}

fn class_of(network: &Network, at: usize) -> String {
    network.model.classes[at % network.classes].clone()
}

fn mean_ns(sum_ps: u128, count: u64) -> f64 {
    match count {
        0 => f64::NAN,
        count => sum_ps as f64 / count as f64 / 1000.0,
    }
}
