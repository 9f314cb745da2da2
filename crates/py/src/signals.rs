//! Runs long work in a thread of its own, which Ctrl-C interrupts.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

use crate::errors::to_python;

/// Interval between checks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Checks for Python's signals and for the caller's request to stop. Keeps the exception that
/// interrupts the work.
pub struct Interrupts {
    is_stopping: Option<Py<PyAny>>,
    interrupt: Option<PyErr>,
}

impl Interrupts {
    /// `is_stopping` is a function that returns whether to stop.
    pub fn new(is_stopping: Option<&Bound<'_, PyAny>>) -> Self {
        Self {
            is_stopping: is_stopping.map(|function| function.clone().unbind()),
            interrupt: None,
        }
    }

    /// Fails with the exception of a signal handler, or with `KeyboardInterrupt` when the caller
    /// wants to stop.
    pub fn check(&self, py: Python<'_>) -> PyResult<()> {
        py.check_signals()?;
        match &self.is_stopping {
            Some(function) if function.call0(py)?.is_truthy(py)? => {
                Err(PyKeyboardInterrupt::new_err(()))
            }
            _ => Ok(()),
        }
    }

    /// Whether to stop. Python's lock must not be held.
    pub fn is_stopping(&mut self) -> bool {
        self.interrupt = Python::attach(|py| self.check(py)).err();
        self.interrupt.is_some()
    }

    /// The exception that interrupted the work; without one, `error`.
    pub fn or_raise(self, error: PyErr) -> PyErr {
        self.interrupt.unwrap_or(error)
    }
}

/// Waits for the result of the work, and calls `check` every 50 ms; its first error ends the wait. Python's lock must
/// not be held.
pub fn listen<T>(
    result: &Receiver<T>,
    mut check: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<T> {
    loop {
        match result.recv_timeout(SIGNAL_INTERVAL) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => Python::attach(&mut check)?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(to_python("the work ended without a result; report it"));
            }
        }
    }
}
