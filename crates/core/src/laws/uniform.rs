//! The uniform law.

use super::error::finite;
use super::{Distribution, LawError};
use std::fmt;

/// Equal density between `low` and `high`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Uniform {
    low: f64,
    high: f64,
}

impl Uniform {
    /// Uniform in [low, high].
    ///
    /// # Errors
    /// When a bound is not finite, or `high` is not above `low`.
    pub fn new(low: f64, high: f64) -> Result<Self, LawError> {
        finite("uniform", "low", low)?;
        finite("uniform", "high", high)?;
        if high <= low || !(high - low).is_finite() {
            return Err(LawError::Parameter {
                law: "uniform",
                parameter: "high",
                found: super::number(high),
                expected: "a number above low",
            });
        }
        Ok(Self { low, high })
    }
}

impl Uniform {
    /// Expected value of max(0, X): of the part above 0, its middle times its probability.
    pub(super) fn mean_cut_at_0(&self) -> f64 {
        let (low, high) = (self.low.max(0.0), self.high.max(0.0));
        (low + high) / 2.0 * (high - low) / (self.high - self.low)
    }
}

impl Distribution for Uniform {
    fn mean(&self) -> f64 {
        self.low + (self.high - self.low) / 2.0
    }

    fn variance(&self) -> f64 {
        (self.high - self.low) * (self.high - self.low) / 12.0
    }

    fn cdf(&self, x: f64) -> f64 {
        ((x - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    fn quantile(&self, probability: f64) -> f64 {
        self.low + probability.clamp(0.0, 1.0) * (self.high - self.low)
    }
}

impl fmt::Display for Uniform {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "uniform:low={},high={}", self.low, self.high)
    }
}
