//! `parshall._native.probe_capabilities` and `parshall._native.cgroup2_mount`.

use std::path::PathBuf;

use pyo3::prelude::*;

use crate::errors::to_python;

/// Probe what this host supports; return the probes as a JSON list.
#[pyfunction]
pub fn probe_capabilities(py: Python<'_>) -> PyResult<String> {
    let probes = py.detach(parshall_kernel::capability::probe_all);
    serde_json::to_string(&probes).map_err(to_python)
}

/// Return the mount point of the cgroup-v2 hierarchy, or None when it is not mounted.
#[pyfunction]
pub fn cgroup2_mount() -> Option<PathBuf> {
    parshall_kernel::capability::cgroup::cgroup2_mount()
}
