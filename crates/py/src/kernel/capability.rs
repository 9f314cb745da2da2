//! `parshall._native.probe_capabilities`, `build_info`, `cgroup2_mount` and `confine`.

use std::path::PathBuf;

use parshall_kernel::confinement::{self, Needs};
use pyo3::prelude::*;

use crate::errors::to_python;

/// Probes what this host supports; returns the probes as a JSON list.
#[pyfunction]
pub fn probe_capabilities(py: Python<'_>) -> PyResult<String> {
    let probes = py.detach(parshall_kernel::capability::probe_all);
    serde_json::to_string(&probes).map_err(to_python)
}

/// The libraries and eBPF objects of this build, as a JSON object.
#[pyfunction]
pub fn build_info() -> PyResult<String> {
    let info = parshall_kernel::build_info::build_info().map_err(to_python)?;
    serde_json::to_string(&info).map_err(to_python)
}

/// The mount point of the cgroup-v2 hierarchy; None when it is not mounted.
#[pyfunction]
pub fn cgroup2_mount() -> Option<PathBuf> {
    parshall_kernel::capability::cgroup::cgroup2_mount()
}

/// Drops the privileges that no running instrument needs, permanently and in all threads.
#[pyfunction]
pub fn confine(
    py: Python<'_>,
    needs_files: bool,
    needs_child: bool,
    needs_namespaces: bool,
) -> PyResult<()> {
    let needs = Needs {
        files: needs_files,
        child: needs_child,
        namespaces: needs_namespaces,
    };
    py.detach(|| confinement::confine(needs))
        .map_err(|error| to_python(format!("privileges cannot be given up: {error}; report it")))
}
