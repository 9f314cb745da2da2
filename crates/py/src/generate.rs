//! `_native.Generator`: a run of the generator.

use std::sync::Arc;

use parshall_kernel::generate::{self, takes_xdp_frames};
use pyo3::prelude::*;

use crate::errors::to_python;
use crate::session::{Session, raise, request};

/// See `parshall.generate.Generator`.
#[pyclass(module = "parshall._native", extends = Session, frozen)]
pub struct Generator;

#[pymethods]
impl Generator {
    #[new]
    fn new(py: Python<'_>, json: &str) -> PyResult<PyClassInitializer<Self>> {
        let request = request(json)?;
        let generator = py
            .detach(|| generate::Generator::start(&request))
            .map_err(raise)?;
        Ok(Session::of(&Arc::new(generator)).add_subclass(Self))
    }
}

/// What a request asks for, as JSON, without sending anything.
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

/// The frames that a request promises, from the first on, one for each of `sent_ns`, the send times
/// that stand in their stamps if they have one.
#[pyfunction]
pub fn planned_frames(json: &str, sent_ns: Vec<u64>) -> PyResult<Vec<(u64, Vec<u8>)>> {
    let request: generate::Request = request(json)?;
    request.frames(&sent_ns).map_err(raise)
}
