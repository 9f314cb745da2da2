//! Errors of distributions.

use crate::excerpt::excerpt;

/// Maximum number of characters of a text in an error.
const SHOWN: usize = 200;

/// An invalid distribution. The message is one line.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum DistributionError {
    /// A parameter outside its range.
    #[error("distribution {distribution}: {parameter} is {found}; expected {expected}")]
    Parameter {
        distribution: &'static str,
        parameter: &'static str,
        found: String,
        expected: &'static str,
    },
    /// The text does not name a distribution.
    #[error("{kind} {:?}: unknown; expected one of {expected}", excerpt(.found, SHOWN))]
    Unknown {
        /// "distribution" or "gap distribution".
        kind: &'static str,
        found: String,
        expected: &'static str,
    },
    /// The parameters in the text are invalid.
    #[error("{:?}: {}; expected {expected}", excerpt(.text, SHOWN), excerpt(.reason, SHOWN))]
    Syntax {
        text: String,
        reason: String,
        expected: &'static str,
    },
}

impl DistributionError {
    pub(super) fn parameter(
        distribution: &'static str,
        parameter: &'static str,
        found: impl Into<String>,
        expected: &'static str,
    ) -> Self {
        Self::Parameter {
            distribution,
            parameter,
            found: found.into(),
            expected,
        }
    }
}

/// Returns `value` if `is_valid`.
pub(super) fn checked(
    is_valid: bool,
    distribution: &'static str,
    parameter: &'static str,
    value: f64,
    expected: &'static str,
) -> Result<f64, DistributionError> {
    let wrong = || DistributionError::parameter(distribution, parameter, number(value), expected);
    is_valid.then_some(value).ok_or_else(wrong)
}

/// Returns `value` if it is finite and greater than 0.
pub(super) fn positive(
    distribution: &'static str,
    parameter: &'static str,
    value: f64,
) -> Result<f64, DistributionError> {
    let is_valid = value.is_finite() && value > 0.0;
    checked(
        is_valid,
        distribution,
        parameter,
        value,
        "a finite number > 0",
    )
}

/// Returns `value` if it is finite.
pub(super) fn finite(
    distribution: &'static str,
    parameter: &'static str,
    value: f64,
) -> Result<f64, DistributionError> {
    checked(
        value.is_finite(),
        distribution,
        parameter,
        value,
        "a finite number",
    )
}

/// Formats a number in as few characters as possible.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 || (1e-5..1e15).contains(&value.abs()) {
        return value.to_string();
    }
    format!("{value:e}")
}
