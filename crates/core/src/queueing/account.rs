//! What is counted while a model runs. Whole numbers throughout, so that accounts balance exactly.

use hdrhistogram::Histogram;

use super::series::Series;

/// What happened to the packets of a class at a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Visits {
    pub arrived: u64,
    pub lost: u64,
    pub lost_bytes: u64,
    pub served: u64,
    /// Sum over served packets, from arrival to the first start of service, ps.
    pub waits: u128,
    /// Sum over served packets, from arrival to departure, ps.
    pub sojourns: u128,
}

impl Visits {
    /// A packet was served.
    #[inline]
    pub fn serve(&mut self, arrived: u64, started: u64, now: u64) {
        self.served += 1;
        self.waits += u128::from(started - arrived);
        self.sojourns += u128::from(now - arrived);
    }
}

/// How many packets are in a queue or its service, over time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Length {
    pub now: u64,
    pub longest: u64,
    /// Departures minus arrivals, each with its time, ps: with the time at the end for each who is
    /// still there it is the integral of the length.
    times: i128,
}

impl Length {
    #[inline]
    pub fn add(&mut self, time: u64) {
        self.times -= i128::from(time);
        self.now += 1;
        self.longest = self.longest.max(self.now);
    }

    #[inline]
    pub fn remove(&mut self, time: u64) {
        self.times += i128::from(time);
        self.now -= 1;
    }

    /// Begins anew, with who is there.
    pub fn restart(&mut self, time: u64) {
        *self = Self {
            now: self.now,
            longest: self.now,
            times: -i128::from(time) * i128::from(self.now),
        };
    }

    /// Mean over a period that ends now.
    pub fn mean(self, time: u64, period: u64) -> f64 {
        if period == 0 {
            return 0.0;
        }
        self.integral(time) as f64 / period as f64
    }

    /// The length times how long it lasted, ps, up to now.
    pub fn integral(self, time: u64) -> i128 {
        self.times + i128::from(time) * i128::from(self.now)
    }
}

/// What left by a sink, of one class.
#[derive(Clone)]
pub(super) struct Departures {
    pub packets: u64,
    /// Clones, which count in no throughput.
    pub clones: u64,
    /// Sum of the times from source to sink of clones, ps.
    pub clone_latencies: u128,
    pub clone_histogram: Option<Box<Histogram<u64>>>,
    pub bytes: u64,
    /// Sum of the times from source to sink, ps.
    pub latencies: u128,
    pub histogram: Option<Box<Histogram<u64>>>,
    pub series: Series,
}

impl Departures {
    pub fn new() -> Self {
        Self {
            packets: 0,
            clones: 0,
            clone_latencies: 0,
            clone_histogram: None,
            bytes: 0,
            latencies: 0,
            histogram: None,
            series: Series::new(),
        }
    }

    #[inline]
    pub fn add_clone(&mut self, latency_ps: u64) {
        self.clones += 1;
        self.clone_latencies += u128::from(latency_ps);
        let histogram = self
            .clone_histogram
            .get_or_insert_with(|| Box::new(new_histogram()));
        let _ = histogram.record(latency_ps);
    }

    #[inline]
    pub fn add(&mut self, latency_ps: u64, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
        self.latencies += u128::from(latency_ps);
        self.series.add(latency_ps);
        let histogram = self
            .histogram
            .get_or_insert_with(|| Box::new(new_histogram()));
        // It grows by itself, so that it takes every value.
        let _ = histogram.record(latency_ps);
    }
}

/// Three significant digits, of picoseconds, growing with what comes.
pub(super) fn new_histogram() -> Histogram<u64> {
    let mut histogram = Histogram::new(3).expect("3 digits are between 0 and 5");
    histogram.auto(true);
    histogram
}

/// What came in and went out of the whole network: `inside + entered + cloned = left + lost + inside`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Balance {
    pub inside_before: u64,
    pub entered: u64,
    pub cloned: u64,
    pub left: u64,
    pub lost: u64,
}
