//! What a run counts. All sums are integers, so that they are exact and do not depend on their order.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::series::Series;

/// Totals of the packets of a class at a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VisitTotals {
    pub arrived: u64,
    pub lost: u64,
    pub lost_bytes: u64,
    pub served: u64,
    /// Sum over served packets, from arrival to the first start of service, ps.
    pub waits: u128,
    /// Sum over served packets, from arrival to departure, ps.
    pub sojourns: u128,
}

impl VisitTotals {
    /// Counts a packet whose service ends.
    #[inline]
    pub fn add_served(&mut self, arrived: u64, started: u64, now: u64) {
        self.served += 1;
        self.waits += u128::from(started - arrived);
        self.sojourns += u128::from(now - arrived);
    }
}

/// Number of packets in a queue, waiting or in service, over time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Occupancy {
    pub now: u64,
    pub max: u64,
    /// Sum of the departure times minus the sum of the arrival times, ps.
    times: i128,
}

impl Occupancy {
    #[inline]
    pub fn add(&mut self, time: u64) {
        self.times -= i128::from(time);
        self.now += 1;
        self.max = self.max.max(self.now);
    }

    #[inline]
    pub fn remove(&mut self, time: u64) {
        self.times += i128::from(time);
        self.now -= 1;
    }

    /// Restarts counting with the packets that are there.
    pub fn restart(&mut self, time: u64) {
        *self = Self {
            now: self.now,
            max: self.now,
            times: -i128::from(time) * i128::from(self.now),
        };
    }

    /// Integral of the number over time, packets x ps.
    pub fn integral(self, time: u64) -> i128 {
        self.times + i128::from(time) * i128::from(self.now)
    }
}

/// Totals of the packets of a class that left by a sink.
#[derive(Clone, Default)]
pub(super) struct SinkTotals {
    pub packets: u64,
    /// Clones; they do not count as throughput.
    pub clones: u64,
    /// Sum of the latencies of clones, from the source of their packet to the sink, ps.
    pub clone_latencies: u128,
    pub clone_histogram: Option<Box<Histogram<u64>>>,
    pub bytes: u64,
    /// Sum of the latencies from source to sink, ps.
    pub latencies: u128,
    pub histogram: Option<Box<Histogram<u64>>>,
    pub series: Series,
}

impl SinkTotals {
    #[inline]
    pub fn add_clone(&mut self, latency_ps: u64) {
        self.clones += 1;
        self.clone_latencies += u128::from(latency_ps);
        record(&mut self.clone_histogram, latency_ps);
    }

    #[inline]
    pub fn add(&mut self, latency_ps: u64, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
        self.latencies += u128::from(latency_ps);
        self.series.add(latency_ps);
        record(&mut self.histogram, latency_ps);
    }
}

#[inline]
fn record(histogram: &mut Option<Box<Histogram<u64>>>, latency_ps: u64) {
    let histogram = histogram.get_or_insert_with(|| Box::new(new_histogram()));
    // The histogram resizes itself, so that it takes every value.
    let _ = histogram.record(latency_ps);
}

/// A histogram of picoseconds with three significant digits, which resizes itself.
pub(super) fn new_histogram() -> Histogram<u64> {
    let mut histogram = Histogram::new(3).expect("3 digits are between 0 and 5");
    histogram.auto(true);
    histogram
}

/// Packets in the network: `inside_before + entered + cloned = left + lost + inside`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Balance {
    /// Packets and clones inside when counting began.
    pub inside_before: u64,
    /// Packets that sources sent.
    pub entered: u64,
    /// Clones that were made.
    pub cloned: u64,
    /// Packets and clones that reached a sink.
    pub left: u64,
    /// Packets and clones that a full queue dropped.
    pub lost: u64,
    /// Packets and clones inside at the end.
    pub inside: u64,
}

/// Number of blocked packets of a station, over time.
#[derive(Clone, Copy, Default)]
pub(super) struct BlockedTime {
    pub now: u32,
    since: u64,
    /// Integral of the number over time, packets x ps.
    pub total: u128,
}

impl BlockedTime {
    /// Adds the time since the last call.
    pub fn settle(&mut self, time: u64) {
        self.total += u128::from(self.now) * u128::from(time - self.since);
        self.since = time;
    }
}

/// What an engine has counted since counting began. Times are in picoseconds.
pub(super) struct Counts<'e> {
    pub period: u64,
    pub events: u64,
    pub balance: Balance,
    // of [queue][class]
    pub visits: &'e [VisitTotals],
    pub queues: Vec<QueueTotals>,
    pub stations: Vec<StationTotals>,
    // of [sink][class]
    pub sinks: &'e [SinkTotals],
}

impl Counts<'_> {
    /// The time average of an integral over time; 0 if no time has passed.
    pub fn mean(&self, integral: u128) -> f64 {
        match self.period {
            0 => 0.0,
            period => integral as f64 / period as f64,
        }
    }
}

pub(super) struct QueueTotals {
    /// Integral of its number of packets over time, packets x ps.
    pub occupancy: i128,
    pub max: u64,
    /// Work done, server x ps.
    pub work: u128,
}

pub(super) struct StationTotals {
    /// Work done, server x ps.
    pub work: u128,
    /// Integral of its number of blocked packets over time, packets x ps.
    pub blocked: u128,
}
