//! What a run found, as plain data.

use serde::Serialize;

use super::account::{Balance, new_histogram};
use super::engine::Engine;
use super::interval::Interval;
use super::network::Network;
use super::scale::{Parts, Scale};
use super::series::Series;
use super::time::{nanoseconds, seconds};
use super::trace::Trace;

/// One replication.
#[derive(Clone, Debug, Serialize)]
pub struct Replication {
    /// Its number, from 0.
    pub number: u64,
    /// Time that was counted, s.
    pub time_s: f64,
    /// Events in that time.
    pub events: u64,
    /// What came in and went out.
    pub balance: Balanced,
    /// Per sink and class that came to it.
    pub sinks: Vec<SinkCounts>,
    /// Per sink, over all classes.
    pub tails: Vec<Tail>,
    /// Per queue and class that came to it.
    pub queues: Vec<QueueCounts>,
    /// Per queue.
    pub lengths: Vec<QueueLength>,
    /// Per station.
    pub stations: Vec<StationLoad>,
    /// Per sink and class, beside `sinks`.
    #[serde(skip)]
    pub(super) latencies: Vec<Latencies>,
    /// Of a batch: its quantities in each of its parts, by the numbers of `measures`.
    #[serde(skip)]
    pub(super) parts: Vec<Vec<f64>>,
    /// What happened to every packet, if that was asked for.
    #[serde(skip)]
    pub trace: Trace,
}

/// `inside_before + entered + cloned = left + lost + inside`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Balanced {
    /// Packets and clones inside when counting began.
    pub inside_before: u64,
    /// Packets that came out of sources.
    pub entered: u64,
    /// Clones that were made.
    pub cloned: u64,
    /// Packets and clones that reached a sink.
    pub left: u64,
    /// Packets and clones that found a queue full.
    pub lost: u64,
    /// Packets and clones inside at the end.
    pub inside: u64,
}

/// What left by a sink.
#[derive(Clone, Debug, Serialize)]
pub struct SinkCounts {
    /// Name of the sink.
    pub sink: String,
    /// Name of the class.
    pub class: String,
    /// Packets, without clones.
    pub packets: u64,
    /// Clones of packets.
    pub clones: u64,
    /// Bytes.
    pub bytes: u64,
    /// Packets per second.
    pub throughput_pps: f64,
    /// Bits per second.
    pub throughput_bps: f64,
    /// Mean time from source to sink, ns.
    pub latency_ns: f64,
    /// The same of clones: since their packet came out of its source, ns.
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

/// What happened at a queue.
#[derive(Clone, Debug, Serialize)]
pub struct QueueCounts {
    /// Name of the queue.
    pub queue: String,
    /// Name of the class.
    pub class: String,
    /// Packets that came.
    pub arrived: u64,
    /// Packets that found it full.
    pub lost: u64,
    /// Their bytes.
    pub lost_bytes: u64,
    /// Packets whose service ended.
    pub served: u64,
    /// `lost / arrived`.
    pub loss: f64,
    /// Mean time from arrival to the first start of service, ns.
    pub wait_ns: f64,
    /// Mean time from arrival to the end of service, ns.
    pub sojourn_ns: f64,
}

/// How long a queue was.
#[derive(Clone, Debug, Serialize)]
pub struct QueueLength {
    /// Name of the queue.
    pub queue: String,
    /// Mean over time of the packets that wait or are served.
    pub mean: f64,
    /// The most there were.
    pub longest: u64,
    /// Part of the time of its station's servers that went into its packets.
    pub utilisation: f64,
}

/// How busy a station was.
#[derive(Clone, Debug, Serialize)]
pub struct StationLoad {
    /// Name of the station.
    pub station: String,
    /// Mean part of its servers that worked; of a delay, the mean number of packets that it delayed.
    pub utilisation: f64,
    /// Mean part of its servers that was blocked after service; of a station that packets share, the mean number of
    /// its packets that were. None where no queue blocks after service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<f64>,
}

#[derive(Clone)]
pub(super) struct Latencies {
    pub histogram: hdrhistogram::Histogram<u64>,
    pub clones: hdrhistogram::Histogram<u64>,
    pub series: Series,
}

impl std::fmt::Debug for Latencies {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Latencies of {} packets", self.histogram.len())
    }
}

/// A quantity over all replications.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    /// `network`, `sink`, `queue` or `station`.
    pub kind: &'static str,
    /// Its name; empty for the network.
    pub place: String,
    /// Name of the class; empty when all together.
    pub class: String,
    /// What: the name of a field of the counts.
    pub measure: &'static str,
    /// Mean and half-width.
    #[serde(flatten)]
    pub interval: Interval,
}

