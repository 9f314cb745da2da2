//! The trait of all distributions, and the enum that holds any of them.

use super::spec::Spec;
use super::{
    Constant, DistributionError, Empirical, Erlang, Exponential, Geometric, Histogram,
    Hyperexponential, Lognormal, Normal, Pareto, Rng, Uniform, Weibull,
};
use std::fmt;
use std::str::FromStr;

/// A distribution of a real number. Units are those of its parameters.
pub trait Distribution {
    /// Expected value; may be infinite for a heavy tail.
    fn mean(&self) -> f64;

    /// Variance; may be infinite for a heavy tail.
    fn variance(&self) -> f64;

    /// P(X <= x).
    fn cdf(&self, x: f64) -> f64;

    /// The smallest x with P(X <= x) >= `probability`; `probability` is held to [0, 1].
    fn quantile(&self, probability: f64) -> f64;

    /// A draw: by default the quantile of one uniform number, so that distributions drawn from equal random
    /// number streams are positively correlated (common random numbers).
    fn sample(&self, rng: &mut Rng) -> f64 {
        self.quantile(rng.open_unit())
    }
}

/// The smallest x between `low` and `high` with `cdf(x) >= probability`, by bisection, to the last bit of the
/// distribution function.
pub(super) fn inverse(
    cdf: impl Fn(f64) -> f64,
    probability: f64,
    mut low: f64,
    mut high: f64,
) -> f64 {
    loop {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            return high;
        }
        if cdf(middle) < probability {
            low = middle;
        } else {
            high = middle;
        }
    }
}

/// Implements [`fmt::Display`] by a format string and the fields for it.
macro_rules! display_as {
    ($name:ident, $text:literal, $($field:ident),+) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(formatter, $text, $(self.$field),+)
            }
        }
    };
}
pub(super) use display_as;

macro_rules! any_distribution {
    ($(#[$doc:meta])* enum $($(#[$variant_doc:meta])* $name:ident,)*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub enum AnyDistribution { $($(#[$variant_doc])* $name($name),)* }

        impl Distribution for AnyDistribution {
            fn mean(&self) -> f64 {
                match self { $(Self::$name(distribution) => distribution.mean(),)* }
            }

            fn variance(&self) -> f64 {
                match self { $(Self::$name(distribution) => distribution.variance(),)* }
            }

            fn cdf(&self, x: f64) -> f64 {
                match self { $(Self::$name(distribution) => distribution.cdf(x),)* }
            }

            fn quantile(&self, probability: f64) -> f64 {
                match self { $(Self::$name(distribution) => distribution.quantile(probability),)* }
            }

            fn sample(&self, rng: &mut Rng) -> f64 {
                match self { $(Self::$name(distribution) => distribution.sample(rng),)* }
            }
        }

        impl fmt::Display for AnyDistribution {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$name(distribution) => distribution.fmt(formatter),)* }
            }
        }

        $(impl From<$name> for AnyDistribution {
            fn from(distribution: $name) -> Self {
                Self::$name(distribution)
            }
        })*
    };
}

any_distribution! {
    /// Any distribution.
    ///
    /// Written as text, `NAME:KEY=VALUE,...`; a time may carry `ns`, `us`, `ms` or `s` and is then in ns:
    /// `constant:1us`, `uniform:low=1,high=9`, `exponential:mean=2.5us`, `erlang:stages=3,mean=9`,
    /// `hyperexponential:p=0.1/0.9,mean=50/1`, `pareto:shape=1.5,scale=2`, `weibull:shape=0.5,scale=3`,
    /// `lognormal:mu=1,sigma=0.5`, `normal:mean=5,deviation=1`, `geometric:mean=10`. The distributions of samples
    /// and of histograms are made from data, not from text.
    enum
    /// One value.
    Constant,
    /// Uniform.
    Uniform,
    /// Exponential.
    Exponential,
    /// Erlang: a sum of exponential stages.
    Erlang,
    /// Mixture of exponentials.
    Hyperexponential,
    /// Pareto: a power-law tail.
    Pareto,
    /// Weibull: a stretched exponential.
    Weibull,
    /// Lognormal: its logarithm is normal.
    Lognormal,
    /// Normal.
    Normal,
    /// Trials up to the first success.
    Geometric,
    /// Draws from samples.
    Empirical,
    /// Uniform within each bin of a histogram.
    Histogram,
}

const NAMES: &str = "constant, uniform, exponential, erlang, hyperexponential, pareto, weibull, \
                     lognormal, normal, geometric";

impl AnyDistribution {
    /// Expected value of max(0, X).
    pub fn mean_cut_at_0(&self) -> f64 {
        match self {
            Self::Normal(distribution) => distribution.mean_cut_at_0(),
            Self::Uniform(distribution) => distribution.mean_cut_at_0(),
            Self::Constant(distribution) => distribution.mean().max(0.0),
            // Users of times check distributions made from data; the others have no negative values.
            distribution => distribution.mean(),
        }
    }

    /// Parses a distribution of times, each with its unit; the result is in ns.
    ///
    /// # Errors
    /// When the text names no distribution, a time has no unit, or a parameter is missing or outside its range.
    pub fn of_times(text: &str) -> Result<Self, DistributionError> {
        Self::parse(text, Spec::time, Spec::times)
    }

    /// `value` and `values` read the parameters in the unit of the samples.
    fn parse<'a>(
        text: &'a str,
        value: fn(&mut Spec<'a>, &str) -> Result<f64, DistributionError>,
        values: fn(&mut Spec<'a>, &str) -> Result<Vec<f64>, DistributionError>,
    ) -> Result<Self, DistributionError> {
        let mut spec = Spec::parse(
            text,
            "NAME:KEY=VALUE,..., for example exponential:mean=2.5us",
        )?;
        let distribution: Self = match spec.name() {
            "constant" | "fixed" => Constant::new(value(&mut spec, "value")?)?.into(),
            "uniform" => Uniform::new(value(&mut spec, "low")?, value(&mut spec, "high")?)?.into(),
            "exponential" => Exponential::new(value(&mut spec, "mean")?)?.into(),
            "erlang" => Erlang::new(spec.count("stages")?, value(&mut spec, "mean")?)?.into(),
            "hyperexponential" => {
                Hyperexponential::new(&spec.numbers("p")?, &values(&mut spec, "mean")?)?.into()
            }
            "pareto" => Pareto::new(spec.number("shape")?, value(&mut spec, "scale")?)?.into(),
            "weibull" => Weibull::new(spec.number("shape")?, value(&mut spec, "scale")?)?.into(),
            "lognormal" => Lognormal::new(spec.number("mu")?, spec.number("sigma")?)?.into(),
            "normal" => {
                Normal::new(value(&mut spec, "mean")?, value(&mut spec, "deviation")?)?.into()
            }
            "geometric" => Geometric::new(value(&mut spec, "mean")?)?.into(),
            other => {
                return Err(DistributionError::Unknown {
                    kind: "distribution",
                    found: other.to_string(),
                    expected: NAMES,
                });
            }
        };
        spec.finish()?;
        Ok(distribution)
    }
}

impl FromStr for AnyDistribution {
    type Err = DistributionError;

    fn from_str(text: &str) -> Result<Self, DistributionError> {
        Self::parse(text, Spec::number, Spec::numbers)
    }
}
