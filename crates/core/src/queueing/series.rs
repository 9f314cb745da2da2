//! Series of numbers: batch means in constant memory, the warm-up, autocorrelation.

/// Maximum number of batches; a long series has at least half as many.
const BATCHES_MAX: usize = 4096;

/// Means of consecutive batches of equal size. The size is 1 at first; at the maximum number of batches, each
/// pair is merged.
#[derive(Clone, Debug)]
pub struct Series {
    sums: Vec<f64>,
    size: u64,
    sum: f64,
    count: u64,
}

impl Default for Series {
    /// An empty series.
    fn default() -> Self {
        Self {
            sums: Vec::new(),
            size: 1,
            sum: 0.0,
            count: 0,
        }
    }
}

impl Series {
    /// Adds a number.
    #[inline]
    pub fn add(&mut self, value: u64) {
        self.sum += value as f64;
        self.count += 1;
        if self.count == self.size {
            self.close();
        }
    }

    fn close(&mut self) {
        self.sums.push(std::mem::take(&mut self.sum));
        self.count = 0;
        if self.sums.len() == BATCHES_MAX {
            for pair in 0..BATCHES_MAX / 2 {
                self.sums[pair] = self.sums[2 * pair] + self.sums[2 * pair + 1];
            }
            self.sums.truncate(BATCHES_MAX / 2);
            self.size *= 2;
        }
    }

    /// Number of values in a batch.
    pub fn batch_size(&self) -> u64 {
        self.size
    }

    /// Means of the full batches.
    pub fn means(&self) -> Vec<f64> {
        self.sums.iter().map(|sum| sum / self.size as f64).collect()
    }
}

/// Number of values of a series that belong to its warm-up, by MSER-5 (White, Cobb, Spratt, WSC 2000): the
/// truncation that minimises the standard error of the mean of the rest. None if that is more than half of
/// the series: the series is too short, or has no steady state.
pub fn warm_up(series: &[f64]) -> Option<usize> {
    const BATCH: usize = 5;
    let means: Vec<f64> = series
        .chunks_exact(BATCH)
        .map(|batch| batch.iter().sum::<f64>() / BATCH as f64)
        .collect();
    let (mut sum, mut squares) = (0.0, 0.0);
    let mut best = (f64::INFINITY, 0);
    // Backwards, so that each truncation adds one batch to the sums.
    for (truncated, mean) in means.iter().enumerate().rev() {
        sum += mean;
        squares += mean * mean;
        let count = (means.len() - truncated) as f64;
        // MSER of a handful of batches may be small by chance (White 1997).
        if count < 5.0 {
            continue;
        }
        let statistic = (squares - sum * sum / count).max(0.0) / (count * count);
        if statistic <= best.0 {
            best = (statistic, truncated);
        }
    }
    (means.len() >= 10 && best.1 <= means.len() / 2).then_some(best.1 * BATCH)
}

/// Estimate of the lag-1 autocorrelation of a series. NaN if all values are equal.
fn lag_1_autocorrelation(series: &[f64]) -> f64 {
    let mean = series.iter().sum::<f64>() / series.len() as f64;
    let squares: f64 = series.iter().map(|value| (value - mean).powi(2)).sum();
    let products = series
        .windows(2)
        .map(|pair| (pair[0] - mean) * (pair[1] - mean));
    products.sum::<f64>() / squares
}

/// The shortest series of which a relaxation time is estimated: of fewer values it is chance.
const VALUES_MIN: usize = 16;

/// The relaxation time of the process of which several series are, in values. They are not centred each on its own mean:
/// what differs between short series is what correlates within a long one.
///
/// The correlation of a queue decays fast at first and then slowly, so the time is the largest that the means over
/// shorter and longer periods give. 0 if nothing correlates.
pub(super) fn relaxation_of(series: &[&Series]) -> f64 {
    let size = series.iter().map(|each| each.size).max().unwrap_or(1);
    let mut parts: Vec<Vec<f64>> = series
        .iter()
        .map(|each| merged(each.means(), (size / each.size) as usize))
        .collect();
    let (mut size, mut longest) = (size as f64, 0.0_f64);
    loop {
        let values: usize = parts.iter().map(Vec::len).sum();
        if values < VALUES_MIN * parts.len() {
            return longest;
        }
        let mean = parts.iter().flatten().sum::<f64>() / values as f64;
        let (mut products, mut squares) = (0.0, 0.0);
        for pair in parts.iter().flat_map(|part| part.windows(2)) {
            let (before, after) = (pair[0] - mean, pair[1] - mean);
            products += before * after;
            squares += (before * before + after * after) / 2.0;
        }
        let time = relaxation_time(products / squares);
        // All values are equal: nothing varies.
        if !time.is_nan() {
            longest = longest.max(size * time);
        }
        parts = parts.into_iter().map(|part| merged(part, 2)).collect();
        size *= 2.0;
    }
}

