//! A beginning that may take long, with Ctrl-C heard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

use crate::errors::to_python;

/// How long a Ctrl-C may go unheard.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// Does something in a thread of its own, while this one listens for signals, and asks whether it
/// should stop, until the work says that it has begun: from then on it is waited for. After a signal
/// nobody waits any more: what comes of it is dropped there.
pub fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    is_stopping: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
) -> PyResult<T> {
    let is_stopping = is_stopping.map(|asked| asked.clone().unbind());
    let has_begun = Arc::new(AtomicBool::new(false));
    let begun = Arc::clone(&has_begun);
    let (send, receive) = channel();
    thread::Builder::new()
        .name("parshall-start".into())
        .spawn(move || {
            // Nobody listens any more after an interrupt.
            let _ = send.send(work(&begun));
        })
        .map_err(to_python)?;
    py.detach(move || {
        loop {
            match receive.recv_timeout(SIGNAL_INTERVAL) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) if has_begun.load(Ordering::Relaxed) => {}
                Err(RecvTimeoutError::Timeout) => Python::attach(|py| {
                    py.check_signals()?;
                    match &is_stopping {
                        Some(asked) if asked.call0(py)?.is_truthy(py)? => {
                            Err(PyKeyboardInterrupt::new_err(()))
                        }
                        _ => Ok(()),
                    }
                })?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(to_python("it ended without a result"));
                }
            }
        }
    })
}
