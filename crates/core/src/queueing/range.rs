//! Ranges of the numbers in a model.

use super::error::ModelError;
use crate::distributions::number;

/// Maximum of a time in ns and of a length in bytes. A run ends at 1.8e16 ns.
pub(super) const AMOUNT_MAX: f64 = 1e16;

/// Refuses a field of a part of the model (`place`) unless its value is valid.
pub(super) fn require(
    is_valid: bool,
    place: &str,
    field: impl Into<String>,
    value: impl ToString,
    expected: impl Into<String>,
) -> Result<(), ModelError> {
    match is_valid {
        true => Ok(()),
        false => Err(ModelError::value(place, field, value, expected)),
    }
}

/// Checks that a value is finite and above 0.
pub(super) fn above_zero(place: &str, field: &str, value: f64) -> Result<(), ModelError> {
    let is_valid = value.is_finite() && value > 0.0;
    let expected = "a finite number above 0";
    require(is_valid, place, field, number(value), expected)
}

/// Checks that a value is finite and not negative.
pub(super) fn not_negative(place: &str, field: &str, value: f64) -> Result<(), ModelError> {
    let is_valid = value.is_finite() && value >= 0.0;
    let expected = "a finite number that is not negative";
    require(is_valid, place, field, number(value), expected)
}

/// Checks a time in ns or a length in bytes.
pub(super) fn duration(place: &str, field: &str, value: f64) -> Result<(), ModelError> {
    let is_valid = (0.0..=AMOUNT_MAX).contains(&value);
    let expected = "a number from 0 to 1e16; 1e16 ns are 115 days";
    require(is_valid, place, field, number(value), expected)
}
