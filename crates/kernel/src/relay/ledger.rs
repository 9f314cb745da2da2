//! The relay's account: every frame that arrived was forwarded, dropped by the emulated queue,
//! lost by the emulated link, lost by the relay itself, or is still inside.

use serde::{Deserialize, Serialize};

/// Frames that the emulated link should have carried and the relay did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnLost {
    /// The socket's buffer was full: the relay's thread did not read in time.
    pub socket: u64,
    /// The relay's memory was full.
    pub memory: u64,
    /// Longer than the interfaces' MTU allows: a super-packet of an offload that is still on.
    pub oversized: u64,
    /// The kernel refused to send it.
    pub send: u64,
    /// The outgoing interface dropped it: its peer is down, or the peer's CPU backlog is full.
    pub interface: u64,
}

/// The account of one direction: `arrived = forwarded + queue_dropped + loss_dropped + own_lost + inside`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionLedger {
    /// Frames that came to the relay's socket, those that the socket dropped included.
    pub arrived: u64,
    /// Bytes of the frames that were read (the socket's drops have no size).
    pub arrived_bytes: u64,
    /// Frames that left at the other side.
    pub forwarded: u64,
    /// Bytes of the frames that were sent.
    pub forwarded_bytes: u64,
    /// Dropped by the emulated queue.
    pub queue_dropped: u64,
    /// Of these, by its discipline before it was full.
    pub early_dropped: u64,
    /// Frames that its discipline marked in place of dropping them.
    pub marked: u64,
    /// Lost by the emulated link; counted when the frame arrives.
    pub loss_dropped: u64,
    /// Lost by the relay itself.
    pub own_lost: OwnLost,
    /// Frames in the emulated link: in the queue, in the serialiser, or on their way.
    pub inside: u64,
    /// Their bytes.
    pub inside_bytes: u64,
    /// Frames that came with an unfinished checksum, because the sender's transmit checksum offload
    /// is on: the receiver will refuse them.
    pub unfinished_checksums: u64,
    /// Most frames that were in the emulated queue at once.
    pub queue_peak_packets: u64,
    /// How late frames left.
    pub lateness: Lateness,
}

/// How late frames left: from the time at which they were due to the start of the system call that
/// sent them. Frames never leave early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// Median, rounded up to a microsecond, as the other quantiles.
    pub median_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Maximum, exact.
    pub max_ns: u64,
}

/// Classes of one microsecond; what is later counts in the last class.
const CLASSES: usize = 4096;

/// Counts lateness in classes of one microsecond.
#[derive(Clone, Debug)]
pub struct LatenessHistogram {
    counts: Vec<u64>,
    max_ns: u64,
}

impl Default for LatenessHistogram {
    fn default() -> Self {
        Self {
            counts: vec![0; CLASSES],
            max_ns: 0,
        }
    }
}

impl LatenessHistogram {
    /// Counts one frame.
    pub fn record(&mut self, late_ns: u64) {
        let class = usize::try_from(late_ns / 1000).unwrap_or(CLASSES);
        self.counts[class.min(CLASSES - 1)] += 1;
        self.max_ns = self.max_ns.max(late_ns);
    }

    /// The quantiles.
    pub fn summary(&self) -> Lateness {
        let total: u64 = self.counts.iter().sum();
        let quantile = |percent: u64| {
            let wanted = (total * percent).div_ceil(100);
            let mut counted = 0;
            for (class, count) in self.counts.iter().enumerate() {
                counted += count;
                if counted >= wanted && counted > 0 {
                    // The last class is open: only the maximum is known of it.
                    let upper_ns = if class == CLASSES - 1 {
                        self.max_ns
                    } else {
                        (class as u64 + 1) * 1000
                    };
                    return upper_ns.min(self.max_ns);
                }
            }
            0
        };
        Lateness {
            median_ns: quantile(50),
            p90_ns: quantile(90),
            p99_ns: quantile(99),
            max_ns: self.max_ns,
        }
    }
}

/// All statistics of a relay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// From the first interface to the second.
    pub a_to_b: DirectionLedger,
    /// From the second interface to the first.
    pub b_to_a: DirectionLedger,
    /// False after the relay has stopped: `inside` is then what it had not forwarded.
    pub running: bool,
    /// Scheduling that the kernel granted: `fifo:<priority>` or `other`.
    pub scheduling: String,
    /// CPU to which the thread is bound.
    pub cpu: Option<usize>,
    /// CPU seconds of the thread, the kernel's delivery to the receiving host included.
    pub cpu_s: f64,
    /// Wall seconds since the start.
    pub wall_s: f64,
    /// Seed of the random sequences.
    pub seed: u64,
    /// Name of the random generator.
    pub generator: String,
}

#[cfg(test)]
mod tests {
    use super::LatenessHistogram;

    #[test]
    fn quantiles_of_lateness() {
        let mut histogram = LatenessHistogram::default();
        assert_eq!(histogram.summary().max_ns, 0);
        for late_us in 0..100 {
            histogram.record(late_us * 1000 + 500);
        }
        histogram.record(9_000_000);
        let summary = histogram.summary();
        assert_eq!(summary.median_ns, 51_000);
        assert_eq!(summary.p90_ns, 91_000);
        assert_eq!(summary.p99_ns, 100_000);
        assert_eq!(summary.max_ns, 9_000_000);
    }
}
