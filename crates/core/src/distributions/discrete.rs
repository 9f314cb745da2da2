//! Discrete distributions: constant and geometric.

use super::distribution::display_as;
use super::error::{checked, finite};
use super::{Distribution, DistributionError, Rng};

/// Always `value`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constant {
    value: f64,
}

display_as!(Constant, "constant:value={}", value);

impl Constant {
    /// A distribution of one value.
    ///
    /// # Errors
    /// When `value` is not finite.
    pub fn new(value: f64) -> Result<Self, DistributionError> {
        Ok(Self {
            value: finite("constant", "value", value)?,
        })
    }
}

impl Distribution for Constant {
    fn mean(&self) -> f64 {
        self.value
    }

    fn variance(&self) -> f64 {
        0.0
    }

    fn cdf(&self, x: f64) -> f64 {
        f64::from(u8::from(x >= self.value))
    }

    fn quantile(&self, _probability: f64) -> f64 {
        self.value
    }

    /// Draws no random number.
    fn sample(&self, _generator: &mut Rng) -> f64 {
        self.value
    }
}

/// Trials up to and with the first success: P(X > n) = (1 - 1 / mean)^n for n = 0, 1, 2, ...
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Geometric {
    mean: f64,
}

display_as!(Geometric, "geometric:mean={}", mean);

impl Geometric {
    /// The distribution with this mean.
    ///
    /// # Errors
    /// When `mean` is not finite and at least 1.
    pub fn new(mean: f64) -> Result<Self, DistributionError> {
        let is_valid = mean.is_finite() && mean >= 1.0;
        Ok(Self {
            mean: checked(is_valid, "geometric", "mean", mean, "a finite number >= 1")?,
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
