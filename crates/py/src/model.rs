//! `_native.Simulation`: runs a queueing model without the interpreter's lock; Ctrl-C interrupts it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use arrow::array::{RecordBatch, RecordBatchIterator};
use parshall_core::queueing::{self, ModelError, RunOptions, Traces, run};
use pyo3::prelude::*;

use crate::errors::{to_python, usage_to_python};
use crate::log::ArrowStream;
use crate::signals::listen;

/// A checked model, ready to run.
#[pyclass(module = "parshall._native", frozen)]
pub struct Network(queueing::Network);

#[pymethods]
impl Network {
    /// Checks a model, which is JSON; `traces` has the values of each trace by its name.
    #[new]
    #[pyo3(signature = (model, traces=BTreeMap::new(), allow_unstable=false))]
    fn new(
        py: Python<'_>,
        model: &str,
        traces: BTreeMap<String, Vec<f64>>,
        allow_unstable: bool,
    ) -> PyResult<Self> {
        let model = parse(model)?;
        let recorded = recorded(&traces)?;
        let check =
            |stop: &_| queueing::Network::until_stopped(model, &recorded, allow_unstable, stop);
        interruptible(py, check).map(Self)
    }
}

/// See `parshall.model.run`, which documents the results.
#[pyclass(module = "parshall._native", frozen)]
pub struct Simulation {
    /// The results, as JSON.
    #[pyo3(get)]
    results: String,
    packets: Option<RecordBatch>,
    visits: Option<RecordBatch>,
}

#[pymethods]
impl Simulation {
    /// Runs a network with options, which are JSON.
    #[new]
    fn new(py: Python<'_>, network: &Network, options: &str) -> PyResult<Self> {
        let network = &network.0;
        let options: RunOptions = parse(options)?;
        let results = interruptible(py, |stop| run(network, &options, stop))?;
        let first = results.replications.first();
        let trace = first.filter(|_| options.trace).map(|first| &first.trace);
        Ok(Self {
            results: serde_json::to_string(&results).map_err(to_python)?,
            packets: match trace {
                Some(trace) => Some(trace.packets.batch(network.model()).map_err(to_python)?),
                None => None,
            },
            visits: match trace {
                Some(trace) => Some(trace.visits.batch(network.model()).map_err(to_python)?),
                None => None,
            },
        })
    }

    /// Packets that left the network in the first replication; None when not requested.
    fn packets(&self) -> Option<ArrowStream> {
        self.packets.as_ref().map(stream)
    }

    /// Visits of these packets to queues; None when not requested.
    fn visits(&self) -> Option<ArrowStream> {
        self.visits.as_ref().map(stream)
    }
}

fn parse<T: serde::de::DeserializeOwned>(text: &str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|error| usage_to_python(ModelError::from(error)))
}

fn recorded(traces: &BTreeMap<String, Vec<f64>>) -> PyResult<Traces> {
    let mut recorded = Traces::default();
    for (name, values) in traces {
        recorded.add(name, values).map_err(usage_to_python)?;
    }
    Ok(recorded)
}

fn stream(batch: &RecordBatch) -> ArrowStream {
    ArrowStream::new(RecordBatchIterator::new(
        [Ok(batch.clone())],
        batch.schema(),
    ))
}

/// Runs `work` in another thread, while this thread checks for signals.
fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&AtomicBool) -> Result<T, ModelError> + Send,
) -> PyResult<T> {
    let stop = AtomicBool::new(false);
    py.detach(|| {
        thread::scope(|scope| {
            let (send, receive) = channel();
            let stop = &stop;
            scope.spawn(move || {
                // After an interrupt the receiver is closed.
                let _ = send.send(work(stop));
            });
            let listened = listen(&receive, |py| py.check_signals());
            if listened.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            listened?.map_err(|error| match error {
                // These errors occur only during a run.
                ModelError::TooManyJobs { .. }
                | ModelError::Standstill { .. }
                | ModelError::Stopped => to_python(error),
                error => usage_to_python(error),
            })
        })
    })
}
