//! `_native.Generator`: a run of the generator.

use crate::errors::{error_to_python, to_python, usage_to_python};
use parshall_kernel::generate::{GenerateError, Request, Session, takes_xdp_frames};
use pyo3::prelude::*;

fn raise(error: GenerateError) -> PyErr {
    let is_usage = error.is_usage();
    error_to_python(error, is_usage)
}

/// See `parshall.generate.Generator`. The request and the answers are JSON.
#[pyclass(module = "parshall._native")]
pub struct Generator {
    session: Session,
}

#[pymethods]
impl Generator {
    #[new]
    fn start(py: Python<'_>, request: &str) -> PyResult<Self> {
        let request: Request = serde_json::from_str(request).map_err(usage_to_python)?;
        let session = py.detach(|| Session::start(&request)).map_err(raise)?;
        Ok(Self { session })
    }

    /// `(packets, bytes of frames, has ended)`.
    fn progress(&self) -> (u64, u64, bool) {
        let progress = self.session.progress();
        (progress.packets, progress.bytes, progress.has_ended)
    }

    /// No packet more.
    fn stop(&self) {
        self.session.stop();
    }

    /// The account, as JSON; waits for the end.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        let report = py.detach(|| self.session.finish()).map_err(raise)?;
        serde_json::to_string(&report).map_err(to_python)
    }
}

/// What a request asks for, as JSON, without sending anything.
#[pyfunction]
pub fn describe_workload(request: &str) -> PyResult<String> {
    let request: Request = serde_json::from_str(request).map_err(usage_to_python)?;
    let description = request.describe().map_err(raise)?;
    serde_json::to_string(&description).map_err(to_python)
}

/// Whether frames redirected to the interface, in the caller's namespace, would leave; None: unknown.
#[pyfunction]
pub fn interface_takes_xdp_frames(interface: &str) -> PyResult<Option<bool>> {
    takes_xdp_frames(interface).map_err(raise)
}

/// The frames that a request promises, from the first on, one for each of `sent_ns`, the send times
/// that stand in their stamps if they have one.
#[pyfunction]
pub fn planned_frames(request: &str, sent_ns: Vec<u64>) -> PyResult<Vec<(u64, Vec<u8>)>> {
    let request: Request = serde_json::from_str(request).map_err(usage_to_python)?;
    request.frames(&sent_ns).map_err(raise)
}
