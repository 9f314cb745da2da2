//! `_native.LogReader`: a log as Arrow streams that any library takes, without a dependency on one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow::array::RecordBatchIterator;
use arrow::error::ArrowError;
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow::record_batch::RecordBatchReader;
use parshall_core::path_log;
use parshall_core::tcp_log::{
    self, FlowStates, LogError, flow_batch, retransmission_batch, retransmissions,
};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors::{error_to_python, to_python};

/// Rows between two calls of `progress`: about a tenth of a second.
const ROWS_BETWEEN_PROGRESS: u64 = 1 << 20;

/// See `parshall.instruments.tcp_log.Log`, which documents what is in it.
#[pyclass(module = "parshall._native", frozen)]
pub struct LogReader {
    path: PathBuf,
    flows: arrow::record_batch::RecordBatch,
    #[pyo3(get)]
    metadata: BTreeMap<String, String>,
    #[pyo3(get)]
    ledger: Option<String>,
    #[pyo3(get)]
    listeners: String,
    /// Changes of the thinning, as JSON.
    #[pyo3(get)]
    thinning: String,
    #[pyo3(get)]
    truncation: Option<String>,
    #[pyo3(get)]
    complete: bool,
    #[pyo3(get)]
    gaps: String,
}

#[pymethods]
impl LogReader {
    #[new]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let (reader, flows) = py
            .detach(|| -> Result<_, LogError> {
                let mut reader = tcp_log::LogReader::open(&path)?;
                reader.survey()?;
                let flows: Vec<_> = reader.take_flows().into_values().collect();
                Ok((reader, flows))
            })
            .map_err(|error| error_to_python(error, false))?;
        Ok(Self {
            flows: flow_batch(&flows).map_err(to_python)?,
            metadata: reader
                .schema()
                .metadata()
                .iter()
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            // Not the file's own text: columns that an older log lacks are added as 0.
            ledger: (reader
                .ledger()
                .as_ref()
                .map(serde_json::to_string)
                .transpose())
            .map_err(to_python)?,
            listeners: serde_json::to_string(&reader.listeners().values().collect::<Vec<_>>())
                .map_err(to_python)?,
            thinning: serde_json::to_string(&reader.thinning().values().collect::<Vec<_>>())
                .map_err(to_python)?,
            truncation: reader.truncation().map(ToString::to_string),
            complete: reader.is_complete(),
            gaps: serde_json::to_string(reader.gaps()).map_err(to_python)?,
            path,
        })
    }

    /// The rows, or some of their columns, read from the file on demand.
    #[pyo3(signature = (columns=None))]
    fn records(&self, py: Python<'_>, columns: Option<Vec<String>>) -> PyResult<ArrowStream> {
        let reader = py
            .detach(|| {
                let reader = tcp_log::LogReader::open(&self.path)?;
                match columns {
                    Some(columns) => reader.select(&columns),
                    None => Ok(reader),
                }
            })
            .map_err(|error| error_to_python(error, false))?;
        let schema = reader.schema();
        let batches =
            reader.map(|batch| batch.map_err(|error| ArrowError::ExternalError(error.into())));
        Ok(ArrowStream::new(RecordBatchIterator::new(batches, schema)))
    }

    /// The retransmissions: why each was sent, and whether it was spurious.
    fn retransmissions(&self, py: Python<'_>) -> PyResult<ArrowStream> {
        let rows = py
            .detach(|| retransmissions(tcp_log::LogReader::open(&self.path)?))
            .map_err(|error| error_to_python(error, false))?;
        let batch = retransmission_batch(&rows).map_err(to_python)?;
        let schema = batch.schema();
        Ok(ArrowStream::new(RecordBatchIterator::new(
            [Ok(batch)],
            schema,
        )))
    }

    /// What the rows say of each flow, and their number; `progress` is called with the number so far.
    fn states(&self, py: Python<'_>, progress: &Bound<'_, PyAny>) -> PyResult<(ArrowStream, u64)> {
        let mut states = FlowStates::default();
        let mut reader = py
            .detach(|| {
                let mut reader = tcp_log::LogReader::open(&self.path)?;
                reader.survey()?;
                states.note_flows(reader.take_flows().values());
                reader.select_states()
            })
            .map_err(|error| error_to_python(error, false))?;
        loop {
            let until = states.records() + ROWS_BETWEEN_PROGRESS;
            let has_ended = py
                .detach(|| {
                    while states.records() < until {
                        let Some(batch) = reader.next().transpose()? else {
                            return Ok(true);
                        };
                        states.add(&batch, 0);
                    }
                    Ok(false)
                })
                .map_err(|error: LogError| error_to_python(error, false))?;
            progress.call1((states.records(),))?;
            if has_ended {
                return Ok((states_stream(&states)?, states.records()));
            }
        }
    }

    /// The flow table.
    fn flows(&self) -> ArrowStream {
        let schema = self.flows.schema();
        ArrowStream::new(RecordBatchIterator::new([Ok(self.flows.clone())], schema))
    }
}

/// The value of `parshall.format` of an Arrow stream; `None` for a file of another kind.
#[pyfunction]
pub fn stream_format(py: Python<'_>, path: PathBuf) -> PyResult<Option<String>> {
    py.detach(|| path_log::stream_format(&path))
        .map_err(|error| error_to_python(error, false))
}

/// See `parshall.instruments.flow_states.Follower`.
#[pyclass(module = "parshall._native", frozen)]
pub struct LogFollower {
    followed: Mutex<(tcp_log::LogFollower, FlowStates)>,
    #[pyo3(get)]
    metadata: BTreeMap<String, String>,
}