/// Means of so many consecutive values each.
fn merged(values: Vec<f64>, count: usize) -> Vec<f64> {
    if count < 2 {
        return values;
    }
    values
        .chunks_exact(count)
        .map(|chunk| chunk.iter().sum::<f64>() / count as f64)
        .collect()
}

/// Relaxation time of a series, in values: of the process with exponentially decaying autocorrelation whose
/// means over consecutive periods have the lag-1 autocorrelation of this series. 0 if that is not positive,
/// infinite if it is almost 1, NaN if all values are equal.
pub(super) fn relaxation(series: &[f64]) -> f64 {
    relaxation_time(lag_1_autocorrelation(series))
}

/// The same of a lag-1 autocorrelation.
fn relaxation_time(correlation: f64) -> f64 {
    if correlation.is_nan() || correlation <= 0.0 {
        return if correlation.is_nan() { f64::NAN } else { 0.0 };
    }
    // Bisection: the correlation of the means falls from 1 to 0 as the period, in relaxation times, rises.
    let (mut short, mut long) = (1e-6_f64, 1e6_f64);
    if correlation >= correlation_of_means(short) {
        return f64::INFINITY;
    }
    while long > short * 1.000_001 {
        let middle = (short * long).sqrt();
        if correlation_of_means(middle) > correlation {
            short = middle;
        } else {
            long = middle;
        }
    }
    1.0 / long
}

/// The correlation of the means over two consecutive periods of a process with exponentially decaying
/// autocorrelation. The period is in relaxation times.
fn correlation_of_means(period: f64) -> f64 {
    let decayed = -libm::expm1(-period);
    // Short periods use the power series: the difference of almost equal numbers would cancel.
    let rest = if period < 1e-3 {
        period * period * (0.5 - period / 6.0)
    } else {
        period - decayed
    };
    decayed * decayed / (2.0 * rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_and_keep_the_mean() {
        let mut series = Series::default();
        (0..1_000_000).for_each(|value| series.add(value));
        assert!(series.means().len() >= BATCHES_MAX / 2);
        let full = series.means().len() as u64 * series.batch_size();
        let mean = series.means().iter().sum::<f64>() / series.means().len() as f64;
        assert_eq!(mean, (full - 1) as f64 / 2.0);
    }

    #[test]
    fn lag_1_autocorrelations_of_known_series() {
        let alternating: Vec<f64> = (0..1000).map(|i| f64::from(i % 2)).collect();
        assert!((lag_1_autocorrelation(&alternating) + 1.0).abs() < 0.01);
        let rising: Vec<f64> = (0..1000).map(f64::from).collect();
        assert!((lag_1_autocorrelation(&rising) - 1.0).abs() < 0.01);
        assert!(lag_1_autocorrelation(&[2.0, 2.0, 2.0]).is_nan());
    }

    #[test]
    fn relaxation_times_of_known_series() {
        use crate::distributions::{Distribution, Normal, Rng};
        let standard = Normal::new(0.0, 1.0).unwrap();
        let mut rng = Rng::new(1, 1);
        // Means of 10 values each of an autoregressive process.
        for relaxation_of_values in [2.0_f64, 20.0, 60.0] {
            let kept = (-1.0 / relaxation_of_values).exp();
            let mut value = 0.0;
            let means: Vec<f64> = (0..20_000)
                .map(|_| {
                    let values = (0..10).map(|_| {
                        value = kept * value + standard.sample(&mut rng);
                        value
                    });
                    values.sum::<f64>() / 10.0
                })
                .collect();
            let found = 10.0 * relaxation(&means);
            assert!(
                (found / relaxation_of_values - 1.0).abs() < 0.2,
                "{found} {relaxation_of_values}"
            );
        }
        let alternating: Vec<f64> = (0..1000).map(|i| f64::from(i % 2)).collect();
        assert_eq!(relaxation(&alternating), 0.0);
        assert!(relaxation(&[2.0, 2.0, 2.0]).is_nan());
        let rising: Vec<f64> = (0..1000).map(f64::from).collect();
        assert!(relaxation(&rising) > 100.0);
    }

    #[test]
    fn a_rising_start_is_truncated() {
        let series: Vec<f64> = (0..1000)
            .map(|i| {
                if i < 100 {
                    f64::from(i) / 10.0
                } else {
                    10.0 + f64::from(i * 7919 % 13) / 10.0
                }
            })
            .collect();
        let warm_up = warm_up(&series).unwrap();
        assert!((80..=130).contains(&warm_up), "{warm_up}");
    }

    #[test]
    fn a_rising_series_has_no_steady_state() {
        let series: Vec<f64> = (0..1000).map(f64::from).collect();
        assert_eq!(warm_up(&series), None);
    }
}
