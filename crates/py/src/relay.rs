//! `parshall._native.Relay`: the relay that plays a link, as a Python class.

use crate::errors::to_python;
use parshall_kernel::relay::{Placement, Relay as KernelRelay, RelayOptions, Shape, Statistics};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::Mutex;

/// A relay between two Ethernet interfaces of a network namespace; its thread dies with the process.
///
/// Parameters
/// ----------
/// interface_a, interface_b : str
///     Names of the interfaces in the namespace.
/// netns_path : str or None
///     Path of the network namespace; None is the namespace of the calling thread.
/// cpu : int, optional
///     CPU to which the thread is bound.
/// a_to_b, b_to_a : dict, optional
///     What happens to frames in each direction: `rate_bps`, `overhead_bytes`, `delay_ns`,
///     `jitter_ns`, `jitter_law` ("uniform" or "normal"), `loss_probability`, `queue_packets`,
///     `queue_bytes`. What is left out does nothing.
/// seed : int
///     Seed of losses and jitter.
/// fifo_priority : int, optional
///     SCHED_FIFO priority to ask for; the statistics say what was granted.
/// mtu : int
///     Longest frame without its Ethernet header, bytes.
/// memory_bytes : int
///     Memory for the frames inside one direction.
///
/// Raises
/// ------
/// ParshallError
///     From `start`, when a parameter is outside its range or the kernel refuses.
#[pyclass(module = "parshall._native")]
pub struct Relay {
    options: RelayOptions,
    // The thread that waits for an answer holds the lock without the GIL; a second caller waits
    // for the lock without the GIL too, so that neither can block the interpreter.
    running: Mutex<Option<KernelRelay>>,
}

#[pymethods]
impl Relay {
    #[new]
    #[pyo3(signature = (
        interface_a, interface_b, netns_path=None, cpu=None, a_to_b=None, b_to_a=None, seed=1,
        fifo_priority=None, mtu=1500, memory_bytes=67_108_864
    ))]
    #[allow(clippy::too_many_arguments)] // They are keywords in Python.
    fn new(
        interface_a: &str,
        interface_b: &str,
        netns_path: Option<PathBuf>,
        cpu: Option<usize>,
        a_to_b: Option<&Bound<'_, PyDict>>,
        b_to_a: Option<&Bound<'_, PyDict>>,
        seed: u64,
        fifo_priority: Option<i32>,
        mtu: usize,
        memory_bytes: usize,
    ) -> PyResult<Self> {
        let options = RelayOptions {
            shapes: [shape(a_to_b)?, shape(b_to_a)?],
            seed,
            placement: Placement {
                namespace: netns_path,
                cpu,
                fifo_priority,
            },
            // Ethernet header and one VLAN tag.
            frame_bytes: mtu + 18,
            memory_bytes,
            ..RelayOptions::new(interface_a, interface_b)
        };
        Ok(Self {
            options,
            running: Mutex::new(None),
        })
    }

    /// Start the thread; return when it takes frames.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            let mut running = self.running.lock().map_err(|error| error.to_string())?;
            if running.is_some() {
                return Err("relay: it already runs; stop it before starting it again".to_string());
            }
            *running =
                Some(KernelRelay::start(self.options.clone()).map_err(|error| error.to_string())?);
            Ok(())
        })
        .map_err(to_python)
    }

    /// Return the account at this moment, as a dict; the relay goes on.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let statistics = py
            .detach(|| {
                let running = self.running.lock().map_err(|error| error.to_string())?;
                let relay = running.as_ref().ok_or_else(not_running)?;
                relay.statistics().map_err(|error| error.to_string())
            })
            .map_err(to_python)?;
        to_dict(py, &statistics)
    }

    /// End the relay and return the final account, as a dict; frames inside are not forwarded.
    fn stop<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let statistics = py
            .detach(|| {
                let mut running = self.running.lock().map_err(|error| error.to_string())?;
                let relay = running.take().ok_or_else(not_running)?;
                relay.stop().map_err(|error| error.to_string())
            })
            .map_err(to_python)?;
        to_dict(py, &statistics)
    }
}

fn not_running() -> String {
    "relay: it does not run; call start first".into()
}

fn shape(parameters: Option<&Bound<'_, PyDict>>) -> PyResult<Shape> {
    let Some(parameters) = parameters else {
        return Ok(Shape::default());
    };
    let json = parameters.py().import("json")?;
    let text: String = json.call_method1("dumps", (parameters,))?.extract()?;
    serde_json::from_str::<Shape>(&text)
        .map_err(|error| {
            format!("relay: parameters {text} are not understood ({error}); see docs/testbed.md")
        })
        .and_then(|shape| shape.checked().map_err(|error| error.to_string()))
        .map_err(to_python)
}

fn to_dict<'py>(py: Python<'py>, statistics: &Statistics) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(statistics).map_err(to_python)?;
    py.import("json")?.call_method1("loads", (text,))
}
