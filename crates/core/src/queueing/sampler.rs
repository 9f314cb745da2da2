//! Draws the times and lengths of a model.

use std::sync::Arc;

use super::amount::Amount;
use super::error::ModelError;
use super::range::{AMOUNT_MAX, duration};
use super::traces::Traces;
use crate::distributions::{
    AnyDistribution, Distribution, DistributionError, Empirical, GapDistribution, GapProcess,
    Histogram, Rng,
};

impl Amount {
    /// The sampler of this amount. An error names `place`, such as `queue "ipintrq", time_ns`.
    pub(super) fn sampler(&self, place: &str, traces: &Traces) -> Result<Sampler, ModelError> {
        let wrong = |error| ModelError::Distribution {
            place: place.to_string(),
            error,
        };
        Ok(match self {
            Self::Number(value) => {
                amount(place, *value)?;
                Sampler::Constant(*value)
            }
            Self::Text(text) => match text.parse::<AnyDistribution>() {
                Ok(AnyDistribution::Constant(constant)) => {
                    amount(place, constant.mean())?;
                    Sampler::Constant(constant.mean())
                }
                Ok(parsed) => {
                    // The mean of a heavy-tailed distribution may be infinite.
                    if parsed.mean() != f64::INFINITY {
                        duration(place, "mean", parsed.mean())?;
                    }
                    Sampler::Distribution(parsed)
                }
                // No distribution has the name of a gap process: report the error of the parser that knows the name.
                Err(error) => match GapDistribution::parse(text, None) {
                    Ok(gaps) => Sampler::Gaps(gaps),
                    Err(DistributionError::Unknown { .. }) => return Err(wrong(error)),
                    Err(gap_error) => return Err(wrong(gap_error)),
                },
            },
            Self::Samples { samples } => {
                samples
                    .iter()
                    .try_for_each(|&sample| amount(place, sample))?;
                let empirical = Empirical::new(samples.clone()).map_err(wrong)?;
                Sampler::Distribution(empirical.into())
            }
            Self::Histogram { bounds, counts } => {
                bounds.iter().try_for_each(|&bound| amount(place, bound))?;
                let histogram = Histogram::new(bounds, counts).map_err(wrong)?;
                Sampler::Distribution(histogram.into())
            }
            Self::Table { bytes, values } => {
                let expected = "as many rising lengths as values, all from 0 to 1e16";
                let rises = bytes.windows(2).all(|pair| pair[0] < pair[1]);
                let all = || bytes.iter().chain(values);
                if bytes.is_empty()
                    || bytes.len() != values.len()
                    || !rises
                    || !all().all(|&v| is_amount(v))
                {
                    return Err(ModelError::value(
                        place,
                        "the table",
                        format!("of {} lengths and {} values", bytes.len(), values.len()),
                        expected,
                    ));
                }
                Sampler::Table(bytes.as_slice().into(), values.as_slice().into())
            }
            Self::Trace { trace } => Sampler::Trace(traces.require(trace, place)?, 0),
        })
    }
}

/// Draws an amount. Replications share its tables.
#[derive(Clone, Debug)]
pub(super) enum Sampler {
    Constant(f64),
    Distribution(AnyDistribution),
    Gaps(GapDistribution),
    Running(GapProcess),
    Table(Arc<[f64]>, Arc<[f64]>),
    Trace(Arc<[f64]>, usize),
}

impl Sampler {
    /// The mean for packets of a mean length; for a table, the value at that length.
    pub fn mean(&self, bytes: f64) -> f64 {
        match self {
            Self::Constant(value) => *value,
            Self::Distribution(distribution) => distribution.mean_cut_at_0(),
            Self::Gaps(gaps) => gaps.mean_gap_ns(),
            Self::Running(_) => unreachable!("plans hold distributions, not processes"),
            Self::Table(at, values) => interpolate(at, values, bytes),
            Self::Trace(values, _) => values.iter().sum::<f64>() / values.len() as f64,
        }
    }

    /// The length of every packet in bytes, if this is a constant length.
    #[inline]
    pub fn constant_bytes(&self) -> Option<u32> {
        match self {
            Self::Constant(bytes) => Some(*bytes as u32),
            _ => None,
        }
    }

    /// Whether it is a trace whose last value was drawn.
    #[inline]
    pub fn is_exhausted(&self) -> bool {
        matches!(self, Self::Trace(values, next) if *next == values.len())
    }

    /// Starts an arrival process.
    pub fn start(&mut self, rng: &mut Rng) {
        if let Self::Gaps(gaps) = self {
            *self = Self::Running(gaps.start(rng));
        }
    }

    /// Draws a value for a packet of this length; None at the end of a trace, which then restarts.
    #[inline]
    pub fn sample(&mut self, bytes: u32, rng: &mut Rng) -> Option<f64> {
        Some(match self {
            Self::Constant(value) => *value,
            // The most common distribution is inlined.
            Self::Distribution(AnyDistribution::Exponential(times)) => times.sample(rng),
            Self::Distribution(distribution) => distribution.sample(rng).max(0.0),
            Self::Running(process) => process.next_gap_ns(rng),
            Self::Gaps(_) => unreachable!("processes start before a run"),
            Self::Table(at, values) => interpolate(at, values, f64::from(bytes)),
            Self::Trace(values, next) => match values.get(*next) {
                Some(&value) => {
                    *next += 1;
                    value
                }
                None => {
                    *next = 0;
                    return None;
                }
            },
        })
    }
}

fn is_amount(value: f64) -> bool {
    (0.0..=AMOUNT_MAX).contains(&value)
}

fn amount(place: &str, value: f64) -> Result<(), ModelError> {
    duration(place, "a value", value)
}

fn interpolate(at: &[f64], values: &[f64], x: f64) -> f64 {
    let above = at.partition_point(|&known| known < x);
    if above == 0 {
        return values[0];
    }
    if above == at.len() {
        return values[above - 1];
    }
    let part = (x - at[above - 1]) / (at[above] - at[above - 1]);
    values[above - 1] + part * (values[above] - values[above - 1])
}
