//! `_native.Session`: what Python sees of every instrument. Requests, statuses and summaries are JSON objects.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use parshall_kernel::session::{Beginning, Instrument, InstrumentError};
use pyo3::exceptions::PyBrokenPipeError;
use pyo3::prelude::*;
use serde::de::DeserializeOwned;

use crate::errors::{error_to_python, to_python, usage_to_python};
use crate::signals::{Interrupts, listen};

/// An instrument, whatever its types.
trait AnyInstrument: Send + Sync {
    fn status(&self) -> PyResult<String>;
    fn request_stop(&self);
    fn stop(&self) -> PyResult<String>;
}

impl<T: Instrument> AnyInstrument for T {
    fn status(&self) -> PyResult<String> {
        serde_json::to_string(&Instrument::status(self)).map_err(to_python)
    }

    fn request_stop(&self) {
        Instrument::request_stop(self);
    }

    fn stop(&self) -> PyResult<String> {
        let summary = Instrument::stop(self).map_err(raise)?;
        serde_json::to_string(&summary).map_err(to_python)
    }
}

/// See `parshall.session.Session`.
#[pyclass(module = "parshall._native", subclass, frozen)]
pub struct Session {
    instrument: Arc<dyn AnyInstrument>,
}

impl Session {
    /// The base of an instrument's own class.
    pub fn of<T: Instrument>(instrument: &Arc<T>) -> PyClassInitializer<Self> {
        let instrument: Arc<T> = Arc::clone(instrument);
        PyClassInitializer::from(Self { instrument })
    }
}

#[pymethods]
impl Session {
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.instrument.status())
    }

    fn request_stop(&self, py: Python<'_>) {
        py.detach(|| self.instrument.request_stop());
    }

    /// Ends the instrument and waits for its end.
    fn stop(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.instrument.stop())
    }
}

/// Reads a request.
pub fn request<T: DeserializeOwned>(json: &str) -> PyResult<T> {
    serde_json::from_str(json).map_err(usage_to_python)
}

/// The Python exception of an instrument's error.
pub fn raise(error: impl InstrumentError) -> PyErr {
    if error.is_reader_gone() {
        return PyBrokenPipeError::new_err(error.to_string());
    }
    let is_usage = error.is_usage();
    error_to_python(error, is_usage)
}

/// Starts an instrument in a thread of its own. Until it has begun, a signal gives it up, and so does `is_stopping` when
/// it returns true: what prepares cannot be interrupted, but nothing comes of it. From then on the start is waited for.
pub fn start<T: Instrument>(
    py: Python<'_>,
    is_stopping: Option<&Bound<'_, PyAny>>,
    start: impl FnOnce(&Beginning) -> Result<T, T::Error> + Send + 'static,
) -> PyResult<Arc<T>>
where
    T::Error: Send,
{
    let interrupts = Interrupts::new(is_stopping);
    let beginning = Arc::new(Beginning::default());
    let own = Arc::clone(&beginning);
    let (send, receive) = channel();
    thread::Builder::new()
        .name("parshall-start".into())
        .spawn(move || {
            // After an interrupt nobody receives it, and it is stopped.
            let _ = send.send(start(&own));
        })
        .map_err(to_python)?;
    let (started, late) = py.detach(move || {
        // An interrupt after it began: it ends as one that ran.
        let mut late = None;
        let started = listen(&receive, |py| match beginning.has_begun() {
            true => Ok(()),
            false => match interrupts.check(py) {
                Err(interrupt) if beginning.give_up() => Err(interrupt),
                Err(interrupt) => {
                    late = Some(interrupt);
                    Ok(())
                }
                Ok(()) => Ok(()),
            },
        });
        (started, late)
    });
    let started = started?;
    match late {
        Some(interrupt) => {
            py.detach(|| drop(started));
            Err(interrupt)
        }
        None => started.map(Arc::new).map_err(raise),
    }
}
