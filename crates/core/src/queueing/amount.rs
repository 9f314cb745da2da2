//! Times and lengths of a model: as data, and as what draws them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::check::duration;
use super::error::ModelError;
use super::traces::Traces;
use crate::laws::{
    Distribution, Empirical, GapLaw, GapProcess, Generator, Histogram, Law, LawError,
};

/// No time in ns and no length in bytes is greater; the clock of a run ends at 1.8e16 ns.
pub(super) const AMOUNT_MAX: f64 = 1e16;

/// A time or a length, perhaps random. Its unit is that of the field which holds it; a law that
/// goes below 0 is cut off there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Amount {
    /// Always the same.
    Number(f64),
    /// A law as text, such as `exponential:mean=2.5us`; for gaps also a process, such as `poisson:...`.
    Text(String),
    /// One of the values that were measured, all alike (the bootstrap).
    Samples {
        /// The measured values.
        samples: Vec<f64>,
    },
    /// A measured histogram: a bin by its count, then anything inside the bin alike.
    Histogram {
        /// Bounds of the bins, rising; one more than counts.
        bounds: Vec<f64>,
        /// Counts, or weights in any unit.
        counts: Vec<f64>,
    },
    /// A function of the packet's length: straight lines between points, constant beyond them.
    Table {
        /// Lengths, rising.
        bytes: Vec<f64>,
        /// Values at those lengths.
        values: Vec<f64>,
    },
    /// Recorded values in their order. A source ends with its trace; a service starts again at its
    /// first value.
    Trace {
        /// Name of the trace among those that are given with the run.
        trace: String,
    },
}

impl Amount {
    /// What draws it, for a `place` (such as `queue "ipintrq", law_ns`) that an error names.
    pub(super) fn draw(&self, place: &str, traces: &Traces) -> Result<Draw, ModelError> {
        let law = |law: Result<Law, LawError>| {
            law.map_err(|error| ModelError::Law {
                place: place.to_string(),
                error,
            })
        };
        Ok(match self {
            Self::Number(value) => {
                amount(place, *value)?;
                Draw::Constant(*value)
            }
            Self::Text(text) => match text.parse::<Law>() {
                Ok(Law::Constant(constant)) => {
                    amount(place, constant.mean())?;
                    Draw::Constant(constant.mean())
                }
                Ok(parsed) => {
                    // That of a heavy tail may be infinite.
                    if parsed.mean() != f64::INFINITY {
                        duration(place, "mean", parsed.mean())?;
                    }
                    Draw::Law(parsed)
                }
                // Names of laws and of gap processes differ, so the message of the one that knows it fits.
                Err(error) => match GapLaw::parse(text, None) {
                    Ok(gaps) => Draw::Gaps(gaps),
                    Err(LawError::Unknown { .. }) => law(Err(error)).map(Draw::Law)?,
                    Err(of_gaps) => law(Err(of_gaps)).map(Draw::Law)?,
                },
            },
            Self::Samples { samples } => {
                samples
                    .iter()
                    .try_for_each(|&sample| amount(place, sample))?;
                Draw::Law(law(Empirical::new(samples.clone()).map(Law::from))?)
            }
            Self::Histogram { bounds, counts } => {
                bounds.iter().try_for_each(|&bound| amount(place, bound))?;
                Draw::Law(law(Histogram::new(bounds, counts).map(Law::from))?)
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
                Draw::Table(bytes.as_slice().into(), values.as_slice().into())
            }
            Self::Trace { trace } => Draw::Trace(traces.need(trace, place)?, 0),
        })
    }
}

/// Draws an amount; what it needs is worked out once and shared between replications.
#[derive(Clone, Debug)]
pub(super) enum Draw {
    Constant(f64),
    Law(Law),
    Gaps(GapLaw),
    Running(GapProcess),
    Table(Arc<[f64]>, Arc<[f64]>),
    Trace(Arc<[f64]>, usize),
}

impl Draw {
    /// The mean, for packets of a mean length; of a table, its value at that length.
    pub fn mean(&self, bytes: f64) -> f64 {
        match self {
            Self::Constant(value) => *value,
            Self::Law(law) => law.mean_cut_at_0(),
            Self::Gaps(gaps) => gaps.mean_gap_ns(),
            Self::Running(_) => unreachable!("plans hold laws, not processes"),
            Self::Table(at, values) => interpolate(at, values, bytes),
            Self::Trace(values, _) => values.iter().sum::<f64>() / values.len() as f64,
        }
    }

    /// The length of every packet, where this draws lengths and does not vary.
    #[inline]
    pub fn constant_bytes(&self) -> Option<u32> {
        match self {
            Self::Constant(bytes) => Some(*bytes as u32),
            _ => None,
        }
    }

    /// Whether it is a trace of which all was drawn.
    #[inline]
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Trace(values, next) if *next == values.len())
    }

    /// Lets a process begin.
    pub fn start(&mut self, generator: &mut Generator) {
        if let Self::Gaps(gaps) = self {
            *self = Self::Running(gaps.start(generator));
        }
    }

    /// A value for a packet of this length; None when a trace has ended, which starts it again.
    #[inline]
    pub fn next(&mut self, bytes: u32, generator: &mut Generator) -> Option<f64> {
        Some(match self {
            Self::Constant(value) => *value,
            // What most services are is drawn in place.
            Self::Law(Law::Exponential(law)) => law.sample(generator),
            Self::Law(law) => law.sample(generator).max(0.0),
            Self::Running(process) => process.next_gap_ns(generator),
            Self::Gaps(_) => unreachable!("processes are started before a run"),
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
