//! Distributions of the gaps between packets. A gap is the time from the start of one packet to the start of
//! the next, in ns.

mod on_off;
mod parse;
mod process;
#[cfg(test)]
mod tests;

pub use on_off::{GeometricOnOff, ParetoOnOff};
pub use process::GapProcess;

use super::error::{finite, positive};
use super::{AnyDistribution, Constant, Distribution, DistributionError, Exponential, Rng};
use std::fmt;
use std::sync::Arc;

/// Maximum number of sources whose packets are superposed.
const SOURCES_MAX: usize = 64;

/// The gaps between successive packets.
#[derive(Debug, Clone, PartialEq)]
pub struct GapDistribution {
    shape: Shape,
    // Every gap of the shape is multiplied by it.
    scale: f64,
}

/// `size` packets `inside_ns` apart; `pause` from the last packet of a burst to the first of the next.
#[derive(Debug, Clone, PartialEq)]
struct Bursts {
    size: u32,
    inside_ns: f64,
    pause: AnyDistribution,
}

#[derive(Debug, Clone, PartialEq)]
enum Shape {
    /// Back-to-back packets.
    None,
    /// Independent gaps.
    Renewal(AnyDistribution),
    Bursts(Bursts),
    GeometricOnOff(GeometricOnOff),
    ParetoOnOff(ParetoOnOff),
    /// The gaps of a trace, repeated.
    Recorded(Arc<[f64]>),
    /// The packets of several sources.
    Superposed(Vec<GapDistribution>),
}

impl GapDistribution {
    /// No gaps: as fast as the sender can.
    pub fn none() -> Self {
        Self::of(Shape::None)
    }

    /// Every gap is the same.
    ///
    /// # Errors
    /// When `gap_ns` is not finite and above 0.
    pub fn fixed(gap_ns: f64) -> Result<Self, DistributionError> {
        let gap_ns = positive("fixed", "mean", gap_ns)?;
        Self::renewal(Constant::new(gap_ns)?.into())
    }

    /// Poisson arrivals: exponential gaps.
    ///
    /// # Errors
    /// When `mean_gap_ns` is not finite and above 0.
    pub fn poisson(mean_gap_ns: f64) -> Result<Self, DistributionError> {
        Self::renewal(Exponential::new(mean_gap_ns)?.into())
    }

    /// Independent gaps of any distribution, in ns. Negative draws give a gap of 0.
    ///
    /// # Errors
    /// When the mean of these gaps is not finite and above 0.
    pub fn renewal(distribution: AnyDistribution) -> Result<Self, DistributionError> {
        positive("gap", "mean", distribution.mean())?;
        Ok(Self::of(Shape::Renewal(distribution)))
    }

    /// Bursts of `size` packets, `inside_ns` apart, one burst every `period_ns`: at equal distances, or
    /// with an exponential pause after the last packet.
    ///
    /// # Errors
    /// When `size` is 0, a time is negative or not finite, or a burst is longer than the period.
    pub fn bursts(
        size: u32,
        inside_ns: f64,
        period_ns: f64,
        exponential: bool,
    ) -> Result<Self, DistributionError> {
        let wrong = |parameter, found: String, expected| {
            DistributionError::parameter("bursts", parameter, found, expected)
        };
        if size == 0 {
            return Err(wrong("size", "0".into(), "1 packet or more"));
        }
        if finite("bursts", "inside", inside_ns)? < 0.0 {
            return Err(wrong("inside", inside_ns.to_string(), "a time >= 0"));
        }
        let pause_ns = finite("bursts", "period", period_ns)? - f64::from(size - 1) * inside_ns;
        if pause_ns <= 0.0 {
            return Err(wrong(
                "period",
                format!("{period_ns} ns"),
                "more than (size - 1) * inside",
            ));
        }
        let pause = if exponential {
            Exponential::new(pause_ns)?.into()
        } else {
            Constant::new(pause_ns)?.into()
        };
        Ok(Self::of(Shape::Bursts(Bursts {
            size,
            inside_ns,
            pause,
        })))
    }

