//! `_native.TcpLog`: a TCP state log being made.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use parshall_core::tcp_log::Compression;
use parshall_kernel::ring::Preference;
use parshall_kernel::tcp::TcpError;
use parshall_kernel::tcp::options::{Directions, TcpLogOptions};
use parshall_kernel::tcp::session;
use pyo3::exceptions::PyBrokenPipeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{error_to_python, to_python, usage_to_python};
use crate::signals::Interrupts;

fn raise(error: TcpError) -> PyErr {
    if error.is_reader_gone() {
        return PyBrokenPipeError::new_err(error.to_string());
    }
    let is_usage = matches!(error, TcpError::Option { .. } | TcpError::Cgroup { .. });
    error_to_python(error, is_usage)
}

/// See `parshall.tcp.TcpLog`, which documents the arguments.
#[pyclass(module = "parshall._native")]
pub struct TcpLog {
    inner: session::TcpLog,
}

#[pymethods]
impl TcpLog {
    #[new]
    #[pyo3(signature = (path, *, environment, options, packets_per_log, on_change, ports, hosts,
                        directions, cgroup, netns_inode, pids, ring_bytes, slow_reader, handshake_silence_s, compression,
                        is_stopping=None))]
    #[allow(clippy::too_many_arguments)] // one keyword argument an option: Python names them
    fn start(
        py: Python<'_>,
        path: PathBuf,
        environment: String,
        options: String,
        packets_per_log: u32,
        on_change: bool,
        ports: Vec<u16>,
        hosts: Vec<IpAddr>,
        directions: &str,
        cgroup: Option<PathBuf>,
        netns_inode: Option<u32>,
        pids: Vec<u32>,
        ring_bytes: u64,
        slow_reader: bool,
        handshake_silence_s: f64,
        compression: &str,
        is_stopping: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let directions = match directions {
            "in" => Directions::In,
            "out" => Directions::Out,
            "both" => Directions::Both,
            other => {
                return Err(usage_to_python(format!(
                    "--direction {other}: expected in, out or both"
                )));
            }
        };
        let compression = (compression.parse::<Compression>())
            .map_err(|reason: String| usage_to_python(format!("--compression {reason}")))?;
        let request = TcpLogOptions {
            packets_per_log,
            on_change,
            ports,
            hosts,
            directions,
            cgroup,
            netns_inode,
            pids,
            ring_bytes,
            preference: if slow_reader {
                Preference::SlowReader
            } else {
                Preference::FastReader
            },
            handshake_silence: Duration::try_from_secs_f64(handshake_silence_s)
                .map_err(usage_to_python)?,
            compression,
        };
        let mut interrupts = Interrupts::new(is_stopping);
        let started = py.detach(|| {
            let mut ask = || interrupts.is_stopping();
            session::TcpLog::start(&request, &path, environment, options, &mut ask)
        });
        match started {
            Ok(inner) => Ok(Self { inner }),
            Err(error) => Err(interrupts.or_raise(raise(error))),
        }
    }

    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let status = self.inner.status();
        let dict = PyDict::new(py);
        dict.set_item("records", status.records)?;
        dict.set_item("flows", status.flows)?;
        dict.set_item("overwritten", status.overwritten)?;
        dict.set_item("log_bytes", status.log_bytes)?;
        dict.set_item("has_ended", status.has_ended)?;
        Ok(dict)
    }

    fn switch(&self, on: bool) -> PyResult<()> {
        self.inner.switch(on).map_err(raise)
    }

    /// Returns `(ledger as JSON, flows, what stopped it or None)`.
    fn stop(&mut self, py: Python<'_>) -> PyResult<(String, u64, Option<String>)> {
        let summary = py.detach(|| self.inner.stop()).map_err(raise)?;
        let ledger = serde_json::to_string(&summary.ledger).map_err(to_python)?;
        Ok((
            ledger,
            summary.flows,
            summary.failure.map(|failure| failure.to_string()),
        ))
    }
}
