//! The sources of a network.

use super::amount::Amount;
use super::error::ModelError;
use super::model::Source;
use super::names::Names;
use super::range::require;
use super::sampler::Sampler;
use super::traces::Traces;
use crate::distributions::number;

/// Minimum of the mean gap: shorter ones are too coarse in whole picoseconds.
const GAP_MIN_NS: f64 = 0.1;

/// Maximum length of a packet: it has 32 bits.
const LENGTH_MAX: f64 = u32::MAX as f64;

/// A source with its names resolved.
#[derive(Clone, Debug)]
pub(super) struct SourcePlan {
    pub class: u16,
    pub gap: Sampler,
    pub size: Sampler,
    pub packets: u64,
    /// Factor on every gap.
    pub stretch: f64,
}

impl SourcePlan {
    /// Resolves a source and checks its gaps and lengths.
    pub fn new(source: &Source, names: &Names, traces: &Traces) -> Result<Self, ModelError> {
        let place = format!("source {:?}", source.name);
        let gap = source.gap_ns.sampler(&format!("{place}, gap_ns"), traces)?;
        let size_place = format!("{place}, size_bytes");
        let size = source.size_bytes.sampler(&size_place, traces)?;
        let stretch = 1.0 / source.rate_factor;
        check_gap(&gap, stretch, source.packets.is_some(), &place)?;
        check_size(&size, &source.size_bytes, &size_place)?;
        Ok(Self {
            class: names.class(&source.class, &place)? as u16,
            gap,
            size,
            packets: source.packets.unwrap_or(u64::MAX),
            stretch,
        })
    }

    /// Whether it ends: after a number of packets, or with a trace.
    pub fn ends(&self) -> bool {
        let is_trace = |sampler: &Sampler| matches!(sampler, Sampler::Trace(..));
        self.packets != u64::MAX || is_trace(&self.gap) || is_trace(&self.size)
    }
}

fn check_gap(gap: &Sampler, stretch: f64, has_end: bool, place: &str) -> Result<(), ModelError> {
    let refuse = |value: &str, expected| Err(ModelError::value(place, "gap_ns", value, expected));
    match gap {
        Sampler::Table(..) => refuse(
            "a table over the length",
            "an amount without bytes, or a gap distribution",
        ),
        Sampler::Trace(..) => Ok(()),
        gap => match gap.mean(0.0) * stretch {
            0.0 if has_end => Ok(()),
            0.0 => refuse(
                "a distribution of mean 0",
                "a mean above 0, or a number of packets",
            ),
            mean if mean < GAP_MIN_NS => refuse(
                &number(mean),
                "a mean of at least 0.1 ns: times are whole picoseconds",
            ),
            _ => Ok(()),
        },
    }
}

fn check_size(size: &Sampler, amount: &Amount, place: &str) -> Result<(), ModelError> {
    let refuse = |value, expected| Err(ModelError::value(place, "a value", value, expected));
    match size {
        Sampler::Table(..) => return refuse("a table over the length", "an amount of bytes"),
        Sampler::Gaps(_) => return refuse("a gap process", "an amount of bytes"),
        _ => {}
    }
    // Samples of a distribution are rounded. Given values must be whole.
    let given = match (amount, size) {
        (Amount::Samples { samples }, _) => samples.as_slice(),
        (_, Sampler::Constant(bytes)) => std::slice::from_ref(bytes),
        (_, Sampler::Trace(values, _)) => values,
        _ => return Ok(()),
    };
    for &bytes in given {
        let is_length = bytes.fract() == 0.0 && bytes <= LENGTH_MAX;
        let expected = "a whole number up to 4294967295";
        require(is_length, place, "a value", number(bytes), expected)?;
    }
    Ok(())
}
