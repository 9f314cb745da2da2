//! `_native.Session`: every instrument's interface for Python. Requests, statuses and summaries are JSON objects.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use parshall_kernel::session::{AnyInstrument, Failure, Instrument, Startup};
use pyo3::exceptions::PyBrokenPipeError;
use pyo3::prelude::*;
use serde::de::DeserializeOwned;

use crate::errors::{any_error_to_python, to_python, usage_to_python};
use crate::signals::{Interrupts, listen};

/// See `parshall.host.session.Session`.
#[pyclass(module = "parshall._native", subclass, frozen)]
pub struct Session {
    instrument: Arc<dyn AnyInstrument>,
    /// How it ended. Ctrl-C may come when it has ended and before Python has its summary: then Python asks again.
    ended: Mutex<Option<PyResult<String>>>,
}

impl Session {
    /// The `Session` part of an instrument that has a class of its own.
    pub fn of<T: Instrument>(instrument: &Arc<T>) -> PyClassInitializer<Self> {
        let instrument: Arc<T> = Arc::clone(instrument);
        PyClassInitializer::from(Self::new(instrument))
    }

    fn new(instrument: Arc<dyn AnyInstrument>) -> Self {
        Self {
            instrument,
            ended: Mutex::default(),
        }
    }

    fn ended(&self) -> MutexGuard<'_, Option<PyResult<String>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Session {
    /// Starts the instrument of this name, see `parshall_kernel::start`.
    #[new]
    #[pyo3(signature = (name, json, is_stopping=None))]
    fn begin(
        py: Python<'_>,
        name: String,
        json: String,
        is_stopping: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let instrument = start(py, is_stopping, move |startup| {
            parshall_kernel::start(&name, &json, startup)
        })?;
        Ok(Self::new(instrument))
    }

    fn status(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.instrument.status()).map_err(raise)
    }

    fn request_stop(&self, py: Python<'_>) {
        py.detach(|| self.instrument.request_stop());
    }

    /// The account at the last tick; `null` where none is kept.
    fn account(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.instrument.account()).map_err(raise)
    }

    /// Stops the instrument and waits until it has ended. Called again, it says the same.
    fn stop(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| {
            self.ended()
                .get_or_insert_with(|| self.instrument.stop().map_err(raise))
                .is_ok()
        });
        match self.ended().as_ref() {
            Some(Ok(summary)) => Ok(summary.clone()),
            Some(Err(error)) => Err(error.clone_ref(py)),
            None => unreachable!("it was set above, and is never taken out"),
        }
    }
}

/// Reads a request.
pub fn request<T: DeserializeOwned>(json: &str) -> PyResult<T> {
    serde_json::from_str(json).map_err(usage_to_python)
}

/// The Python exception of an instrument's error.
pub fn raise(error: impl Into<Failure>) -> PyErr {
    let error: Failure = error.into();
    if error.is_reader_gone() {
        return PyBrokenPipeError::new_err(error.to_string());
    }
    any_error_to_python(&*error, error.is_usage())
}

/// Starts an instrument in another thread. A signal, or `is_stopping` returning true, cancels a
/// start whose files are not open yet: the thread goes on, but its result is dropped. Later, this
/// waits until the instrument has started.
pub fn start<T: Send + 'static, E: Into<Failure> + Send + 'static>(
    py: Python<'_>,
    is_stopping: Option<&Bound<'_, PyAny>>,
    start: impl FnOnce(&Startup) -> Result<T, E> + Send + 'static,
) -> PyResult<T> {
    let interrupts = Interrupts::new(is_stopping);
    let startup = Arc::new(Startup::default());
    let own = Arc::clone(&startup);
    let (send, receive) = channel();
    thread::Builder::new()
        .name("parshall-start".into())
        .spawn(move || {
            // After an interrupt the receiver is closed, and the instrument is stopped.
            let _ = send.send(start(&own));
        })
        .map_err(to_python)?;
    let (started, late) = py.detach(move || {
        // An interrupt that cannot end the wait: it is raised after the start, and the instrument
        // is stopped.
        let mut late = None;
        let started = listen(&receive, |py| match startup.has_begun() {
            true => Ok(()),
            false => match interrupts.check(py) {
                Err(interrupt) if startup.give_up() => Err(interrupt),
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
        None => started.map_err(raise),
    }
}
