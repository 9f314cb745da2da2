//! Continuous distributions: uniform, exponential and its sums and mixtures, Pareto, Weibull.

use super::distribution::{display_as, inverse};
use super::error::{checked, finite, positive};
use super::{Distribution, DistributionError, Rng};
use std::fmt;

/// Uniform between `low` and `high`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Uniform {
    low: f64,
    high: f64,
}

display_as!(Uniform, "uniform:low={},high={}", low, high);

impl Uniform {
    /// Uniform in [low, high].
    ///
    /// # Errors
    /// When a bound is not finite, or `high` is not above `low`.
    pub fn new(low: f64, high: f64) -> Result<Self, DistributionError> {
        finite("uniform", "low", low)?;
        finite("uniform", "high", high)?;
        let is_above = high > low && (high - low).is_finite();
        checked(is_above, "uniform", "high", high, "a number above low")?;
        Ok(Self { low, high })
    }

    /// Expected value of max(0, X): the middle of the range above 0, times the probability of that range.
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

/// P(X > x) = exp(-x / mean).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exponential {
    mean: f64,
}

display_as!(Exponential, "exponential:mean={}", mean);

impl Exponential {
    /// The distribution with this mean.
    ///
    /// # Errors
    /// When `mean` is not finite and above 0.
    pub fn new(mean: f64) -> Result<Self, DistributionError> {
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

/// Sum of `stages` exponential times of mean `mean / stages` each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Erlang {
    stages: u32,
    mean: f64,
}

display_as!(Erlang, "erlang:stages={},mean={}", stages, mean);

/// With more stages, the standard deviation is below 1.6 % of the mean: use `normal` or `constant`.
const STAGES_MAX: u32 = 4096;

impl Erlang {
    /// The distribution of this many stages, whose sum has this mean.
    ///
    /// # Errors
    /// When `stages` is not in 1..=4096 or `mean` not finite and above 0.
    pub fn new(stages: u32, mean: f64) -> Result<Self, DistributionError> {
        let is_valid = (1..=STAGES_MAX).contains(&stages);
        checked(is_valid, "erlang", "stages", stages.into(), "1 to 4096")?;
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

    /// By bisection; the mean is doubled until it is an upper bound.
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
    fn sample(&self, rng: &mut Rng) -> f64 {
        let sum: f64 = (0..self.stages).map(|_| -libm::log(rng.open_unit())).sum();
        sum * self.mean / f64::from(self.stages)
    }
}

/// A mixture of exponential distributions: branch i with probability p_i and its mean.
#[derive(Debug, Clone, PartialEq)]
pub struct Hyperexponential {
    // (probability, mean); the probabilities add up to 1.
    branches: Vec<(f64, f64)>,
}

impl Hyperexponential {
    /// The mixture of exponentials of these means with these weights (which need not add up to 1).
    ///
    /// # Errors
    /// When the lists are empty or differ in length, or a number is not finite and above 0.
    pub fn new(weights: &[f64], means: &[f64]) -> Result<Self, DistributionError> {
        if weights.is_empty() || weights.len() != means.len() {
            let found = format!("{} weights for {} means", weights.len(), means.len());
            let expected = "one weight for each mean";
            return Err(DistributionError::parameter(
                "hyperexponential",
                "p",
                found,
                expected,
            ));
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

    /// By bisection between the quantiles of the fastest and the slowest branch.
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
    fn sample(&self, rng: &mut Rng) -> f64 {
        let mut choice = rng.unit();
        let time = -libm::log(rng.open_unit());
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
        let text = |(p, mean): &(f64, f64)| (p.to_string(), mean.to_string());
        let (p, means): (Vec<_>, Vec<_>) = self.branches.iter().map(text).unzip();
        write!(
            formatter,
            "hyperexponential:p={},mean={}",
            p.join("/"),
            means.join("/")
        )
    }
}

/// P(X > x) = (scale / x)^shape for x >= scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pareto {
    shape: f64,
    scale: f64,
}

display_as!(Pareto, "pareto:shape={},scale={}", shape, scale);

impl Pareto {
    /// The distribution with this tail exponent and smallest value.
    ///
    /// # Errors
    /// When one of them is not finite and above 0.
    pub fn new(shape: f64, scale: f64) -> Result<Self, DistributionError> {
        Ok(Self {
            shape: positive("pareto", "shape", shape)?,
            scale: positive("pareto", "scale", scale)?,
        })
    }

    /// The distribution with this tail exponent and mean.
    ///
    /// # Errors
    /// When `shape` is not above 1 (the mean would be infinite) or `mean` not above 0.
    pub fn with_mean(shape: f64, mean: f64) -> Result<Self, DistributionError> {
        let is_valid = shape > 1.0 && shape.is_finite();
        let expected = "a finite number > 1, since with less the mean is infinite";
        checked(is_valid, "pareto", "shape", shape, expected)?;
        Self::new(
            shape,
            positive("pareto", "mean", mean)? * (shape - 1.0) / shape,
        )
    }

    /// The residual life at a random time: its density is P(X > x) / mean.
    pub(super) fn sample_residual(&self, rng: &mut Rng) -> f64 {
        let unit = rng.unit();
        // Below the scale, the density is constant.
        let below_scale = (self.shape - 1.0) / self.shape;
        if unit < below_scale {
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
        let mean_divisor = self.shape - 1.0;
        self.scale * self.scale * self.shape / (mean_divisor * mean_divisor * (self.shape - 2.0))
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

/// P(X > x) = exp(-(x / scale)^shape).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weibull {
    shape: f64,
    scale: f64,
}

display_as!(Weibull, "weibull:shape={},scale={}", shape, scale);

impl Weibull {
    /// The distribution with this exponent and scale. Arrivals with such gaps are burstier than Poisson if `shape` < 1.
    ///
    /// # Errors
    /// When one of them is not finite and above 0.
    pub fn new(shape: f64, scale: f64) -> Result<Self, DistributionError> {
        Ok(Self {
            shape: positive("weibull", "shape", shape)?,
            scale: positive("weibull", "scale", scale)?,
        })
    }

    /// The distribution with this exponent and mean: scale = mean / Gamma(1 + 1 / shape).
    ///
    /// # Errors
    /// When one of them is not finite and above 0, or the shape so small that the scale vanishes.
    pub fn with_mean(shape: f64, mean: f64) -> Result<Self, DistributionError> {
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
