//! Work that may take long, in a thread of its own, with Ctrl-C heard.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors::to_python;

/// How long a Ctrl-C may go unheard.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Waits for what the work sends, and asks now and then whether to go on waiting; the first error
/// that `ask` gives ends it. Python's lock must not be held.
pub fn listen<T>(
    result: &Receiver<T>,
    mut ask: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<T> {
    loop {
        match result.recv_timeout(SIGNAL_INTERVAL) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => Python::attach(&mut ask)?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(to_python("it ended without a result"));
            }
        }
    }
}
