//! Distributions of observed values: samples and histograms.

use super::error::finite;
use super::{Distribution, DistributionError, Rng};
use std::fmt;
use std::sync::Arc;

/// Each of the samples with equal probability.
#[derive(Debug, Clone, PartialEq)]
pub struct Empirical {
    // Ascending. Shared, so that a distribution can be copied into every station of a model.
    samples: Arc<[f64]>,
    mean: f64,
    variance: f64,
}

impl Empirical {
    /// The distribution of these samples, in any order.
    ///
    /// # Errors
    /// Without samples, or when one is not finite.
    pub fn new(mut samples: Vec<f64>) -> Result<Self, DistributionError> {
        if samples.is_empty() {
            return Err(DistributionError::parameter(
                "empirical",
                "samples",
                "empty",
                "one sample or more",
            ));
        }
        for &sample in &samples {
            finite("empirical", "sample", sample)?;
        }
        samples.sort_by(f64::total_cmp);
        let count = samples.len() as f64;
        let mean = samples.iter().map(|sample| sample / count).sum::<f64>();
        let variance = samples
            .iter()
            .map(|sample| (sample - mean) * (sample - mean) / count)
            .sum();
        Ok(Self {
            samples: samples.into(),
            mean,
            variance,
        })
    }

    /// The samples, ascending.
    pub fn samples(&self) -> &[f64] {
        &self.samples
    }
}

impl Distribution for Empirical {
    fn mean(&self) -> f64 {
        self.mean
    }

    /// The population variance: divided by n.
    fn variance(&self) -> f64 {
        self.variance
    }

    fn cdf(&self, x: f64) -> f64 {
        self.samples.partition_point(|&sample| sample <= x) as f64 / self.samples.len() as f64
    }

    fn quantile(&self, probability: f64) -> f64 {
        let rank = (probability.clamp(0.0, 1.0) * self.samples.len() as f64).ceil() as usize;
        self.samples[rank.clamp(1, self.samples.len()) - 1]
    }

    fn sample(&self, rng: &mut Rng) -> f64 {
        self.samples[rng.below(self.samples.len() as u64) as usize]
    }
}

impl fmt::Display for Empirical {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "empirical ({} samples, mean {})",
            self.samples.len(),
            self.mean
        )
    }
}

/// Uniform within each bin; bins are weighted by their counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    // Bounds of the bins, ascending: one more than bins.
    bounds: Arc<[f64]>,
    // P(X <= bounds[i]): from 0 to 1.
    cumulative: Arc<[f64]>,
}

impl Histogram {
    /// The distribution of `counts[i]` values between `bounds[i]` and `bounds[i + 1]`.
    ///
    /// # Errors
    /// When the number of bounds is not that of counts plus 1, bounds do not ascend, a count is negative or
    /// all are 0.
    pub fn new(bounds: &[f64], counts: &[f64]) -> Result<Self, DistributionError> {
        let wrong = |parameter, found: String, expected| {
            DistributionError::parameter("histogram", parameter, found, expected)
        };
        if counts.is_empty() || bounds.len() != counts.len() + 1 {
            return Err(wrong(
                "bounds",
                format!("{} for {} counts", bounds.len(), counts.len()),
                "one more than counts",
            ));
        }
        for pair in bounds.windows(2) {
            finite("histogram", "bound", pair[0])?;
            finite("histogram", "bound", pair[1])?;
            if pair[1] <= pair[0] {
                return Err(wrong(
                    "bounds",
                    format!("{} after {}", pair[1], pair[0]),
                    "ascending",
                ));
            }
        }
        let mut sum = 0.0;
        let mut cumulative = vec![0.0];
        for &count in counts {
            if !(count.is_finite() && count >= 0.0) {
                return Err(wrong("count", count.to_string(), "a finite number >= 0"));
            }
            sum += count;
            cumulative.push(sum);
        }
        if !(sum > 0.0 && sum.is_finite()) {
            return Err(wrong(
                "counts",
                format!("a sum of {sum}"),
                "a finite sum > 0",
            ));
        }
        for value in &mut cumulative {
            *value /= sum;
        }
        Ok(Self {
            bounds: bounds.into(),
            cumulative: cumulative.into(),
        })
    }

    /// (probability, low bound, high bound) of each bin.
    fn bins(&self) -> impl Iterator<Item = (f64, f64, f64)> + '_ {
        self.bounds
            .windows(2)
            .zip(self.cumulative.windows(2))
            .map(|(bounds, cumulative)| (cumulative[1] - cumulative[0], bounds[0], bounds[1]))
    }
}

impl Distribution for Histogram {
    fn mean(&self) -> f64 {
        self.bins()
            .map(|(p, low, high)| p * (low + high) / 2.0)
            .sum()
    }

    fn variance(&self) -> f64 {
        let mean = self.mean();
        self.bins()
            .map(|(p, low, high)| {
                let (centre, width) = ((low + high) / 2.0 - mean, high - low);
                p * (centre * centre + width * width / 12.0)
            })
            .sum()
    }

    fn cdf(&self, x: f64) -> f64 {
        let last = self.bounds.len() - 1;
        if x <= self.bounds[0] {
            return 0.0;
        }
        if x >= self.bounds[last] {
            return 1.0;
        }
        let bin = self.bounds.partition_point(|&bound| bound <= x) - 1;
        let within = (x - self.bounds[bin]) / (self.bounds[bin + 1] - self.bounds[bin]);
        self.cumulative[bin] + within * (self.cumulative[bin + 1] - self.cumulative[bin])
    }

    fn quantile(&self, probability: f64) -> f64 {
        let probability = probability.clamp(0.0, 1.0);
        // The first bin whose end reaches it; empty bins before the first value are skipped.
        let end = self.cumulative[1..]
            .partition_point(|&value| value < probability || value == 0.0)
            .min(self.cumulative.len() - 2)
            + 1;
        let (before, until) = (self.cumulative[end - 1], self.cumulative[end]);
        let (low, high) = (self.bounds[end - 1], self.bounds[end]);
        let within = if until > before {
            (probability - before) / (until - before)
        } else {
            0.0
        };
        low + within * (high - low)
    }
}

impl fmt::Display for Histogram {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "histogram ({} bins, mean {})",
            self.bounds.len() - 1,
            self.mean()
        )
    }
}
