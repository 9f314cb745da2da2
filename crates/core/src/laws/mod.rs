//! Random laws: what the generator and the queueing models share.
//!
//! A [`Law`] is a distribution of a number: mean, variance, distribution function, quantile,
//! sample. A [`GapLaw`] is a process of gaps between packets, which may remember where it is (bursts,
//! on/off sources). Both draw from a [`Generator`] that is handed in; one seed gives one sequence of
//! numbers on every machine: the generator is PCG64, and logarithms, powers and the like come
//! from `libm`, which is the same code everywhere, not from the machine's C library.

mod constant;
mod empirical;
mod erlang;
mod error;
mod exponential;
mod gaps;
mod generator;
mod geometric;
mod histogram;
mod hyperexponential;
mod law;
mod lognormal;
mod normal;
mod pareto;
mod spec;
#[cfg(test)]
mod tests;
mod uniform;
mod weibull;

pub use constant::Constant;
pub use empirical::Empirical;
pub use erlang::Erlang;
pub use error::LawError;
pub(crate) use error::number;
pub use exponential::Exponential;
pub use gaps::{GapLaw, GapProcess, GeometricOnOff, ParetoOnOff};
pub use generator::{GENERATOR, Generator};
pub use geometric::Geometric;
pub use histogram::Histogram;
pub use hyperexponential::Hyperexponential;
pub use law::{Distribution, Law};
pub use lognormal::Lognormal;
pub use normal::Normal;
pub use pareto::Pareto;
pub use uniform::Uniform;
pub use weibull::Weibull;
