//! The geometric law.

use super::{Distribution, LawError};
use std::fmt;

/// Trials up to and with the first success: P(X > n) = (1 - 1 / mean)^n for n = 0, 1, 2, ...
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Geometric {
    mean: f64,
}

impl Geometric {
    /// The law with this mean.
    ///
    /// # Errors
    /// When `mean` is not finite and at least 1.
    pub fn new(mean: f64) -> Result<Self, LawError> {
        if mean.is_finite() && mean >= 1.0 {
            return Ok(Self { mean });
        }
        Err(LawError::Parameter {
            law: "geometric",
            parameter: "mean",
            found: super::number(mean),
            expected: "a finite number >= 1",
        })
    }
}

impl Distribution for Geometric {
    fn mean(&self) -> f64 {
        self.mean
    }

    fn variance(&self) -> f64 {
        self.mean * (self.mean - 1.0)
    }

    fn cdf(&self, x: f64) -> f64 {
        if x < 1.0 {
            return 0.0;
        }
        if self.mean == 1.0 {
            return 1.0;
        }
        -libm::expm1(x.floor() * libm::log1p(-1.0 / self.mean))
    }

    fn quantile(&self, probability: f64) -> f64 {
        if self.mean == 1.0 || probability <= 0.0 {
            return 1.0;
        }
        let trials = libm::log1p(-probability.min(1.0)) / libm::log1p(-1.0 / self.mean);
        trials.ceil().max(1.0)
    }
}

impl fmt::Display for Geometric {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "geometric:mean={}", self.mean)
    }
}
