//! A series of numbers in constant memory: means of batches that grow as the series does.

/// Batches at most; there are at least half as many once the series is long.
const BATCHES_MAX: usize = 4096;

/// Means of consecutive batches. All batches have the same size, 1 at first; when there are
/// too many, each two become one.
#[derive(Clone, Debug, Default)]
pub struct Series {
    sums: Vec<f64>,
    size: u64,
    sum: f64,
    count: u64,
}

impl Series {
    /// Nothing yet.
    pub fn new() -> Self {
        Self {
            size: 1,
            ..Self::default()
        }
    }

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

    /// Numbers in a batch.
    pub fn batch_size(&self) -> u64 {
        self.size
    }

    /// Means of the full batches.
    pub fn means(&self) -> Vec<f64> {
        self.sums.iter().map(|sum| sum / self.size as f64).collect()
    }
}

/// How many numbers of a series belong to its warm-up: MSER-5 (White, Cobb, Spratt, WSC 2000), which
/// leaves out what makes the standard error of the mean of the rest smallest. None when that would be
/// more than half of it: the series is too short, or there is no steady state.
pub fn warm_up(series: &[f64]) -> Option<usize> {
    const BATCH: usize = 5;
    let means: Vec<f64> = series
        .chunks_exact(BATCH)
        .map(|batch| batch.iter().sum::<f64>() / BATCH as f64)
        .collect();
    let (mut sum, mut squares) = (0.0, 0.0);
    let mut best = (f64::INFINITY, 0);
    // From the end, so that each truncation adds one batch to the sums.
    for (left_out, mean) in means.iter().enumerate().rev() {
        sum += mean;
        squares += mean * mean;
        let count = (means.len() - left_out) as f64;
        // MSER of a handful of batches is small by accident (White 1997).
        if count < 5.0 {
            continue;
        }
        let statistic = (squares - sum * sum / count).max(0.0) / (count * count);
        if statistic <= best.0 {
            best = (statistic, left_out);
        }
    }
    (means.len() >= 10 && best.1 <= means.len() / 2).then_some(best.1 * BATCH)
}

/// How much each value of a series tells of the next: the estimate of its lag-1 correlation. NaN when
/// all values are the same.
pub(super) fn lag_1_correlation(series: &[f64]) -> f64 {
    let mean = series.iter().sum::<f64>() / series.len() as f64;
    let squares: f64 = series.iter().map(|value| (value - mean).powi(2)).sum();
    let products = series
        .windows(2)
        .map(|pair| (pair[0] - mean) * (pair[1] - mean));
    products.sum::<f64>() / squares
}

/// Over how many values a series forgets where it was: the relaxation time of the process whose correlation decays
/// exponentially and whose means over consecutive periods have the lag-1 correlation of this series. 0 when the
/// correlation is not positive, infinite when nothing is forgotten, NaN when all values are the same.
pub(super) fn relaxation(series: &[f64]) -> f64 {
    let correlation = lag_1_correlation(series);
    if correlation.is_nan() || correlation <= 0.0 {
        return if correlation.is_nan() { f64::NAN } else { 0.0 };
    }
    // The correlation falls from 1 to 0 as the period, in relaxation times, rises.
    let (mut short, mut long) = (1e-6_f64, 1e6_f64);
    if correlation >= of_periods(short) {
        return f64::INFINITY;
    }
    while long > short * 1.000_001 {
        let middle = (short * long).sqrt();
        if of_periods(middle) > correlation {
            short = middle;
        } else {
            long = middle;
        }
    }
    1.0 / long
}

/// The correlation between the means over two consecutive periods, each of so many relaxation times, of a process
/// whose own correlation decays exponentially.
fn of_periods(period: f64) -> f64 {
    let gone = -libm::expm1(-period);
    // By its series where the difference of almost equal numbers would be left.
    let lasting = if period < 1e-3 {
        period * period * (0.5 - period / 6.0)
    } else {
        period - gone
    };
    gone * gone / (2.0 * lasting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_and_keep_the_mean() {
        let mut series = Series::new();
        (0..1_000_000).for_each(|value| series.add(value));
        assert!(series.means().len() >= BATCHES_MAX / 2);
        let full = series.means().len() as u64 * series.batch_size();
        let mean = series.means().iter().sum::<f64>() / series.means().len() as f64;
        assert_eq!(mean, (full - 1) as f64 / 2.0);
    }

    #[test]
    fn correlations_of_series_that_are_known() {
        let alternating: Vec<f64> = (0..1000).map(|i| f64::from(i % 2)).collect();
        assert!((lag_1_correlation(&alternating) + 1.0).abs() < 0.01);
        let rising: Vec<f64> = (0..1000).map(f64::from).collect();
        assert!((lag_1_correlation(&rising) - 1.0).abs() < 0.01);
        assert!(lag_1_correlation(&[2.0, 2.0, 2.0]).is_nan());
    }

    #[test]
    fn relaxation_times_of_series_that_are_known() {
        use crate::laws::{Distribution, Generator, Normal};
        let standard = Normal::new(0.0, 1.0).unwrap();
        let mut generator = Generator::new(1, 1);
        // Means of 10 values each of an autoregressive process.
        for relaxation_of_values in [2.0_f64, 20.0, 60.0] {
            let kept = (-1.0 / relaxation_of_values).exp();
            let mut value = 0.0;
            let means: Vec<f64> = (0..20_000)
                .map(|_| {
                    let values = (0..10).map(|_| {
                        value = kept * value + standard.sample(&mut generator);
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
    fn what_rises_at_first_is_left_out() {
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
    fn what_rises_for_ever_has_no_steady_state() {
        let series: Vec<f64> = (0..1000).map(f64::from).collect();
        assert_eq!(warm_up(&series), None);
    }
}
