//! The parameters of one direction of an emulated link.

use super::discipline::Discipline;
use super::error::RelayError;
use serde::{Deserialize, Serialize};

/// Frames that a queue holds when a rate is asked for without a bound: the length that Linux gives
/// to interfaces (`txqueuelen`) and to netem (`limit`).
const DEFAULT_QUEUE_PACKETS: u32 = 1000;

/// Largest rate: keeps every product of the serialiser inside 64 bits.
const MAX_RATE_BPS: u64 = 1_000_000_000_000;

/// Largest delay and jitter: one hour.
const MAX_DELAY_NS: u64 = 3_600_000_000_000;

/// Largest bound of the queue in frames: the queue's bookkeeping stays below 256 MiB.
const MAX_QUEUE_PACKETS: u32 = 1 << 24;

/// Largest bound of the queue in bytes.
const MAX_QUEUE_BYTES: u64 = 1 << 32;

/// The distribution of the random part of the delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JitterDistribution {
    /// Uniform on `[delay - jitter, delay + jitter]`.
    #[default]
    Uniform,
    /// Normal with mean `delay` and standard deviation `jitter`.
    Normal,
}

/// What one direction of a link does to frames, in the order queue, rate, loss, delay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    /// Bits per second of the serialiser; none: frames pass at once and no queue forms.
    pub rate_bps: Option<u64>,
    /// Bytes added to every frame for the rate and for `queue_bytes`. A frame's own size is what a
    /// packet socket sees: Ethernet header (14 bytes, 18 with a VLAN tag) and payload, without
    /// frame check sequence, preamble and gap. 24 gives the time on a real Ethernet wire.
    pub overhead_bytes: u32,
    /// Constant part of the delay.
    pub delay_ns: u64,
    /// Random part of the delay; see [`JitterDistribution`]. A delay below 0 becomes 0, and a frame that
    /// would overtake its predecessor leaves together with it.
    pub jitter_ns: u64,
    /// Distribution of the random part.
    pub jitter_distribution: JitterDistribution,
    /// Probability with which a frame that passed the queue is lost, each independently.
    pub loss_probability: f64,
    /// Bound of the queue in frames, the one being serialised included.
    pub queue_packets: Option<u32>,
    /// Bound of the queue in bytes, the frame being serialised included.
    pub queue_bytes: Option<u64>,
    /// Which frames the queue drops.
    pub discipline: Discipline,
    /// Whether the discipline marks frames that can be marked (RFC 3168) in place of dropping them.
    pub is_ecn: bool,
    /// The waiting time that the discipline accepts; none: 5 ms of CoDel and FQ-CoDel, 15 ms of PIE.
    pub target_ns: Option<u64>,
    /// The interval of CoDel and FQ-CoDel; none: 100 ms.
    pub interval_ns: Option<u64>,
}

impl Shape {
    /// Nanoseconds that every frame spends in the link at least, whatever its size.
    pub fn least_delay_ns(&self) -> u64 {
        match self.jitter_distribution {
            _ if self.jitter_ns == 0 => self.delay_ns,
            JitterDistribution::Uniform => self.delay_ns.saturating_sub(self.jitter_ns),
            JitterDistribution::Normal => 0,
        }
    }

    /// Checks every range, and gives a queue without any bound the default one.
    pub fn checked(mut self) -> Result<Self, RelayError> {
        let check = |parameter, value: String, is_inside, range| match is_inside {
            true => Ok(()),
            false => Err(RelayError::Parameter {
                parameter,
                value,
                range,
            }),
        };
        if let Some(rate_bps) = self.rate_bps {
            let is_inside = (1..=MAX_RATE_BPS).contains(&rate_bps);
            check("rate_bps", rate_bps.to_string(), is_inside, "1 to 1e12")?;
            if self.queue_packets.is_none() && self.queue_bytes.is_none() {
                self.queue_packets = Some(DEFAULT_QUEUE_PACKETS);
            }
        }
        let times = [
            ("delay_ns", self.delay_ns),
            ("jitter_ns", self.jitter_ns),
            ("target_ns", self.target_ns.unwrap_or(1)),
            ("interval_ns", self.interval_ns.unwrap_or(1)),
        ];
        for (parameter, time_ns) in times {
            let is_inside = time_ns <= MAX_DELAY_NS;
            let range = "0 to 3.6e12 (one hour)";
            check(parameter, time_ns.to_string(), is_inside, range)?;
        }
        let loss = self.loss_probability;
        let is_inside = (0.0..=1.0).contains(&loss);
        check("loss_probability", loss.to_string(), is_inside, "0 to 1")?;
        let overhead = self.overhead_bytes;
        let is_inside = overhead <= 4096;
        check(
            "overhead_bytes",
            overhead.to_string(),
            is_inside,
            "0 to 4096",
        )?;
        if let Some(packets) = self.queue_packets {
            let is_inside = (1..=MAX_QUEUE_PACKETS).contains(&packets);
            check(
                "queue_packets",
                packets.to_string(),
                is_inside,
                "1 to 16777216",
            )?;
        }
        if let Some(bytes) = self.queue_bytes {
            let is_inside = (1..=MAX_QUEUE_BYTES).contains(&bytes);
            check(
                "queue_bytes",
                bytes.to_string(),
                is_inside,
                "1 to 4294967296",
            )?;
        }
        Ok(self)
    }
}
