//! The service time of the packets of a class at a queue.

use super::error::ModelError;
use super::model::Service;
use super::sampler::Sampler;
use super::time::whole;
use super::traces::Traces;
use crate::distributions::Rng;

/// A service time in picoseconds.
#[derive(Clone, Debug)]
pub(super) enum ServiceTime {
    Fixed(u64),
    PerByte {
        base: f64,
        per_byte: f64,
    },
    Random {
        sampler: Sampler,
        factor: f64,
        base: f64,
        per_byte: f64,
    },
}

impl ServiceTime {
    /// Resolves a service at a station with this processor clock; errors name `place`.
    pub fn new(
        service: &Service,
        clock_mhz: Option<f64>,
        place: &str,
        traces: &Traces,
    ) -> Result<Self, ModelError> {
        let clock_ratio = match (service.measured_at_mhz, clock_mhz) {
            (Some(measured), Some(clock)) => measured / clock,
            _ => 1.0,
        };
        let factor = 1000.0 * clock_ratio;
        let (base, per_byte) = (service.fixed_ns * 1000.0, service.per_byte_ns * factor);
        Ok(match service.time_ns.sampler(place, traces)? {
            Sampler::Constant(value) if per_byte == 0.0 => {
                Self::Fixed(whole(value * factor + base))
            }
            Sampler::Constant(value) => Self::PerByte {
                base: value * factor + base,
                per_byte,
            },
            Sampler::Gaps(_) => {
                return Err(ModelError::value(
                    place,
                    "the distribution",
                    "a gap process",
                    "a distribution of times",
                ));
            }
            sampler => Self::Random {
                sampler,
                factor,
                base,
                per_byte,
            },
        })
    }

    /// The time of a packet of this length; None if it is random.
    #[inline]
    pub fn of_length(&self, bytes: u32) -> Option<u64> {
        match self {
            Self::Fixed(time) => Some(*time),
            Self::PerByte { base, per_byte } => Some(whole(f64::from(bytes) * *per_byte + *base)),
            Self::Random { .. } => None,
        }
    }

    /// The mean time of packets of a mean length.
    pub fn mean(&self, bytes: f64) -> f64 {
        match self {
            Self::Fixed(time) => *time as f64,
            Self::PerByte { base, per_byte } => base + per_byte * bytes,
            Self::Random {
                sampler,
                factor,
                base,
                per_byte,
            } => sampler.mean(bytes) * factor + base + per_byte * bytes,
        }
    }

    /// Draws the time of a packet of this length.
    #[inline]
    pub fn sample(&mut self, bytes: u32, rng: &mut Rng) -> u64 {
        match self {
            Self::Fixed(time) => *time,
            Self::PerByte { base, per_byte } => whole(f64::from(bytes) * *per_byte + *base),
            Self::Random {
                sampler,
                factor,
                base,
                per_byte,
            } => {
                // A trace restarts at its end.
                let value = sampler
                    .sample(bytes, rng)
                    .or_else(|| sampler.sample(bytes, rng))
                    .unwrap_or(0.0);
                whole(value * *factor + f64::from(bytes) * *per_byte + *base)
            }
        }
    }
}