    /// The gaps of a trace in their order, repeated from the start.
    ///
    /// # Errors
    /// Without gaps, or when one is negative or not finite, or all are 0.
    pub fn recorded(gaps_ns: Vec<f64>) -> Result<Self, DistributionError> {
        let wrong =
            |found, expected| DistributionError::parameter("trace", "gaps", found, expected);
        let is_gap = |gap: &f64| gap.is_finite() && *gap >= 0.0;
        if let Some(gap) = gaps_ns.iter().find(|gap| !is_gap(gap)) {
            return Err(wrong(
                format!("{gap} ns among them"),
                "times that never go back: sort the trace by time",
            ));
        }
        if gaps_ns.iter().all(|gap| *gap == 0.0) {
            return Err(wrong(
                format!("{} gaps without any time", gaps_ns.len()),
                "two packets or more at different times",
            ));
        }
        Ok(Self::of(Shape::Recorded(gaps_ns.into())))
    }

    /// The packets of several independent sources, each with its own gaps.
    ///
    /// # Errors
    /// When there are none or more than 64, or one has no gaps.
    pub fn superposed(sources: Vec<Self>) -> Result<Self, DistributionError> {
        if sources.is_empty() || sources.len() > SOURCES_MAX {
            return Err(DistributionError::parameter(
                "superposed",
                "number of sources",
                sources.len().to_string(),
                "1 to 64",
            ));
        }
        if sources.iter().any(Self::is_none) {
            return Err(DistributionError::parameter(
                "superposed",
                "one source",
                "none",
                "sources with gaps",
            ));
        }
        Ok(Self::of(Shape::Superposed(sources)))
    }

    fn of(shape: Shape) -> Self {
        Self { shape, scale: 1.0 }
    }

    /// Whether packets follow each other without gaps.
    pub fn is_none(&self) -> bool {
        self.shape == Shape::None
    }

    /// Mean gap, ns.
    pub fn mean_gap_ns(&self) -> f64 {
        self.scale
            * match &self.shape {
                Shape::None => 0.0,
                Shape::Renewal(distribution) => distribution.mean_cut_at_0(),
                Shape::Bursts(bursts) => {
                    let inside_ns = f64::from(bursts.size - 1) * bursts.inside_ns;
                    (inside_ns + bursts.pause.mean()) / f64::from(bursts.size)
                }
                Shape::GeometricOnOff(sources) => sources.mean_gap_ns(),
                Shape::ParetoOnOff(sources) => sources.mean_gap_ns(),
                Shape::Recorded(gaps) => gaps.iter().sum::<f64>() / gaps.len() as f64,
                Shape::Superposed(sources) => {
                    1.0 / (sources.iter().map(|source| 1.0 / source.mean_gap_ns())).sum::<f64>()
                }
            }
    }

    /// The same distribution with another mean gap: all its times are scaled, except the gaps inside a burst.
    ///
    /// # Errors
    /// When `mean_gap_ns` is not finite and above 0, too short for the bursts, or there are no gaps.
    pub fn with_mean_gap_ns(&self, mean_gap_ns: f64) -> Result<Self, DistributionError> {
        positive("gap", "mean", mean_gap_ns)?;
        match &self.shape {
            Shape::None => Err(DistributionError::parameter(
                "none",
                "mean",
                format!("{mean_gap_ns} ns"),
                "no rate; with a rate take fixed, poisson or another gap distribution",
            )),
            Shape::Bursts(bursts) => Self::bursts(
                bursts.size,
                bursts.inside_ns,
                mean_gap_ns * f64::from(bursts.size),
                matches!(bursts.pause, AnyDistribution::Exponential(_)),
            ),
            // Each keeps its share of the packets.
            Shape::Superposed(sources) => {
                let factor = mean_gap_ns / self.mean_gap_ns();
                let scaled = |source: &Self| source.with_mean_gap_ns(factor * source.mean_gap_ns());
                Self::superposed(sources.iter().map(scaled).collect::<Result<_, _>>()?)
            }
            _ => Ok(Self {
                shape: self.shape.clone(),
                scale: self.scale * mean_gap_ns / self.mean_gap_ns(),
            }),
        }
    }

    /// P(gap <= x ns), when a gap's distribution is known in closed form: None for on/off sources and for several
    /// sources, whose gaps are neither independent nor of a simple distribution.
    pub fn cdf(&self, x_ns: f64) -> Option<f64> {
        let x = x_ns / self.scale;
        match &self.shape {
            Shape::None => Some(f64::from(x_ns >= 0.0)),
            Shape::Renewal(distribution) => Some(if x < 0.0 { 0.0 } else { distribution.cdf(x) }),
            Shape::Bursts(bursts) => {
                let inside = f64::from(bursts.size - 1) * f64::from(x >= bursts.inside_ns);
                Some((inside + bursts.pause.cdf(x)) / f64::from(bursts.size))
            }
            Shape::GeometricOnOff(_) | Shape::ParetoOnOff(_) | Shape::Superposed(_) => None,
            Shape::Recorded(gaps) => {
                Some(gaps.iter().filter(|gap| **gap <= x).count() as f64 / gaps.len() as f64)
            }
        }
    }

