//! The Pareto law.

use super::error::positive;
use super::{Distribution, Generator, LawError};
use std::fmt;

/// P(X > x) = (scale / x)^shape for x >= scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pareto {
    shape: f64,
    scale: f64,
}

impl Pareto {
    /// The law with this tail exponent and smallest value.
    ///
    /// # Errors
    /// When one of them is not finite and above 0.
    pub fn new(shape: f64, scale: f64) -> Result<Self, LawError> {
        Ok(Self {
            shape: positive("pareto", "shape", shape)?,
            scale: positive("pareto", "scale", scale)?,
        })
    }

    /// The law with this tail exponent and mean.
    ///
    /// # Errors
    /// When `shape` is not above 1 (the mean would be infinite) or `mean` not above 0.
    pub fn with_mean(shape: f64, mean: f64) -> Result<Self, LawError> {
        if !(shape > 1.0 && shape.is_finite()) {
            return Err(LawError::Parameter {
                law: "pareto",
                parameter: "shape",
                found: super::number(shape),
                expected: "a finite number > 1, since with less the mean is infinite",
            });
        }
        Self::new(
            shape,
            positive("pareto", "mean", mean)? * (shape - 1.0) / shape,
        )
    }

    /// What is left of a time of this law when one looks at a random moment: the density is
    /// P(X > x) / mean.
    pub(super) fn sample_residual(&self, generator: &mut Generator) -> f64 {
        let unit = generator.unit();
        let flat = (self.shape - 1.0) / self.shape;
        if unit < flat {
            return unit * self.mean();
        }
        self.scale * libm::pow(self.shape * (1.0 - unit), -1.0 / (self.shape - 1.0))
    }
}

impl Distribution for Pareto {
    fn mean(&self) -> f64 {
        if self.shape <= 1.0 {
            return f64::INFINITY;
        }
        self.shape * self.scale / (self.shape - 1.0)
    }

    fn variance(&self) -> f64 {
        if self.shape <= 2.0 {
            return f64::INFINITY;
        }
        let less = self.shape - 1.0;
        self.scale * self.scale * self.shape / (less * less * (self.shape - 2.0))
    }

    fn cdf(&self, x: f64) -> f64 {
        if x <= self.scale {
            return 0.0;
        }
        1.0 - libm::pow(self.scale / x, self.shape)
    }

    fn quantile(&self, probability: f64) -> f64 {
        self.scale * libm::pow(1.0 - probability.clamp(0.0, 1.0), -1.0 / self.shape)
    }
}

impl fmt::Display for Pareto {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "pareto:shape={},scale={}",
            self.shape, self.scale
        )
    }
}
