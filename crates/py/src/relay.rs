//! `_native.Relay`: the relay that plays a link.

use std::sync::Arc;

use parshall_kernel::relay;
use pyo3::prelude::*;

use crate::session::{Session, raise, request};

/// See `parshall.testbed.relays.Relay`.
#[pyclass(module = "parshall._native", extends = Session, frozen)]
pub struct Relay;

#[pymethods]
impl Relay {
    #[new]
    fn new(py: Python<'_>, json: &str) -> PyResult<PyClassInitializer<Self>> {
        let request = request(json)?;
        let relay = py.detach(|| relay::Relay::start(request)).map_err(raise)?;
        Ok(Session::of(&Arc::new(relay)).add_subclass(Self))
    }
}
