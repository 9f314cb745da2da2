//! The exponential law.

use super::error::positive;
use super::{Distribution, LawError};
use std::fmt;

/// P(X > x) = exp(-x / mean).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exponential {
    mean: f64,
}

impl Exponential {
    /// The law with this mean.
    ///
    /// # Errors
    /// When `mean` is not finite and above 0.
    pub fn new(mean: f64) -> Result<Self, LawError> {
        Ok(Self {
            mean: positive("exponential", "mean", mean)?,
        })
    }
}

impl Distribution for Exponential {
    fn mean(&self) -> f64 {
        self.mean
    }

    fn variance(&self) -> f64 {
        self.mean * self.mean
    }

    fn cdf(&self, x: f64) -> f64 {
        -libm::expm1(-x.max(0.0) / self.mean)
    }

    fn quantile(&self, probability: f64) -> f64 {
        -self.mean * libm::log1p(-probability.clamp(0.0, 1.0))
    }
}

impl fmt::Display for Exponential {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "exponential:mean={}", self.mean)
    }
}