impl Replication {
    /// Every quantity of this replication with what it is; the same ones in every replication.
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
            all.push(("queue", &*length.queue, "", "length", length.mean));
            all.push((
                "queue",
                &*length.queue,
                "",
                "utilisation",
                length.utilisation,
            ));
        }
        for station in &self.stations {
            all.push((
                "station",
                &*station.station,
                "",
                "utilisation",
                station.utilisation,
            ));
            if let Some(blocked) = station.blocked {
                all.push(("station", &*station.station, "", "blocked", blocked));
            }
        }
        all
    }
}

/// Takes the results of what was counted out of an engine.
pub(super) fn replication<S: Scale, const TRACED: bool>(
    engine: &mut Engine<'_, S, TRACED>,
    number: u64,
) -> Replication {
    engine.settle_work();
    let network: &Network = engine.network;
    let model = &network.model;
    let period = engine.now - engine.counted_since;
    let time_s = seconds(period);
    let per_second = |count: f64| if period == 0 { 0.0 } else { count / time_s };
    let part = |work: u128| {
        if period == 0 {
            0.0
        } else {
            work as f64 / period as f64
        }
    };
    let mean_ns = |sum: u128, count: u64| {
        if count == 0 {
            f64::NAN
        } else {
            sum as f64 / count as f64 / 1000.0
        }
    };
    let class_of = |at: usize| model.classes[at % network.classes].clone();

    let mut sinks = Vec::new();
    let mut latencies = Vec::new();
    for (at, departures) in engine.departures.iter().enumerate() {
        sinks.push(SinkCounts {
            sink: model.sinks[at / network.classes].clone(),
            class: class_of(at),
            packets: departures.packets,
            clones: departures.clones,
            bytes: departures.bytes,
            throughput_pps: per_second(departures.packets as f64),
            throughput_bps: per_second(departures.bytes as f64 * 8.0),
            latency_ns: mean_ns(departures.latencies, departures.packets),
            clone_latency_ns: mean_ns(departures.clone_latencies, departures.clones),
        });
        let kept = |histogram: &Option<Box<hdrhistogram::Histogram<u64>>>| {
            histogram.as_deref().cloned().unwrap_or_else(new_histogram)
        };
        latencies.push(Latencies {
            histogram: kept(&departures.histogram),
            clones: kept(&departures.clone_histogram),
            series: departures.series.clone(),
        });
    }
    let tails = model.sinks.iter().zip(latencies.chunks(network.classes));
    let tails = tails.map(|(sink, classes)| {
        let mut together = new_histogram();
        for class in classes.iter().filter(|class| !class.histogram.is_empty()) {
            // Histograms that grow by themselves take in any other.
            let _ = together.add(&class.histogram);
        }
        Tail {
            sink: sink.clone(),
            p99_ns: if together.is_empty() {
                f64::NAN
            } else {
                nanoseconds(together.value_at_quantile(0.99))
            },
        }
    });
    let tails = tails.collect();
    let queues = engine
        .visits
        .all()
        .iter()
        .enumerate()
        .map(|(at, visits)| QueueCounts {
            queue: model.queues[at / network.classes].name.clone(),
            class: class_of(at),
            arrived: visits.arrived,
            lost: visits.lost,
            lost_bytes: visits.lost_bytes,
            served: visits.served,
            loss: if visits.arrived == 0 {
                0.0
            } else {
                visits.lost as f64 / visits.arrived as f64
            },
            wait_ns: mean_ns(visits.waits, visits.served),
            sojourn_ns: mean_ns(visits.sojourns, visits.served),
        });
    let lengths = engine
        .queues
        .all()
        .iter()
        .enumerate()
        .map(|(number, queue)| QueueLength {
            queue: model.queues[number].name.clone(),
            mean: queue.length.mean(engine.now, period),
            longest: queue.length.longest,
            utilisation: part(queue.work)
                / network.stations[network.queues[number].station as usize].servers as f64,
        });
    // of [station], ps
    let mut works = vec![0_u128; network.stations.len()];
    for queue in engine.queues.all() {
        works[queue.plan.station as usize] += queue.work;
    }
    let stations = engine
        .stations
        .all()
        .iter()
        .enumerate()
        .map(|(number, station)| {
            let work = match station.sharing {
                // That of its queues is the same but for the rounding of their shares.
                Some(_) => station.shared_work,
                None => works[number],
            };
            let servers = if model.stations[number].kind == super::StationKind::Delay {
                1
            } else {
                network.stations[number].servers
            };
            StationLoad {
                station: model.stations[number].name.clone(),
                utilisation: part(work) / servers as f64,
                blocked: engine.blocks_after_service(number).then(|| {
                    let servers = if station.sharing.is_some() {
                        1
                    } else {
                        servers
                    };
                    part(station.blocked.total) / servers as f64
                }),
            }
        });
    let Balance {
        inside_before,
        entered,
        cloned,
        left,
        lost,
    } = engine.balance;
    Replication {
        number,
        time_s,
        events: engine.events,
        balance: Balanced {
            inside_before,
            entered,
            cloned,
            left,
            lost,
            inside: engine.jobs.inside() as u64,
        },
        queues: queues.collect(),
        lengths: lengths.collect(),
        stations: stations.collect(),
        sinks,
        tails,
        latencies,
        parts: Vec::new(),
        trace: std::mem::take(&mut engine.trace),
    }
}

