//! The lognormal law.

use super::error::{finite, positive};
use super::normal::{standard_cdf, standard_quantile};
use super::{Distribution, LawError};
use std::fmt;

/// exp of a normal number with mean `mu` and standard deviation `sigma`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lognormal {
    mu: f64,
    sigma: f64,
}

impl Lognormal {
    /// The law whose logarithm has this mean and standard deviation.
    ///
    /// # Errors
    /// When `mu` is not finite or `sigma` not finite and above 0.
    pub fn new(mu: f64, sigma: f64) -> Result<Self, LawError> {
        Ok(Self {
            mu: finite("lognormal", "mu", mu)?,
            sigma: positive("lognormal", "sigma", sigma)?,
        })
    }

    /// The law with this mean and standard deviation of its own.
    ///
    /// # Errors
    /// When one of them is not finite and above 0.
    pub fn with_moments(mean: f64, deviation: f64) -> Result<Self, LawError> {
        positive("lognormal", "mean", mean)?;
        positive("lognormal", "deviation", deviation)?;
        let variation = deviation / mean;
        let variance = libm::log1p(variation * variation);
        Self::new(libm::log(mean) - variance / 2.0, variance.sqrt())
    }
}

impl Distribution for Lognormal {
    fn mean(&self) -> f64 {
        libm::exp(self.mu + self.sigma * self.sigma / 2.0)
    }

    fn variance(&self) -> f64 {
        let mean = self.mean();
        mean * mean * libm::expm1(self.sigma * self.sigma)
    }

    fn cdf(&self, x: f64) -> f64 {
        if x <= 0.0 {
            return 0.0;
        }
        standard_cdf((libm::log(x) - self.mu) / self.sigma)
    }

    fn quantile(&self, probability: f64) -> f64 {
        libm::exp(self.mu + self.sigma * standard_quantile(probability))
    }
}

impl fmt::Display for Lognormal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "lognormal:mu={},sigma={}", self.mu, self.sigma)
    }
}
