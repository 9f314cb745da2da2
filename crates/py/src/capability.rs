//! `parshall._native.probe_capabilities`.

use pyo3::prelude::*;

use crate::errors::to_python;

/// Try what this host offers; return the probes as a JSON list.
#[pyfunction]
pub fn probe_capabilities(py: Python<'_>) -> PyResult<String> {
    let probes = py.detach(parshall_kernel::capability::probe_all);
    serde_json::to_string(&probes).map_err(to_python)
}
