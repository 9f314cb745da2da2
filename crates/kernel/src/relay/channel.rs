//! The emulated link itself: what becomes of a frame, as a function of when frames arrive.
//!
//! Nothing here does I/O or reads a clock. Because every stage is first in, first out, a frame's
//! whole fate is known when it arrives: the serialiser begins with it when it has finished with its
//! predecessor, and the queue is the set of frames whose last bit has not yet left the serialiser.
//! A queue with another discipline ([`super::discipline`]) comes before [`Channel::pass`].

use super::error::RelayError;
use super::serialiser::Serialiser;
use super::shape::{JitterDistribution, Shape};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use std::collections::VecDeque;

/// Name of the random generator, stored with results.
pub const GENERATOR: &str = "Pcg64 (rand_pcg 0.10, seed_from_u64)";

/// What a random sequence of a direction decides: each has its own, so that none shifts another.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// Which frames the link loses.
    Loss,
    /// How their delays vary.
    Jitter,
    /// Which frames the queue's discipline drops, and how it spreads flows.
    Queue,
}

/// The seed of a random sequence of a direction (0 or 1).
pub fn seed_of(seed: u64, direction: u64, purpose: Purpose) -> u64 {
    let number = match purpose {
        Purpose::Loss => direction * 2,
        Purpose::Jitter => direction * 2 + 1,
        Purpose::Queue => direction + 4,
    };
    // An odd multiplier maps numbers to seeds that never meet for one `seed`.
    seed.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The queue was full.
    QueueDropped,
    /// The link lost it, after it had taken its time in queue and serialiser.
    LossDropped,
    /// It leaves the link at this time, on the clock of the arrivals.
    Departs {
        /// Nanoseconds.
        at_ns: u64,
    },
}

/// One direction of a link.
#[derive(Clone, Debug)]
pub struct Channel {
    shape: Shape,
    arrival_ns: u64,
    serialiser: Serialiser,
    /// Frames in the queue: when the last bit leaves, and the size.
    queue: VecDeque<(u64, u64)>,
    queued_bytes: u64,
    queue_peak_packets: usize,
    departure_ns: u64,
    loss: Pcg64,
    jitter: Pcg64,
}

impl Channel {
    /// A direction with this shape. `seed` and `direction` (0 or 1) name its random sequences, as of [`seed_of`].
    pub fn new(shape: Shape, seed: u64, direction: u64) -> Result<Self, RelayError> {
        let sequence = |purpose| Pcg64::seed_from_u64(seed_of(seed, direction, purpose));
        Ok(Self {
            shape: shape.checked()?,
            arrival_ns: 0,
            serialiser: Serialiser::default(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            queue_peak_packets: 0,
            departure_ns: 0,
            loss: sequence(Purpose::Loss),
            jitter: sequence(Purpose::Jitter),
        })
    }

    /// The shape in force, defaults filled in.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Most frames that were in the queue at once.
    pub fn queue_peak_packets(&self) -> usize {
        self.queue_peak_packets
    }

    /// A frame of `frame_bytes` arrives at `arrival_ns`; times that run backwards count as equal to
    /// the latest.
    pub fn offer(&mut self, arrival_ns: u64, frame_bytes: u32) -> Fate {
        let arrival_ns = arrival_ns.max(self.arrival_ns);
        self.arrival_ns = arrival_ns;
        let size_bytes = u64::from(frame_bytes) + u64::from(self.shape.overhead_bytes);

        let serialised_ns = match self.shape.rate_bps {
            None => arrival_ns,
            Some(rate_bps) => {
                if !self.admit(arrival_ns, size_bytes) {
                    return Fate::QueueDropped;
                }
                let leaves_ns = self.serialiser.serialise(arrival_ns, size_bytes, rate_bps);
                self.queue.push_back((leaves_ns, size_bytes));
                self.queued_bytes += size_bytes;
                self.queue_peak_packets = self.queue_peak_packets.max(self.queue.len());
                leaves_ns
            }
        };

        self.pass(serialised_ns)
    }

    /// The last bit of a frame has left the serialiser: what becomes of it on the link.
    pub fn pass(&mut self, serialised_ns: u64) -> Fate {
        let probability = self.shape.loss_probability;
        if probability > 0.0 && self.loss.random::<f64>() < probability {
            return Fate::LossDropped;
        }

        // First in, first out: no frame overtakes another.
        self.departure_ns = self.departure_ns.max(serialised_ns + self.delay_ns());
        Fate::Departs {
            at_ns: self.departure_ns,
        }
    }

    /// Removes frames that have left the queue by now, and returns whether one more fits.
    fn admit(&mut self, now_ns: u64, size_bytes: u64) -> bool {
        while let Some(&(leaves_ns, bytes)) = self.queue.front()
            && leaves_ns <= now_ns
        {
            self.queue.pop_front();
            self.queued_bytes -= bytes;
        }
        let packets_fit = self
            .shape
            .queue_packets
            .is_none_or(|limit| self.queue.len() < limit as usize);
        let bytes_fit = self
            .shape
            .queue_bytes
            .is_none_or(|limit| self.queued_bytes + size_bytes <= limit);
        packets_fit && bytes_fit
    }

    fn delay_ns(&mut self) -> u64 {
        let Shape {
            delay_ns,
            jitter_ns,
            jitter_distribution,
            ..
        } = self.shape;
        if jitter_ns == 0 {
            return delay_ns;
        }
        let deviation = match jitter_distribution {
            JitterDistribution::Uniform => 2.0 * self.jitter.random::<f64>() - 1.0,
            JitterDistribution::Normal => {
                // Box and Muller 1958; 1 - u is in (0, 1], so that the logarithm is finite.
                let radius = (-2.0 * (1.0 - self.jitter.random::<f64>()).ln()).sqrt();
                radius * (std::f64::consts::TAU * self.jitter.random::<f64>()).cos()
            }
        };
        (delay_ns as f64 + deviation * jitter_ns as f64)
            .round()
            .max(0.0) as u64
    }
}
