//! What a request to the generator comes to, without sending.

use parshall_kernel::generate::{self, takes_xdp_frames};
use pyo3::prelude::*;

use super::session::{raise, request};
use crate::errors::to_python;

/// The summary of a request, as JSON, without sending anything.
#[pyfunction]
pub fn describe_workload(json: &str) -> PyResult<String> {
    let request: generate::Request = request(json)?;
    let description = request.describe().map_err(raise)?;
    serde_json::to_string(&description).map_err(to_python)
}

/// Whether frames redirected to the interface, in the caller's namespace, would leave; None: unknown.
#[pyfunction]
pub fn interface_takes_xdp_frames(interface: &str) -> PyResult<Option<bool>> {
    takes_xdp_frames(interface).map_err(raise)
}

/// The first frames of a request, one for each of `sent_ns`, the send times in their stamps, if they have any.
#[pyfunction]
pub fn planned_frames(json: &str, sent_ns: Vec<u64>) -> PyResult<Vec<(u64, Vec<u8>)>> {
    let request: generate::Request = request(json)?;
    request.frames(&sent_ns).map_err(raise)
}
