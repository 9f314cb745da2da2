//! The Weibull law.

use super::error::positive;
use super::{Distribution, LawError};
use std::fmt;

/// P(X > x) = exp(-(x / scale)^shape).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weibull {
    shape: f64,
    scale: f64,
}

impl Weibull {
    /// The law with this exponent and scale; a shape below 1 is burstier than Poisson.
    ///
    /// # Errors
    /// When one of them is not finite and above 0.
    pub fn new(shape: f64, scale: f64) -> Result<Self, LawError> {
        Ok(Self {
            shape: positive("weibull", "shape", shape)?,
            scale: positive("weibull", "scale", scale)?,
        })
    }

    /// The law with this exponent and mean: scale = mean / Gamma(1 + 1 / shape).
    ///
    /// # Errors
    /// When one of them is not finite and above 0, or the shape so small that the scale vanishes.
    pub fn with_mean(shape: f64, mean: f64) -> Result<Self, LawError> {
        positive("weibull", "shape", shape)?;
        positive("weibull", "mean", mean)?;
        Self::new(shape, mean / libm::tgamma(1.0 + 1.0 / shape))
    }
}

impl Distribution for Weibull {
    fn mean(&self) -> f64 {
        self.scale * libm::tgamma(1.0 + 1.0 / self.shape)
    }

    fn variance(&self) -> f64 {
        let first = libm::tgamma(1.0 + 1.0 / self.shape);
        let second = libm::tgamma(1.0 + 2.0 / self.shape);
        self.scale * self.scale * (second - first * first)
    }

    fn cdf(&self, x: f64) -> f64 {
        -libm::expm1(-libm::pow(x.max(0.0) / self.scale, self.shape))
    }

    fn quantile(&self, probability: f64) -> f64 {
        self.scale * libm::pow(-libm::log1p(-probability.clamp(0.0, 1.0)), 1.0 / self.shape)
    }
}

impl fmt::Display for Weibull {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "weibull:shape={},scale={}",
            self.shape, self.scale
        )
    }
}
