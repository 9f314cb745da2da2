//! The law of samples.

use super::error::finite;
use super::{Distribution, Generator, LawError};
use std::fmt;
use std::sync::Arc;

/// Each of the samples with equal probability.
#[derive(Debug, Clone, PartialEq)]
pub struct Empirical {
    // Ascending. Shared, so that a law can be copied into every station of a model.
    samples: Arc<[f64]>,
    mean: f64,
    variance: f64,
}

impl Empirical {
    /// The law of these samples, in any order.
    ///
    /// # Errors
    /// When there are none, or one is not finite.
    pub fn new(mut samples: Vec<f64>) -> Result<Self, LawError> {
        if samples.is_empty() {
            return Err(LawError::Parameter {
                law: "empirical",
                parameter: "samples",
                found: "empty".into(),
                expected: "one sample or more",
            });
        }
        for &sample in &samples {
            finite("empirical", "sample", sample)?;
        }
        samples.sort_by(f64::total_cmp);
        let count = samples.len() as f64;
        let mean = samples.iter().map(|sample| sample / count).sum::<f64>();
        let variance = samples
            .iter()
            .map(|sample| (sample - mean) * (sample - mean) / count)
            .sum();
        Ok(Self {
            samples: samples.into(),
            mean,
            variance,
        })
    }

    /// The samples, ascending.
    pub fn samples(&self) -> &[f64] {
        &self.samples
    }
}

impl Distribution for Empirical {
    fn mean(&self) -> f64 {
        self.mean
    }

    /// Of the samples as a whole population: divided by n.
    fn variance(&self) -> f64 {
        self.variance
    }

    fn cdf(&self, x: f64) -> f64 {
        self.samples.partition_point(|&sample| sample <= x) as f64 / self.samples.len() as f64
    }

    fn quantile(&self, probability: f64) -> f64 {
        let rank = (probability.clamp(0.0, 1.0) * self.samples.len() as f64).ceil() as usize;
        self.samples[rank.clamp(1, self.samples.len()) - 1]
    }

    fn sample(&self, generator: &mut Generator) -> f64 {
        self.samples[generator.below(self.samples.len() as u64) as usize]
    }
}

impl fmt::Display for Empirical {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "empirical ({} samples, mean {})",
            self.samples.len(),
            self.mean
        )
    }
}
