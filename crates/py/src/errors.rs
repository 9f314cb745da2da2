//! The one error map: every error of the Rust crates becomes `parshall.errors.ParshallError`, or
//! `UsageError` when the request itself was wrong. Its text is the one line that a user reads.

use pyo3::PyErr;
use pyo3::prelude::*;

/// Turns an error of ours into the Python exception.
pub fn to_python(error: impl std::fmt::Display) -> PyErr {
    raise("ParshallError", &error.to_string())
}

/// Turns a mistake of the request into the Python exception.
pub fn usage_to_python(error: impl std::fmt::Display) -> PyErr {
    raise("UsageError", &error.to_string())
}

fn raise(class: &str, text: &str) -> PyErr {
    Python::attach(|py| {
        let class = py
            .import("parshall.errors")
            .and_then(|module| module.getattr(class));
        match class.and_then(|class| class.call1((text,))) {
            Ok(instance) => PyErr::from_value(instance),
            Err(import_error) => import_error,
        }
    })
}
