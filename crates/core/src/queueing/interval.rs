//! Confidence intervals of the means of independent replications.

use serde::Serialize;

/// A mean with its confidence interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Interval {
    /// Mean over the replications.
    pub mean: f64,
    /// Half-width of the confidence interval; None for a single replication.
    pub half_width: Option<f64>,
}

/// The confidence interval of the mean of independent values, by Student's t-distribution.
pub fn interval(values: &[f64], confidence: f64) -> Interval {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < 2 {
        return Interval {
            mean,
            half_width: None,
        };
    }
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let error = (squares / (count - 1.0) / count).sqrt();
    Interval {
        mean,
        half_width: Some(student_t(confidence, count - 1.0) * error),
    }
}

/// The t with P(|T| <= t) = `confidence` (G. W. Hill, Communications of the ACM 13, 1970, Algorithm 396).
pub fn student_t(confidence: f64, freedom: f64) -> f64 {
    let p = 1.0 - confidence;
    let n = freedom;
    if n == 1.0 {
        let angle = p * std::f64::consts::FRAC_PI_2;
        return angle.cos() / angle.sin();
    }
    if n == 2.0 {
        return (2.0 / (p * (2.0 - p)) - 2.0).sqrt();
    }
    let a = 1.0 / (n - 0.5);
    let b = 48.0 / (a * a);
    let mut c = ((20700.0 * a / b - 98.0) * a - 16.0) * a + 96.36;
    let d = ((94.5 / (b + c) - 3.0) / b + 1.0) * (a * std::f64::consts::FRAC_PI_2).sqrt() * n;
    let mut x = d * p;
    let mut y = x.powf(2.0 / n);
    if y > 0.05 + a {
        x = normal_quantile(p / 2.0);
        y = x * x;
        if n < 5.0 {
            c += 0.3 * (n - 4.5) * (x + 0.6);
        }
        c += (((0.05 * d * x - 5.0) * x - 7.0) * x - 2.0) * x + b;
        y = (((((0.4 * y + 6.3) * y + 36.0) * y + 94.5) / c - y - 3.0) / b + 1.0) * x;
        y = (a * y * y).exp_m1();
    } else {
        y = ((1.0 / (((n + 6.0) / (n * y) - 0.089 * d - 0.822) * (n + 2.0) * 3.0)
            + 0.5 / (n + 4.0))
            * y
            - 1.0)
            * (n + 1.0)
            / (n + 2.0)
            + 1.0 / y;
    }
    (n * y).sqrt()
}

fn normal_quantile(probability: f64) -> f64 {
    use crate::distributions::{Distribution, Normal};
    let standard = Normal::new(0.0, 1.0).expect("0 and 1 are a mean and a deviation");
    standard.quantile(probability)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_t_agrees_with_tables() {
        let table = [
            (0.95, 1.0, 12.7062),
            (0.95, 2.0, 4.3027),
            (0.95, 9.0, 2.2622),
            (0.99, 4.0, 4.6041),
            (0.99, 19.0, 2.8609),
            (0.99, 100.0, 2.6259),
            (0.90, 29.0, 1.6991),
        ];
        for (confidence, freedom, expected) in table {
            let t = student_t(confidence, freedom);
            assert!((t - expected).abs() < 5e-4, "{confidence} {freedom}: {t}");
        }
    }

    #[test]
    fn a_single_value_has_no_width() {
        assert!(interval(&[3.0], 0.95).half_width.is_none());
    }
}
