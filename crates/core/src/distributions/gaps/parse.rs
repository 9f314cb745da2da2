//! Parses the text of a gap distribution.

use super::{GapDistribution, GeometricOnOff, ParetoOnOff};
use crate::distributions::spec::Spec;
use crate::distributions::{AnyDistribution, DistributionError, Lognormal, Pareto, Weibull};

const FORM: &str = "NAME:KEY=VALUE,..., for example poisson:mean=2us or bursts:size=8,period=1ms";
const NAMES: &str = "none, fixed, poisson, uniform, erlang, hyperexponential, pareto, weibull, lognormal, bursts, onoff, \
                     pareto-onoff, trace:FILE, or several with + between them";

impl GapDistribution {
    /// The distribution of a text. `mean_gap_ns` comes from a requested rate, and stretches the distribution;
    /// without it the text must contain the mean.
    ///
    /// `none` · `fixed:mean=1us` · `poisson:mean=1us` · `weibull:shape=0.5,mean=1us` ·
    /// `pareto:shape=1.5,mean=1us` · `lognormal:variation=2,mean=1us` ·
    /// `bursts:size=8,inside=0,period=1ms,pause=constant|exponential` ·
    /// `onoff:sources=4,on=50,off=150,gap=4,slot=100ns` (periods in slots) ·
    /// `pareto-onoff:sources=16,on=1ms,off=3ms,on-shape=1.5,off-shape=1.5,gap=10us` · any [`AnyDistribution`] of times. Every time has its unit.
    /// Several with ` + ` between them are sources that send at the same time, in the shares that their means give them;
    /// where one has no mean of its own, each sends as many packets as another.
    ///
    /// # Errors
    /// When the text names no gap distribution, or a parameter is missing or outside its range.
    pub fn parse(text: &str, mean_gap_ns: Option<f64>) -> Result<Self, DistributionError> {
        let sources = sources_of(text);
        if sources.len() == 1 {
            return Self::parse_one(text, mean_gap_ns);
        }
        let share_ns = mean_gap_ns.map(|mean_ns| mean_ns * sources.len() as f64);
        let with_own = sources.iter().map(|each| Self::parse_one(each, None));
        let found = with_own
            .collect::<Result<Vec<_>, _>>()
            .or_else(|error| match share_ns {
                Some(_) => (sources.iter().map(|each| Self::parse_one(each, share_ns))).collect(),
                None => Err(error),
            })?;
        Self::superposed(found)?.scaled_to(mean_gap_ns)
    }

    fn parse_one(text: &str, mean_gap_ns: Option<f64>) -> Result<Self, DistributionError> {
        let mut spec = Spec::parse(text, FORM)?;
        // Where the text needs no mean of its own, any will do: it is stretched below.
        let mean = |spec: &mut Spec| match spec.optional_time("mean")? {
            Some(mean_ns) => Ok(mean_ns),
            None => mean_gap_ns.ok_or_else(|| DistributionError::Syntax {
                text: text.to_string(),
                reason: "the mean is missing".into(),
                expected: "mean=TIME, or a rate (--rate, --pps)",
            }),
        };
        let distribution = match spec.name() {
            "none" => Self::none(),
            "fixed" => Self::fixed(mean(&mut spec)?)?,
            "poisson" => Self::poisson(mean(&mut spec)?)?,
            "weibull" => Self::of_shape(&mut spec, Weibull::new, Weibull::with_mean, mean)?,
            "pareto" => Self::of_shape(&mut spec, Pareto::new, Pareto::with_mean, mean)?,
            "lognormal" => match spec.optional_number("variation")? {
                Some(variation) => {
                    let mean_ns = mean(&mut spec)?;
                    Self::renewal(Lognormal::with_moments(mean_ns, mean_ns * variation)?.into())?
                }
                None => return Self::independent(text, mean_gap_ns),
            },
            "bursts" => bursts(&mut spec, mean_gap_ns)?,
            "onoff" => on_off(&mut spec, mean_gap_ns)?.into(),
            "pareto-onoff" => pareto_on_off(&mut spec)?.into(),
            _ => return Self::independent(text, mean_gap_ns),
        };
        spec.finish()?;
        distribution.scaled_to(mean_gap_ns)
    }

