//! `_native.Simulation`: a queueing model that is run without the interpreter's lock, with Ctrl-C heard.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use arrow::array::{RecordBatch, RecordBatchIterator};
use parshall_core::queueing::{Model, ModelError, Network, Results, RunOptions, Traces, run};
use pyo3::prelude::*;

use crate::errors::{to_python, usage_to_python};
use crate::log::ArrowStream;
use crate::signals::listen;

/// See `parshall.model.run`, which documents what is in it.
#[pyclass(module = "parshall._native", frozen)]
pub struct Simulation {
    /// What was found, as JSON.
    #[pyo3(get)]
    results: String,
    packets: Option<RecordBatch>,
    visits: Option<RecordBatch>,
}

#[pymethods]
impl Simulation {
    /// Runs a model, which is JSON as the options are; traces are numbers by name.
    #[new]
    #[pyo3(signature = (model, options, traces=BTreeMap::new()))]
    fn new(
        py: Python<'_>,
        model: &str,
        options: &str,
        traces: BTreeMap<String, Vec<f64>>,
    ) -> PyResult<Self> {
        let model: Model = parse(model)?;
        let options: RunOptions = parse(options)?;
        let recorded = recorded(&traces)?;
        let network = py
            .detach(|| Network::new(model, &recorded, options.allow_unstable))
            .map_err(usage_to_python)?;
        let results = interruptible(py, &network, &options)?;
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

    /// Packets that left, of the first replication; None when they were not asked for.
    fn packets(&self) -> Option<ArrowStream> {
        self.packets.as_ref().map(stream)
    }

    /// Their visits of queues; None when they were not asked for.
    fn visits(&self) -> Option<ArrowStream> {
        self.visits.as_ref().map(stream)
    }
}

/// Checks a model without running it.
#[pyfunction]
#[pyo3(signature = (model, traces=BTreeMap::new(), allow_unstable=false))]
pub fn check_model(
    model: &str,
    traces: BTreeMap<String, Vec<f64>>,
    allow_unstable: bool,
) -> PyResult<()> {
    let recorded = recorded(&traces)?;
    Network::new(parse(model)?, &recorded, allow_unstable).map_err(usage_to_python)?;
    Ok(())
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

/// Runs in a thread of its own, while this one listens for signals.
fn interruptible(py: Python<'_>, network: &Network, options: &RunOptions) -> PyResult<Results> {
    let stop = AtomicBool::new(false);
    py.detach(|| {
        thread::scope(|scope| {
            let (send, receive) = channel();
            let stop = &stop;
            scope.spawn(move || {
                // Nobody listens any more after an interrupt.
                let _ = send.send(run(network, options, stop));
            });
            let listened = listen(&receive, |py| py.check_signals());
            if listened.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            listened?.map_err(|error| match error {
                ModelError::Value { .. } | ModelError::EndOfTime => usage_to_python(error),
                error => to_python(error),
            })
        })
    })
}
