//! The text of a distribution of sizes.

use super::{
    BUILT_IN, Parameters, SIZE_MAX_BYTES, SizeCounts, SizesError, TwoStage, built_in, read_dist,
    read_procfs, read_sizes,
};
use crate::distributions::Rng;
use std::fs::File;
use std::io::BufReader;

const EXPECTED: &str = "a size, LOW-HIGH, fixed:SIZE, uniform:LOW-HIGH, imix, imix-tcp, imix-ipsec, thesis, procfs:FILE, \
                        dist:FILE or sizes:FILE";

/// A distribution of packet sizes.
#[derive(Debug, Clone, PartialEq)]
pub enum SizeDistribution {
    /// All the same, bytes.
    Fixed(u32),
    /// Uniform over a range, bytes.
    Uniform {
        /// Smallest.
        low_bytes: u32,
        /// Largest.
        high_bytes: u32,
    },
    /// Outliers and bins.
    TwoStage(Box<TwoStage>),
}

impl SizeDistribution {
    /// The distribution of a text: `64`, `fixed:64`, `40-1500`, `uniform:40-1500`, the name of a built-in distribution,
    /// or
    /// `procfs:FILE`, `dist:FILE`, `sizes:FILE`. Built-in distributions and `dist` and `sizes` files are represented by
    /// `parameters`.
    ///
    /// # Errors
    /// When the text names no distribution, or its file cannot be read or understood.
    pub fn parse(text: &str, parameters: &Parameters) -> Result<Self, SizesError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "fixed" => fixed(text, rest),
            "uniform" => uniform(text, rest),
            "procfs" => Ok(Self::TwoStage(Box::new(read_procfs(open(rest)?, rest)?))),
            "dist" => Self::of_counts(&read_dist(open(rest)?, rest, ' ')?, parameters),
            "sizes" => Self::of_counts(&read_sizes(open(rest)?, rest)?, parameters),
            _ if rest.is_empty() && BUILT_IN.iter().any(|(name, _)| *name == kind) => {
                let counts = built_in(kind).unwrap_or_default();
                // A few exact sizes need no bins, and all of them fit with enough cells.
                Self::of_counts(&counts, parameters)
            }
            _ if text.contains('-') => uniform(text, text),
            _ => fixed(text, text),
        }
    }

    fn of_counts(counts: &SizeCounts, parameters: &Parameters) -> Result<Self, SizesError> {
        Ok(Self::TwoStage(Box::new(TwoStage::from_counts(
            counts, parameters,
        )?)))
    }

    /// Draws a size, bytes.
    pub fn sample(&self, rng: &mut Rng) -> u32 {
        match self {
            Self::Fixed(size_bytes) => *size_bytes,
            Self::Uniform {
                low_bytes,
                high_bytes,
            } => low_bytes + rng.below(u64::from(high_bytes - low_bytes) + 1) as u32,
            Self::TwoStage(distribution) => distribution.sample(rng),
        }
    }

    /// Mean of `value` over the distribution: of the size itself with `|size| f64::from(size)`.
    pub fn mean_of(&self, value: impl Fn(u32) -> f64) -> f64 {
        match self {
            Self::Fixed(size_bytes) => value(*size_bytes),
            Self::Uniform {
                low_bytes,
                high_bytes,
            } => {
                let sizes = f64::from(high_bytes - low_bytes + 1);
                (*low_bytes..=*high_bytes)
                    .map(|size| value(size) / sizes)
                    .sum()
            }
            Self::TwoStage(distribution) => (0..)
                .zip(distribution.probabilities())
                .filter(|(_, probability)| *probability > 0.0)
                .map(|(size, probability)| probability * value(size))
                .sum(),
        }
    }

    /// The largest size that can be drawn, bytes.
    pub fn largest_bytes(&self) -> u32 {
        match self {
            Self::Fixed(size_bytes) => *size_bytes,
            Self::Uniform { high_bytes, .. } => *high_bytes,
            Self::TwoStage(distribution) => distribution
                .probabilities()
                .iter()
                .rposition(|probability| *probability > 0.0)
                .map_or(0, |size| size as u32),
        }
    }

    /// P(size <= x bytes).
    pub fn cdf(&self, x_bytes: u32) -> f64 {
        match self {
            Self::Fixed(size_bytes) => f64::from(u8::from(x_bytes >= *size_bytes)),
            Self::Uniform {
                low_bytes,
                high_bytes,
            } => {
                let sizes = f64::from(high_bytes - low_bytes + 1);
                (f64::from((x_bytes + 1).saturating_sub(*low_bytes)) / sizes).min(1.0)
            }
            Self::TwoStage(distribution) => distribution
                .probabilities()
                .iter()
                .take(x_bytes as usize + 1)
                .sum::<f64>()
                .min(1.0),
        }
    }
}

fn wrong(text: &str, reason: impl Into<String>) -> SizesError {
    SizesError::Spec {
        found: text.into(),
        reason: reason.into(),
        expected: EXPECTED,
    }
}

fn size(text: &str, digits: &str) -> Result<u32, SizesError> {
    digits
        .trim()
        .parse()
        .ok()
        .filter(|size| (1..=SIZE_MAX_BYTES).contains(size))
        .ok_or_else(|| {
            wrong(
                text,
                format!("{digits:?} is no size from 1 to {SIZE_MAX_BYTES}"),
            )
        })
}

fn fixed(text: &str, digits: &str) -> Result<SizeDistribution, SizesError> {
    Ok(SizeDistribution::Fixed(size(text, digits)?))
}

fn uniform(text: &str, range: &str) -> Result<SizeDistribution, SizesError> {
    let (low, high) = range
        .split_once('-')
        .ok_or_else(|| wrong(text, "a range needs LOW-HIGH"))?;
    let (low_bytes, high_bytes) = (size(text, low)?, size(text, high)?);
    if low_bytes > high_bytes {
        return Err(wrong(text, format!("{low_bytes} is above {high_bytes}")));
    }
    Ok(SizeDistribution::Uniform {
        low_bytes,
        high_bytes,
    })
}

fn open(path: &str) -> Result<BufReader<File>, SizesError> {
    File::open(path)
        .map(BufReader::new)
        .map_err(|source| SizesError::Read {
            source_name: path.into(),
            source,
        })
}