#[pymethods]
impl LogFollower {
    #[new]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let follower = py
            .detach(|| tcp_log::LogFollower::open_states(&path))
            .map_err(|error| error_to_python(error, false))?;
        Ok(Self {
            metadata: follower.header().to_metadata().into_iter().collect(),
            followed: Mutex::new((follower, FlowStates::default())),
        })
    }

    /// Reads about `most` rows at most. Returns the time up to which the log is known, nanoseconds of its clock (0: no
    /// rows and no account yet), and whether more rows may be there.
    fn read(&self, py: Python<'_>, most: usize) -> PyResult<(i64, bool)> {
        py.detach(|| {
            let (follower, states) = &mut *self.followed();
            let mut rows = 0;
            while rows < most
                && let Some(batch) = follower.next_batch()?
            {
                rows += batch.num_rows();
                states.add(&batch, follower.flow_base());
            }
            let account_ns = follower.ledger().map_or(0, |ledger| ledger.until_time_ns);
            Ok((states.until_ns().max(account_ns), rows >= most))
        })
        .map_err(|error: LogError| error_to_python(error, false))
    }

    /// What the rows so far say of each flow, and their number.
    fn states(&self) -> PyResult<(ArrowStream, u64)> {
        let (_, states) = &*self.followed();
        Ok((states_stream(states)?, states.records()))
    }

    /// Forgets what the rows say of some flows.
    fn forget(&self, flows: Vec<u32>) {
        self.followed().1.forget(&flows);
    }

    /// The flows that changed since the last call.
    fn flows(&self) -> PyResult<ArrowStream> {
        let flows: Vec<_> = {
            let (follower, states) = &mut *self.followed();
            let flows: Vec<_> = follower.take_flows().into_values().collect();
            states.note_flows(&flows);
            flows
        };
        let batch = flow_batch(&flows).map_err(to_python)?;
        let schema = batch.schema();
        Ok(ArrowStream::new(RecordBatchIterator::new(
            [Ok(batch)],
            schema,
        )))
    }

    /// The listeners that changed since the last call, as JSON.
    fn listeners(&self) -> PyResult<String> {
        let listeners: Vec<_> = self.followed().0.take_listeners().into_values().collect();
        serde_json::to_string(&listeners).map_err(to_python)
    }

    /// The account so far, as JSON, and whether the log has its end.
    fn account(&self) -> PyResult<(Option<String>, bool)> {
        let (follower, _) = &*self.followed();
        let ledger = (follower.ledger().as_ref().map(serde_json::to_string)).transpose();
        Ok((ledger.map_err(to_python)?, follower.has_ended()))
    }
}

impl LogFollower {
    fn followed(&self) -> MutexGuard<'_, (tcp_log::LogFollower, FlowStates)> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn states_stream(states: &FlowStates) -> PyResult<ArrowStream> {
    let batch = states.table().map_err(to_python)?;
    let schema = batch.schema();
    Ok(ArrowStream::new(RecordBatchIterator::new(
        [Ok(batch)],
        schema,
    )))
}

/// The files of a TCP state log: one, or those of a log that rotated.
#[pyfunction]
pub fn log_files(py: Python<'_>, path: PathBuf) -> PyResult<Vec<PathBuf>> {
    py.detach(|| tcp_log::files_of_log(&path))
        .map_err(|error| error_to_python(error, false))
}

/// See `parshall.instruments.path.log.PathLog`, which documents what is in it.
#[pyclass(module = "parshall._native", frozen)]
pub struct PathLogReader {
    path: PathBuf,
}

#[pymethods]
impl PathLogReader {
    #[new]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let reader = Self { path };
        py.detach(|| reader.opened()).map_err(path_log_error)?;
        Ok(reader)
    }

    /// The rows, read from the file on demand; every length and number in them has been checked.
    fn records(&self, py: Python<'_>) -> PyResult<ArrowStream> {
        let reader = py
            .detach(|| {
                let reader = self.opened()?;
                reader.check_columns()?;
                Ok(reader)
            })
            .map_err(|error: LogError| path_log_error(error))?;
        let schema = reader.schema();
        let batches =
            reader.map(|batch| batch.map_err(|error| ArrowError::ExternalError(error.into())));
        Ok(ArrowStream::new(RecordBatchIterator::new(batches, schema)))
    }

    /// The last ledger as JSON, whether the log has its end, and the windows.
    #[allow(clippy::type_complexity, reason = "a tuple for Python")]
    fn account(&self, py: Python<'_>) -> PyResult<(Option<String>, bool, Vec<(i64, i64)>)> {
        let account = py
            .detach(|| self.opened()?.account())
            .map_err(path_log_error)?;
        let windows = account.windows.into_iter().map(Into::into).collect();
        Ok((account.ledger, account.is_final, windows))
    }
}

impl PathLogReader {
    fn opened(&self) -> Result<path_log::PathLogReader<std::fs::File>, LogError> {
        path_log::PathLogReader::open(&self.path)
    }
}

fn path_log_error(error: LogError) -> PyErr {
    let is_usage = matches!(error, LogError::NotAPathLog { .. });
    error_to_python(error, is_usage)
}

/// A stream for the Arrow PyCapsule interface, which can take it once.
#[pyclass(module = "parshall._native", frozen)]
pub struct ArrowStream {
    reader: Mutex<Option<Box<dyn RecordBatchReader + Send>>>,
}

impl ArrowStream {
    /// A stream of these batches.
    pub fn new(reader: impl RecordBatchReader + Send + 'static) -> Self {
        Self {
            reader: Mutex::new(Some(Box::new(reader))),
        }
    }
}

#[pymethods]
impl ArrowStream {
    /// Returns the stream. A requested schema is ignored, as the interface allows.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let reader = self
            .reader
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .ok_or_else(|| to_python("this stream has been read; ask for another one"))?;
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(reader), c"arrow_array_stream")
    }
}
