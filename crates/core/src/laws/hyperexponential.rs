//! The hyperexponential law.

use super::error::positive;
use super::law::inverse;
use super::{Distribution, Generator, LawError};
use std::fmt;

/// With probability `p` an exponential time of the mean that belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Hyperexponential {
    // (probability, mean); the probabilities add up to 1.
    branches: Vec<(f64, f64)>,
}

impl Hyperexponential {
    /// The mixture of exponentials of these means with these weights (which need not add up to 1).
    ///
    /// # Errors
    /// When there are none, not as many of one as of the other, or one is not finite and above 0.
    pub fn new(weights: &[f64], means: &[f64]) -> Result<Self, LawError> {
        if weights.is_empty() || weights.len() != means.len() {
            return Err(LawError::Parameter {
                law: "hyperexponential",
                parameter: "p",
                found: format!("{} weights for {} means", weights.len(), means.len()),
                expected: "one weight for each mean",
            });
        }
        let mut total = 0.0;
        for (&weight, &mean) in weights.iter().zip(means) {
            total += positive("hyperexponential", "p", weight)?;
            positive("hyperexponential", "mean", mean)?;
        }
        Ok(Self {
            branches: weights
                .iter()
                .map(|weight| weight / total)
                .zip(means.iter().copied())
                .collect(),
        })
    }

    /// The two-branch law with balanced means for a mean and a squared coefficient of variation
    /// (Tijms 1994: p = (1 + sqrt((c2 - 1) / (c2 + 1))) / 2, each branch bearing half of the mean).
    ///
    /// # Errors
    /// When `mean` is not above 0, or `squared_variation` not above 1.
    pub fn balanced(mean: f64, squared_variation: f64) -> Result<Self, LawError> {
        positive("hyperexponential", "mean", mean)?;
        if !(squared_variation > 1.0 && squared_variation.is_finite()) {
            return Err(LawError::Parameter {
                law: "hyperexponential",
                parameter: "squared coefficient of variation",
                found: super::number(squared_variation),
                expected: "a finite number > 1 (at 1 take exponential, below 1 erlang)",
            });
        }
        let root = ((squared_variation - 1.0) / (squared_variation + 1.0)).sqrt();
        let often = (1.0 + root) / 2.0;
        Self::new(
            &[often, 1.0 - often],
            &[mean / (2.0 * often), mean / (2.0 * (1.0 - often))],
        )
    }
}

impl Distribution for Hyperexponential {
    fn mean(&self) -> f64 {
        self.branches.iter().map(|(p, mean)| p * mean).sum()
    }

    fn variance(&self) -> f64 {
        let second: f64 = self
            .branches
            .iter()
            .map(|(p, mean)| 2.0 * p * mean * mean)
            .sum();
        second - self.mean() * self.mean()
    }

    fn cdf(&self, x: f64) -> f64 {
        self.branches
            .iter()
            .map(|(p, mean)| -p * libm::expm1(-x.max(0.0) / mean))
            .sum::<f64>()
            .min(1.0)
    }

    /// By bisection between the quantiles of the quickest and the slowest branch.
    fn quantile(&self, probability: f64) -> f64 {
        let probability = probability.clamp(0.0, 1.0);
        let unit = -libm::log1p(-probability);
        if unit == 0.0 || unit.is_infinite() {
            return unit;
        }
        let means = self.branches.iter().map(|(_, mean)| *mean);
        let low = means.clone().fold(f64::INFINITY, f64::min) * unit;
        let high = means.fold(0.0, f64::max) * unit;
        inverse(|x| self.cdf(x), probability, low, high)
    }

    /// Draws two numbers: the branch and its time.
    fn sample(&self, generator: &mut Generator) -> f64 {
        let mut choice = generator.unit();
        let time = -libm::log(generator.open_unit());
        for (p, mean) in &self.branches {
            if choice < *p {
                return mean * time;
            }
            choice -= p;
        }
        // The probabilities may fall short of 1 by rounding.
        self.branches.last().map_or(0.0, |(_, mean)| mean * time)
    }
}

impl fmt::Display for Hyperexponential {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = |values: Vec<String>| values.join("/");
        write!(
            formatter,
            "hyperexponential:p={},mean={}",
            join(self.branches.iter().map(|(p, _)| p.to_string()).collect()),
            join(
                self.branches
                    .iter()
                    .map(|(_, mean)| mean.to_string())
                    .collect()
            )
        )
    }
}