    /// The smallest gap x with P(gap <= x) >= `probability`, ns, for independent gaps.
    pub fn quantile(&self, probability: f64) -> Option<f64> {
        match &self.shape {
            Shape::Renewal(distribution) => {
                Some((distribution.quantile(probability) * self.scale).max(0.0))
            }
            _ => None,
        }
    }

    /// The gap, ns, if all gaps are equal.
    pub fn fixed_gap_ns(&self) -> Option<f64> {
        match &self.shape {
            Shape::Renewal(AnyDistribution::Constant(_)) => Some(self.mean_gap_ns()),
            _ => None,
        }
    }

    /// Relative standard deviation of the mean of this many gaps. None where it is not known: for gaps of a trace, of a
    /// distribution with an infinite variance, and of sources with Pareto periods.
    pub fn mean_spread(&self, gaps: u64) -> Option<f64> {
        let count = gaps as f64;
        let spread = match &self.shape {
            Shape::None | Shape::Recorded(_) | Shape::ParetoOnOff(_) => return None,
            // Setting negative gaps to 0 reduces the variance.
            Shape::Renewal(distribution) => {
                distribution.variance().sqrt() / (distribution.mean_cut_at_0() * count.sqrt())
            }
            Shape::Bursts(Bursts { size, pause, .. }) => {
                let bursts = count / f64::from(*size);
                pause.variance().sqrt() * bursts.sqrt() * self.scale / (count * self.mean_gap_ns())
            }
            Shape::GeometricOnOff(sources) => sources.mean_spread(count),
            // In the time of so many packets, the variances of the numbers of packets add up.
            Shape::Superposed(sources) => {
                let packets = |source: &Self| count * self.mean_gap_ns() / source.mean_gap_ns();
                let spreads = sources.iter().map(|source| {
                    let own = packets(source);
                    Some(own * source.mean_spread(own.round().max(1.0) as u64)?)
                });
                let spreads: Vec<f64> = spreads.collect::<Option<_>>()?;
                spreads
                    .iter()
                    .map(|spread| spread * spread)
                    .sum::<f64>()
                    .sqrt()
                    / count
            }
        };
        Some(spread).filter(|spread| spread.is_finite())
    }

    /// How long the shape takes to repeat, on average, ns: where in this time several sources start is drawn.
    fn mean_period_ns(&self) -> f64 {
        match &self.shape {
            Shape::Bursts(bursts) => self.mean_gap_ns() * f64::from(bursts.size),
            _ => self.mean_gap_ns(),
        }
    }

    /// Starts a sequence of gaps; on/off sources start in the state that a packet sees, several sources each at a
    /// random time.
    pub fn start(&self, rng: &mut Rng) -> GapProcess {
        GapProcess::new(self, rng)
    }
}

impl From<GeometricOnOff> for GapDistribution {
    fn from(sources: GeometricOnOff) -> Self {
        Self::of(Shape::GeometricOnOff(sources))
    }
}

impl From<ParetoOnOff> for GapDistribution {
    fn from(sources: ParetoOnOff) -> Self {
        Self::of(Shape::ParetoOnOff(sources))
    }
}

impl fmt::Display for GapDistribution {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.shape {
            Shape::None => return write!(formatter, "none"),
            Shape::Renewal(distribution) => write!(formatter, "{distribution}")?,
            Shape::Bursts(Bursts {
                size,
                inside_ns,
                pause,
            }) => write!(
                formatter,
                "bursts:size={size},inside={inside_ns}ns, pause {pause}"
            )?,
            Shape::GeometricOnOff(sources) => write!(formatter, "{sources}")?,
            Shape::ParetoOnOff(sources) => write!(formatter, "{sources}")?,
            Shape::Recorded(gaps) => write!(formatter, "trace of {} gaps", gaps.len())?,
            Shape::Superposed(sources) => {
                for (number, source) in sources.iter().enumerate() {
                    let before = if number > 0 { " + " } else { "" };
                    write!(formatter, "{before}{source}")?;
                }
            }
        }
        write!(formatter, ", mean gap {:.3} ns", self.mean_gap_ns())
    }
}
