//! Errors of distributions.

use crate::excerpt::excerpt;

/// Characters of a text that an error shows.
const SHOWN: usize = 200;

/// An invalid distribution. The message is one line.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DistributionError {
    /// A parameter outside its range.
    #[error("distribution {distribution}: {parameter} is {found}; expected {expected}")]
    Parameter {
        /// The distribution.
        distribution: &'static str,
        /// Its parameter.
        parameter: &'static str,
        /// What was given.
        found: String,
        /// What is valid.
        expected: &'static str,
    },
    /// The text does not name a distribution.
    #[error("{kind} {:?}: unknown; expected one of {expected}", excerpt(.found, SHOWN))]
    Unknown {
        /// "distribution" or "gap distribution".
        kind: &'static str,
        /// What was given.
        found: String,
        /// The known names.
        expected: &'static str,
    },
    /// The parameters in the text are invalid.
    #[error("{:?}: {}; expected {expected}", excerpt(.text, SHOWN), excerpt(.reason, SHOWN))]
    Syntax {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: String,
        /// The form it should have.
        expected: &'static str,
    },
}

/// Returns `value` if it is finite and greater than 0.
pub(super) fn positive(
    distribution: &'static str,
    parameter: &'static str,
    value: f64,
) -> Result<f64, DistributionError> {
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(DistributionError::Parameter {
        distribution,
        parameter,
        found: number(value),
        expected: "a finite number > 0",
    })
}

/// Returns `value` if it is finite.
pub(super) fn finite(
    distribution: &'static str,
    parameter: &'static str,
    value: f64,
) -> Result<f64, DistributionError> {
    if value.is_finite() {
        return Ok(value);
    }
    Err(DistributionError::Parameter {
        distribution,
        parameter,
        found: number(value),
        expected: "a finite number",
    })
}

/// Formats a number in as few characters as possible.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 || (1e-5..1e15).contains(&value.abs()) {
        return value.to_string();
    }
    format!("{value:e}")
}