    /// A distribution of a shape, with a scale or a mean.
    fn of_shape<T: Into<AnyDistribution>>(
        spec: &mut Spec<'_>,
        with_scale: fn(f64, f64) -> Result<T, DistributionError>,
        with_mean: fn(f64, f64) -> Result<T, DistributionError>,
        mean: impl FnOnce(&mut Spec<'_>) -> Result<f64, DistributionError>,
    ) -> Result<Self, DistributionError> {
        let shape = spec.number("shape")?;
        let distribution = match spec.optional_time("scale")? {
            Some(scale) => with_scale(shape, scale),
            None => with_mean(shape, mean(spec)?),
        };
        Self::renewal(distribution?.into())
    }

    fn independent(text: &str, mean_gap_ns: Option<f64>) -> Result<Self, DistributionError> {
        let distribution = AnyDistribution::of_times(text).map_err(|error| match error {
            DistributionError::Unknown { found, .. } => DistributionError::Unknown {
                kind: "gap distribution",
                found,
                expected: NAMES,
            },
            other => other,
        })?;
        Self::renewal(distribution)?.scaled_to(mean_gap_ns)
    }

    fn scaled_to(self, mean_gap_ns: Option<f64>) -> Result<Self, DistributionError> {
        match mean_gap_ns {
            Some(mean_gap_ns) => self.with_mean_gap_ns(mean_gap_ns),
            None => Ok(self),
        }
    }
}

/// The texts of the sources, which begin with a name: a plus sign before a digit is that of an exponent.
fn sources_of(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut begin = 0;
    for (at, _) in text.match_indices('+') {
        let after = text[at + 1..].trim_start();
        if after.starts_with(|next: char| next.is_ascii_alphabetic()) {
            found.push(text[begin..at].trim());
            begin = at + 1;
        }
    }
    found.push(text[begin..].trim());
    found
}

fn bursts(spec: &mut Spec, mean_gap_ns: Option<f64>) -> Result<GapDistribution, DistributionError> {
    let size = spec.count("size")?;
    let inside_ns = spec.optional_time("inside")?.unwrap_or(0.0);
    let exponential = match spec.optional_text("pause") {
        None | Some("constant") => false,
        Some("exponential") => true,
        Some(other) => {
            let expected = "constant or exponential";
            return Err(DistributionError::parameter(
                "bursts", "pause", other, expected,
            ));
        }
    };
    let period_ns = match (spec.optional_time("period")?, mean_gap_ns) {
        (Some(period_ns), _) => period_ns,
        (None, Some(mean_gap_ns)) => mean_gap_ns * f64::from(size),
        (None, None) => spec.time("period")?,
    };
    GapDistribution::bursts(size, inside_ns, period_ns, exponential)
}

fn on_off(spec: &mut Spec, mean_gap_ns: Option<f64>) -> Result<GeometricOnOff, DistributionError> {
    let sources = spec.optional_count("sources")?.unwrap_or(4);
    let on_slots = spec.optional_number("on")?.unwrap_or(50.0);
    let off_slots = spec.optional_number("off")?.unwrap_or(150.0);
    let gap_slots = spec.optional_number("gap")?.unwrap_or(4.0);
    let slot_ns = match (spec.optional_time("slot")?, mean_gap_ns) {
        (Some(slot_ns), _) => slot_ns,
        // Stretched to the mean afterwards.
        (None, Some(_)) => 1.0,
        (None, None) => spec.time("slot")?,
    };
    GeometricOnOff::new(sources, slot_ns, on_slots, off_slots, gap_slots)
}

fn pareto_on_off(spec: &mut Spec) -> Result<ParetoOnOff, DistributionError> {
    let sources = spec.optional_count("sources")?.unwrap_or(16);
    let on_ns = spec.optional_time("on")?.unwrap_or(1e6);
    let off_ns = spec.optional_time("off")?.unwrap_or(3e6);
    let on_shape = spec.optional_number("on-shape")?.unwrap_or(1.5);
    let off_shape = spec.optional_number("off-shape")?.unwrap_or(1.5);
    let gap_ns = spec.optional_time("gap")?.unwrap_or(1e4);
    ParetoOnOff::new(sources, gap_ns, (on_ns, on_shape), (off_ns, off_shape))
}
