//! The one error map: every error of the Rust crates becomes `parshall.errors.ParshallError`, or
//! `UsageError` when the request itself was wrong. Its text is the one line that a user reads.

use std::error::Error;
use std::io;

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

/// Turns an error into the Python exception: a mistake of the request if it is one, or if its cause is a file that is
/// not there, is of another kind, or may not be used.
pub fn error_to_python(error: impl Error + 'static, is_usage: bool) -> PyErr {
    any_error_to_python(&error, is_usage)
}

/// As [`error_to_python`], for an error that stays with its owner.
pub fn any_error_to_python(error: &(dyn Error + 'static), is_usage: bool) -> PyErr {
    if is_usage || is_about_a_file_name(error) {
        usage_to_python(error)
    } else {
        to_python(error)
    }
}

fn is_about_a_file_name(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| {
            matches!(
                error.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::PermissionDenied
                    | io::ErrorKind::IsADirectory
                    | io::ErrorKind::NotADirectory
            )
        })
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
