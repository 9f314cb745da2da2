//! The law of what never varies.

use super::error::finite;
use super::{Distribution, Generator, LawError};
use std::fmt;

/// Always `value`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constant {
    value: f64,
}

impl Constant {
    /// A law of one value.
    ///
    /// # Errors
    /// When `value` is not finite.
    pub fn new(value: f64) -> Result<Self, LawError> {
        Ok(Self {
            value: finite("constant", "value", value)?,
        })
    }
}

impl Distribution for Constant {
    fn mean(&self) -> f64 {
        self.value
    }

    fn variance(&self) -> f64 {
        0.0
    }

    fn cdf(&self, x: f64) -> f64 {
        f64::from(u8::from(x >= self.value))
    }

    fn quantile(&self, _probability: f64) -> f64 {
        self.value
    }

    /// Takes no number from the generator.
    fn sample(&self, _generator: &mut Generator) -> f64 {
        self.value
    }
}

impl fmt::Display for Constant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "constant:value={}", self.value)
    }
}
