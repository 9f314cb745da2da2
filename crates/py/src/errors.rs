//! The one error map: every error of the Rust crates becomes `parshall.errors.ParshallError`,
//! whose text is the one line that a user reads.

use pyo3::PyErr;
use pyo3::prelude::*;

/// Turns any error of ours into the Python exception.
pub fn to_python(error: impl std::fmt::Display) -> PyErr {
    Python::attach(|py| {
        let class = py
            .import("parshall.errors")
            .and_then(|module| module.getattr("ParshallError"));
        match class.and_then(|class| class.call1((error.to_string(),))) {
            Ok(instance) => PyErr::from_value(instance),
            Err(import_error) => import_error,
        }
    })
}
