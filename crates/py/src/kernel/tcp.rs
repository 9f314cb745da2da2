//! `_native.TcpLog`: a TCP state log while it is written.

use std::sync::Arc;

use parshall_kernel::tcp::session;
use pyo3::prelude::*;

use super::session::{Session, raise, request, start};

/// See `parshall.instruments.tcp.TcpLog`.
#[pyclass(module = "parshall._native", extends = Session, frozen)]
pub struct TcpLog(Arc<session::TcpLog>);

#[pymethods]
impl TcpLog {
    #[new]
    #[pyo3(signature = (json, is_stopping=None))]
    fn new(
        py: Python<'_>,
        json: &str,
        is_stopping: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let request = request(json)?;
        let log = start(py, is_stopping, |startup| {
            session::TcpLog::start(request, startup).map(Arc::new)
        })?;
        Ok(Session::of(&log).add_subclass(Self(log)))
    }

    fn switch(&self, on: bool) -> PyResult<()> {
        self.0.switch(on).map_err(raise)
    }
}
