//! Recorded values, which are used in their order.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::ModelError;

/// Traces by name: gaps or services in nanoseconds, lengths in bytes.
#[derive(Clone, Debug, Default)]
pub struct Traces(BTreeMap<String, Arc<[f64]>>);

impl Traces {
    /// Adds a trace.
    ///
    /// # Errors
    /// The trace is empty, or a value is negative, infinite or NaN; the error names the first such value.
    pub fn add(&mut self, name: &str, values: &[f64]) -> Result<(), ModelError> {
        let place = format!("trace {name:?}");
        if values.is_empty() {
            return Err(ModelError::value(&place, "length", 0, "at least one value"));
        }
        match values.iter().position(|v| !(v.is_finite() && *v >= 0.0)) {
            Some(at) => Err(ModelError::value(
                &place,
                format!("value {at}"),
                values[at],
                "a finite number that is not negative",
            )),
            None => {
                self.0.insert(name.to_string(), values.into());
                Ok(())
            }
        }
    }

    /// The values of a trace, if it exists.
    pub fn get(&self, name: &str) -> Option<&Arc<[f64]>> {
        self.0.get(name)
    }

    pub(super) fn require(&self, name: &str, place: &str) -> Result<Arc<[f64]>, ModelError> {
        self.get(name)
            .cloned()
            .ok_or_else(|| ModelError::unknown(place, "trace", name, self.0.keys()))
    }
}
