//! `_native.HookTimes`: how long the eBPF programs of this host run.

use crate::errors::to_python;
use pyo3::prelude::*;

/// See `parshall.instruments.cpu.hooks`.
#[pyclass(module = "parshall._native")]
pub struct HookTimes(parshall_kernel::hook_time::HookTimes);

#[pymethods]
impl HookTimes {
    #[new]
    fn start() -> PyResult<Self> {
        parshall_kernel::hook_time::HookTimes::start()
            .map(Self)
            .map_err(|error| {
                to_python(format!(
                    "the kernel does not switch its run-time statistics on: {error}; run as root, or without --hooks"
                ))
            })
    }

    /// `(id, name, runs, total ns)` of each loaded program.
    fn read(&self) -> Vec<(u32, String, u64, u64)> {
        self.0
            .read()
            .into_iter()
            .map(|hook| (hook.id, hook.name, hook.runs, hook.run_ns))
            .collect()
    }
}
