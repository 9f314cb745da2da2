//! The Erlang law.

use super::error::positive;
use super::law::{Distribution, inverse};
use super::{Generator, LawError};
use std::fmt;

/// Sum of `stages` exponential times of mean `mean / stages` each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Erlang {
    stages: u32,
    mean: f64,
}

/// More stages vary by less than 1.6 % of the mean: take `normal` or `constant`.
const STAGES_MAX: u32 = 4096;

impl Erlang {
    /// The law of this many stages with this mean in all.
    ///
    /// # Errors
    /// When `stages` is not in 1..=4096 or `mean` not finite and above 0.
    pub fn new(stages: u32, mean: f64) -> Result<Self, LawError> {
        if !(1..=STAGES_MAX).contains(&stages) {
            return Err(LawError::Parameter {
                law: "erlang",
                parameter: "stages",
                found: stages.to_string(),
                expected: "1 to 4096",
            });
        }
        Ok(Self {
            stages,
            mean: positive("erlang", "mean", mean)?,
        })
    }
}

impl Distribution for Erlang {
    fn mean(&self) -> f64 {
        self.mean
    }

    fn variance(&self) -> f64 {
        self.mean * self.mean / f64::from(self.stages)
    }

    /// 1 - sum over n < k of exp(-a) a^n / n!, with a = k x / mean.
    fn cdf(&self, x: f64) -> f64 {
        if x <= 0.0 {
            return 0.0;
        }
        let arrivals = f64::from(self.stages) * x / self.mean;
        // In logarithms, since exp(-a) alone is 0 for many stages.
        let mut logarithm = -arrivals;
        let mut sum = 0.0;
        for stage in 0..self.stages {
            sum += libm::exp(logarithm);
            logarithm += libm::log(arrivals) - libm::log(f64::from(stage + 1));
        }
        (1.0 - sum).clamp(0.0, 1.0)
    }

    /// By bisection below the first power of two times the mean that is beyond it.
    fn quantile(&self, probability: f64) -> f64 {
        if probability <= 0.0 {
            return 0.0;
        }
        if probability >= 1.0 {
            return f64::INFINITY;
        }
        let (mut low, mut high) = (0.0, self.mean);
        while self.cdf(high) < probability {
            low = high;
            high *= 2.0;
            if !high.is_finite() {
                return f64::INFINITY;
            }
        }
        inverse(|x| self.cdf(x), probability, low, high)
    }

    /// Draws one number for each stage.
    fn sample(&self, generator: &mut Generator) -> f64 {
        let sum: f64 = (0..self.stages)
            .map(|_| -libm::log(generator.open_unit()))
            .sum();
        sum * self.mean / f64::from(self.stages)
    }
}

impl fmt::Display for Erlang {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "erlang:stages={},mean={}",
            self.stages, self.mean
        )
    }
}
