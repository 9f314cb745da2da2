//! What can be wrong with a law.

use crate::excerpt::excerpt;

/// Characters of a text that an error shows.
const SHOWN: usize = 200;

/// A law that cannot be: its text is one line.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LawError {
    /// A parameter outside its range.
    #[error("law {law}: {parameter} is {found}; expected {expected}")]
    Parameter {
        /// The law.
        law: &'static str,
        /// Its parameter.
        parameter: &'static str,
        /// What was given.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
    /// A text that names no law.
    #[error("{:?} is no {kind}; expected one of {expected}", excerpt(.found, SHOWN))]
    Unknown {
        /// "law" or "gap law".
        kind: &'static str,
        /// What was given.
        found: String,
        /// The names there are.
        expected: &'static str,
    },
    /// A text whose parameters are not understood.
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

/// `value`, if it is finite and greater than zero.
pub(super) fn positive(
    law: &'static str,
    parameter: &'static str,
    value: f64,
) -> Result<f64, LawError> {
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(LawError::Parameter {
        law,
        parameter,
        found: number(value),
        expected: "a finite number > 0",
    })
}

/// `value`, if it is finite.
pub(super) fn finite(
    law: &'static str,
    parameter: &'static str,
    value: f64,
) -> Result<f64, LawError> {
    if value.is_finite() {
        return Ok(value);
    }
    Err(LawError::Parameter {
        law,
        parameter,
        found: number(value),
        expected: "a finite number",
    })
}

/// A number in as few characters as it needs.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 || (1e-5..1e15).contains(&value.abs()) {
        return value.to_string();
    }
    format!("{value:e}")
}
