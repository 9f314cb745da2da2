//! `_native.Capture`: packets being captured, and the rings of this host.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    ArrayRef, BinaryArray, DictionaryArray, RecordBatch, RecordBatchIterator, StringArray,
    TimestampNanosecondArray, UInt8Array, UInt32Array,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit, UInt8Type};
use arrow::error::ArrowError;

use parshall_kernel::capture::batch::PacketBatch;
use parshall_kernel::capture::session::{self, NextBatch};
use parshall_kernel::capture::{client, keeper};
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;

use super::session::{Session, raise, request, start};
use crate::errors::{error_to_python, to_python};
use crate::log::ArrowStream;

/// See `parshall.instruments.capture.Capture`.
#[pyclass(module = "parshall._native", extends = Session, frozen)]
pub struct Capture(Arc<session::Capture>);

#[pymethods]
impl Capture {
    #[new]
    #[pyo3(signature = (json, is_stopping=None))]
    fn new(
        py: Python<'_>,
        json: &str,
        is_stopping: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let request = request(json)?;
        let capture = start(py, is_stopping, |startup| {
            session::Capture::start(request, startup).map(Arc::new)
        })?;
        Ok(Session::of(&capture).add_subclass(Self(capture)))
    }

    #[getter]
    fn ring(&self) -> Option<&str> {
        self.0.ring()
    }

    #[getter]
    fn interfaces(&self) -> Vec<String> {
        self.0.interfaces().to_vec()
    }

    /// Waits for the next packets: a stream of one batch, or `None` when none came in time. Raises `StopIteration` at the
    /// end of the capture.
    fn next_batch(&self, py: Python<'_>, timeout_s: f64) -> PyResult<Option<ArrowStream>> {
        let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::MAX);
        match py.detach(|| self.0.next_batch(timeout)).map_err(raise)? {
            NextBatch::Packets(batch) => {
                let batch = columns(batch, self.0.interfaces()).map_err(to_python)?;
                let schema = batch.schema();
                let reader = RecordBatchIterator::new([Ok(batch)], schema);
                Ok(Some(ArrowStream::new(reader)))
            }
            NextBatch::NotYet => Ok(None),
            NextBatch::End => Err(PyStopIteration::new_err(())),
        }
    }
}

/// Packets as an Arrow batch; their bytes are not copied.
fn columns(batch: PacketBatch, interfaces: &[String]) -> Result<RecordBatch, ArrowError> {
    let utc = "UTC";
    let named = |keys: Vec<u8>, names: Vec<&str>| -> Result<ArrayRef, ArrowError> {
        let names = Arc::new(StringArray::from(names));
        let keys = UInt8Array::from(keys);
        Ok(Arc::new(DictionaryArray::<UInt8Type>::try_new(
            keys, names,
        )?))
    };
    let mut offsets = vec![0];
    offsets.extend(batch.ends);
    let bytes = BinaryArray::try_new(
        OffsetBuffer::new(ScalarBuffer::from(offsets)),
        batch.bytes.into(),
        None,
    )?;
    let name = DataType::Dictionary(Box::new(DataType::UInt8), Box::new(DataType::Utf8));
    let time = DataType::Timestamp(TimeUnit::Nanosecond, Some(utc.into()));
    let schema = Schema::new(vec![
        Field::new("time", time, false),
        Field::new("interface", name.clone(), false),
        Field::new("direction", name, false),
        Field::new("wire_bytes", DataType::UInt32, false),
        Field::new("packet", DataType::Binary, false),
    ]);
    RecordBatch::try_new(
        Arc::new(schema),
        vec![
            Arc::new(TimestampNanosecondArray::from(batch.time_ns).with_timezone(utc)),
            named(
                batch.interface,
                interfaces.iter().map(String::as_str).collect(),
            )?,
            named(batch.direction, vec!["in", "out"])?,
            Arc::new(UInt32Array::from(batch.wire_bytes)),
            Arc::new(bytes),
        ],
    )
}

/// Keeps a ring for the process at the other end of the standard input, until its last reader has left.
#[pyfunction]
pub fn keep_capture_ring(py: Python<'_>) {
    // SAFETY: this process only keeps a ring, and nothing else in it uses descriptor 0.
    let creator = unsafe { OwnedFd::from_raw_fd(0) };
    py.detach(|| keeper::keep(creator));
}

/// The rings of this host as JSON objects: `{"name": ..., ...}` or `{"name": ..., "unreadable": reason}`.
#[pyfunction]
pub fn list_capture_rings(py: Python<'_>) -> PyResult<Vec<String>> {
    keeper::directory::check().map_err(|error| error_to_python(error, true))?;
    py.detach(|| {
        keeper::directory::names()
            .into_iter()
            .map(|name| match client::list(&name) {
                Ok(ring) => serde_json::to_string(&ring),
                Err(error) => serde_json::to_string(
                    &serde_json::json!({"name": name, "unreadable": error.to_string()}),
                ),
            })
            .collect::<Result<_, _>>()
            .map_err(to_python)
    })
}

/// Removes leftovers of killed keepers; returns the names of their rings.
#[pyfunction]
pub fn clean_capture_rings(py: Python<'_>) -> Vec<String> {
    py.detach(keeper::directory::clean)
}
