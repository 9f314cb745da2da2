//! What a request to the generator would send.

use parshall_kernel::generate::{self, takes_xdp_frames};
use pyo3::prelude::*;

use super::session::{raise, request};
use crate::errors::to_python;

/// The summary of a request, as JSON. Nothing is sent.
#[pyfunction]
pub fn describe_workload(json: &str) -> PyResult<String> {
    let request: generate::Request = request(json)?;
    let description = request.describe().map_err(raise)?;
    serde_json::to_string(&description).map_err(to_python)
}

/// Whether an interface of the caller's namespace transmits frames that XDP redirects to it; None: unknown.
#[pyfunction]
pub fn interface_takes_xdp_frames(interface: &str) -> PyResult<Option<bool>> {
    takes_xdp_frames(interface).map_err(raise)
}

/// The first frames of a request, one for each send time in `sent_ns`: when a frame is due, nanoseconds after the start,
/// and its bytes, with the send time in its stamp if it has one.
#[pyfunction]
pub fn planned_frames(json: &str, sent_ns: Vec<u64>) -> PyResult<Vec<(u64, Vec<u8>)>> {
    let request: generate::Request = request(json)?;
    request.frames(&sent_ns).map_err(raise)
}