/// What was counted up to now of every quantity of `Replication::measures`, in their order: a sum, and what it is
/// divided by. The difference of two of them is what a part of a batch has counted.
pub(super) fn totals<S: Scale, const TRACED: bool>(
    engine: &mut Engine<'_, S, TRACED>,
) -> Vec<(f64, f64)> {
    engine.settle_work();
    let network: &Network = engine.network;
    let period_ps = (engine.now - engine.counted_since) as f64;
    let balance = &engine.balance;
    let mut all = vec![(balance.lost as f64, balance.entered as f64)];
    for departures in engine.departures.iter() {
        let packets = departures.packets as f64;
        all.push((packets, period_ps));
        all.push((departures.bytes as f64, period_ps));
        all.push((departures.latencies as f64, packets));
        all.push((departures.clone_latencies as f64, departures.clones as f64));
    }
    // Percentiles are no sums.
    all.extend(network.model.sinks.iter().map(|_| (0.0, 0.0)));
    for visits in engine.visits.all() {
        let served = visits.served as f64;
        all.push((visits.lost as f64, visits.arrived as f64));
        all.push((visits.waits as f64, served));
        all.push((visits.sojourns as f64, served));
    }
    for queue in engine.queues.all() {
        all.push((queue.length.integral(engine.now) as f64, period_ps));
        all.push((queue.work as f64, period_ps));
    }
    for (number, station) in engine.stations.all().iter().enumerate() {
        let own = network.queues.iter().zip(engine.queues.all());
        let own = own.filter(|(plan, _)| plan.station as usize == number);
        let work = match station.sharing {
            Some(_) => station.shared_work,
            None => own.map(|(_, queue)| queue.work).sum(),
        };
        all.push((work as f64, period_ps));
        if engine.blocks_after_service(number) {
            all.push((station.blocked.total as f64, period_ps));
        }
    }
    all
}

/// The quantities between two totals, each but for a factor that does not change; NaN where nothing was counted.
pub(super) fn between(before: &[(f64, f64)], after: &[(f64, f64)]) -> Vec<f64> {
    let pairs = before.iter().zip(after);
    pairs
        .map(|(&(sum, by), &(sum_after, by_after))| (sum_after - sum) / (by_after - by))
        .collect()
}

/// Latencies of a sink, over all replications.
#[derive(Clone, Debug, Serialize)]
pub struct LatencySummary {
    /// Name of the sink.
    pub sink: String,
    /// Name of the class; empty for all of them together.
    pub class: String,
    /// Packets.
    pub packets: u64,
    /// The shortest, ns.
    pub min_ns: f64,
    /// The longest, ns.
    pub max_ns: f64,
    /// `[p, ns]`: the part `p` of the packets took no longer; three significant digits.
    pub quantiles: Vec<(f64, f64)>,
    /// `[ns, P(latency > ns)]`, finer towards the tail.
    pub ccdf: Vec<(f64, f64)>,
}

/// Quantiles that summaries give.
const QUANTILES: [f64; 7] = [0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999];

impl LatencySummary {
    pub(super) fn of(sink: &str, class: &str, histogram: &hdrhistogram::Histogram<u64>) -> Self {
        let total = histogram.len() as f64;
        let mut ccdf: Vec<(f64, f64)> = Vec::new();
        let mut up_to = 0;
        for step in histogram.iter_quantiles(8) {
            up_to += step.count_since_last_iteration();
            let point = (
                nanoseconds(step.value_iterated_to()),
                1.0 - up_to as f64 / total,
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
