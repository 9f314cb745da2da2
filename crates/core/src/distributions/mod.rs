//! Random distributions, shared by the traffic generator and the queueing models.
//!
//! A [`Distribution`] has a mean, a variance, a distribution function, a quantile function and samples.
//! A [`GapDistribution`] describes the gaps between packets; successive gaps may depend on each other (bursts,
//! on/off sources). Both draw from the [`Rng`] that the caller passes. One seed gives one sequence
//! of numbers on every machine: the algorithm is PCG64, and logarithms, powers and the like come
//! from `libm`, because C libraries differ in the last bit.

mod continuous;
mod discrete;
mod distribution;
mod error;
mod gaps;
mod gaussian;
mod observed;
mod rng;
mod spec;
#[cfg(test)]
mod tests;

pub use continuous::{Erlang, Exponential, Hyperexponential, Pareto, Uniform, Weibull};
pub use discrete::{Constant, Geometric};
pub use distribution::{AnyDistribution, Distribution};
pub use error::DistributionError;
pub(crate) use error::number;
pub use gaps::{GapDistribution, GapProcess, GeometricOnOff, ParetoOnOff};
pub use gaussian::{Lognormal, Normal};
pub use observed::{Empirical, Histogram};
pub use rng::{RNG_NAME, Rng};
