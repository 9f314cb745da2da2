//! `_native.Capture`: packets being captured, and what belongs to the rings.

use std::ffi::OsString;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use arrow::array::{
    ArrayRef, BinaryArray, DictionaryArray, RecordBatch, RecordBatchIterator, StringArray,
    TimestampNanosecondArray, UInt8Array, UInt32Array,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit, UInt8Type};
use arrow::error::ArrowError;

use parshall_core::trace::{Compression, Format, Rotation, Section, WriterOptions};
use parshall_kernel::capture::CaptureError;
use parshall_kernel::capture::backend::Kind;
use parshall_kernel::capture::batch::PacketBatch;
use parshall_kernel::capture::output::Output;
use parshall_kernel::capture::request::{Directions, HookChoice, RingRequest, Subscription};
use parshall_kernel::capture::session::{self, Beginning, CaptureRequest, Source};
use parshall_kernel::capture::sink::Target;
use parshall_kernel::capture::yardstick::{SocketCapture, SocketCaptureRequest};
use parshall_kernel::capture::{client, keeper};
use pyo3::exceptions::{PyBrokenPipeError, PyStopIteration};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{error_to_python, to_python, usage_to_python};
use crate::log::ArrowStream;
use crate::signals::{Interrupts, listen};

/// Batches that may wait for Python: a few, so that memory is bounded and no reader starves.
const BATCHES_MAX: usize = 16;

fn raise(error: CaptureError) -> PyErr {
    if matches!(&error, CaptureError::Trace(error) if error.is_reader_gone()) {
        return PyBrokenPipeError::new_err(error.to_string());
    }
    let is_usage = error.is_usage();
    error_to_python(error, is_usage)
}

/// Starts a capture in a thread of its own. Until the filters are compiled, which may take long, and the files are
/// open, a signal gives it up, and so does `is_stopping` when it says yes: libpcap cannot be interrupted, but when it is
/// done nothing comes of it. From then on the capture is waited for.
fn start_capture<T: Send + 'static>(
    py: Python<'_>,
    start: impl FnOnce(&Beginning) -> Result<T, CaptureError> + Send + 'static,
    is_stopping: Option<&Bound<'_, PyAny>>,
) -> PyResult<T> {
    let interrupts = Interrupts::new(is_stopping);
    let beginning = Arc::new(Beginning::default());
    let own = Arc::clone(&beginning);
    let (send, receive) = channel();
    thread::Builder::new()
        .name("parshall-start".into())
        .spawn(move || {
            // Nobody listens any more after an interrupt.
            let _ = send.send(start(&own));
        })
        .map_err(to_python)?;
    let (started, late) = py.detach(move || {
        // It began while it was asked to end: then it ends as a capture does.
        let mut late = None;
        let started = listen(&receive, |py| match beginning.has_begun() {
            true => Ok(()),
            false => match interrupts.check(py) {
                Err(interrupt) if beginning.give_up() => Err(interrupt),
                Err(interrupt) => {
                    late = Some(interrupt);
                    Ok(())
                }
                Ok(()) => Ok(()),
            },
        });
        (started, late)
    });
    let started = started?;
    match late {
        Some(interrupt) => {
            py.detach(|| drop(started));
            Err(interrupt)
        }
        None => started.map_err(raise),
    }
}

/// One word of a table, or the complaint that names the option and what it may be.
fn choice<T: Copy>(option: &str, value: &str, table: &[(&str, T)]) -> PyResult<T> {
    let found = table.iter().find(|(name, _)| *name == value);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let names: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
        usage_to_python(format!("--{option} {value}: expected {}", names.join(", ")))
    })
}

/// See `parshall.capture.Ring`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct RingOptions {
    name: Option<String>,
    interfaces: Vec<String>,
    hook: String,
    direction: String,
    ring_bytes: u64,
    slow_reader: bool,
    promiscuous: bool,
    group: Option<String>,
    discard: bool,
}

impl RingOptions {
    fn request(self) -> PyResult<RingRequest> {
        let hooks = [
            ("auto", HookChoice::Auto),
            ("xdp", HookChoice::Xdp),
            ("tcx", HookChoice::Tcx),
        ];
        let directions = [
            ("in", Directions::In),
            ("out", Directions::Out),
            ("both", Directions::Both),
        ];
        Ok(RingRequest {
            name: self.name,
            interfaces: self.interfaces,
            hook: choice("hook", &self.hook, &hooks)?,
            directions: choice("direction", &self.direction, &directions)?,
            ring_bytes: self.ring_bytes,
            slow_reader: self.slow_reader,
            promiscuous: self.promiscuous,
            group: self.group,
            discard: self.discard,
        })
    }
}

/// See `parshall.capture.Output`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct OutputOptions {
    filter: String,
    snaplen: u32,
    /// `None`: to Python, as batches.
    path: Option<PathBuf>,
    format: Option<String>,
    compression: Option<String>,
    rotate_bytes: Option<u64>,
    rotate_ns: Option<u64>,
    rotate_files: Option<u32>,
}

impl OutputOptions {
    fn writer_options(&self, path: &std::path::Path) -> PyResult<WriterOptions> {
        let formats = [("pcapng", Format::Pcapng), ("pcap", Format::Pcap)];
        let compressions = [
            ("none", Compression::None),
            ("gzip", Compression::Gzip),
            ("zstd", Compression::Zstd),
        ];
        Ok(WriterOptions {
            format: match &self.format {
                Some(name) => choice("format", name, &formats)?,
                None => Format::of_name(path),
            },
            compression: match &self.compression {
                Some(name) => choice("compress", name, &compressions)?,
                None => Compression::of_name(path),
            },
            snaplen_bytes: self.snaplen,
            rotation: Rotation {
                size_bytes: self.rotate_bytes,
                time_ns: self.rotate_ns,
                files: self.rotate_files,
            },
        })
    }
}

/// What captures: the ring, or a socket.
enum Running {
    Ring(session::Capture),
    SocketCapture(SocketCapture),
}

/// Capture methods for comparison, by the names of the command.
const BACKENDS: [(&str, Option<Kind>); 4] = [
    ("ring", None),
    ("af-packet", Some(Kind::Receive)),
    ("tpacket-v3", Some(Kind::MappedBlocks)),
    ("af-xdp", Some(Kind::AfXdp)),
];

/// See `parshall.capture.Capture`, which documents the arguments.
#[pyclass(module = "parshall._native", frozen)]
pub struct Capture {
    // Before `running`, whose end is waited for: a reader that waits for somebody to take a batch would wait for ever.
    batches: Mutex<Batches>,
    running: Running,
}

/// Packets on their way to Python.
enum Batches {
    /// All go to files.
    None,
    /// From the reader.
    Waiting(Receiver<PacketBatch>),
    /// There were some, until the capture was stopped.
    Over,
}

#[pymethods]
impl Capture {
    #[new]
    #[pyo3(signature = (outputs, *, ring, join, backend, keeper, count, application, os, environment, is_stopping=None))]
    #[allow(clippy::too_many_arguments)] // one keyword argument an option: Python names them
    fn start(
        py: Python<'_>,
        outputs: Vec<OutputOptions>,
        ring: Option<RingOptions>,
        join: Option<String>,
        backend: &str,
        keeper: Vec<OsString>,
        count: Option<u64>,
        application: String,
        os: String,
        environment: String,
        is_stopping: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut batches = Batches::None;
        let mut targets = Vec::new();
        for output in outputs {
            let target = match &output.path {
                Some(path) => Target::File {
                    path: path.clone(),
                    options: output.writer_options(path)?,
                },
                None => {
                    let (sender, receiver) = sync_channel(BATCHES_MAX);
                    batches = Batches::Waiting(receiver);
                    Target::Batches(sender)
                }
            };
            targets.push(Output {
                subscription: Subscription {
                    filter: output.filter,
                    snaplen: output.snaplen,
                },
                target,
            });
        }
        let section = Section {
            hardware: None,
            os: Some(os),
            application: Some(application),
            comments: vec![environment],
        };
        let kind = choice("backend", backend, &BACKENDS)?;
        let running = match (kind, ring, join) {
            (Some(kind), Some(ring), None) => {
                let request = SocketCaptureRequest {
                    kind,
                    interface: ring.interfaces.concat(),
                    buffer_bytes: ring.ring_bytes as usize,
                    promiscuous: ring.promiscuous,
                    outputs: targets,
                    count,
                    section,
                };
                let start = |beginning: &Beginning| SocketCapture::start(request, beginning);
                Running::SocketCapture(start_capture(py, start, is_stopping)?)
            }
            (None, ring, join) => {
                let source = match (ring, join) {
                    (_, Some(name)) => Source::Join(name),
                    (Some(ring), None) => Source::Found {
                        ring: ring.request()?,
                        keeper,
                    },
                    (None, None) => {
                        return Err(usage_to_python("name an interface, or a ring to join"));
                    }
                };
                let request = CaptureRequest {
                    source,
                    outputs: targets,
                    count,
                    section,
                };
                let start = |beginning: &Beginning| session::Capture::start(request, beginning);
                Running::Ring(start_capture(py, start, is_stopping)?)
            }
            (Some(_), _, _) => {
                return Err(usage_to_python(format!(
                    "--backend {backend}: it has no rings to join; name an interface with -i"
                )));
            }
        };
        Ok(Self {
            batches: Mutex::new(batches),
            running,
        })
    }

    #[getter]
    fn ring(&self) -> Option<String> {
        match &self.running {
            Running::Ring(capture) => Some(capture.ring.clone()),
            Running::SocketCapture(_) => None,
        }
    }

    #[getter]
    fn interfaces(&self) -> Vec<String> {
        match &self.running {
            Running::Ring(capture) => capture.interfaces.clone(),
            Running::SocketCapture(capture) => vec![capture.interface.clone()],
        }
    }

    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let status = match &self.running {
            Running::Ring(capture) => capture.status(),
            Running::SocketCapture(capture) => capture.status(),
        };
        let dict = PyDict::new(py);
        dict.set_item("packets", status.packets)?;
        dict.set_item("wire_bytes", status.wire_bytes)?;
        dict.set_item("lost", status.lost)?;
        dict.set_item("notices", status.notices)?;
        dict.set_item("has_ended", status.has_ended)?;
        Ok(dict)
    }

    /// Waits for the next packets: a stream of one batch, or `None` when none came in time. Raises
    /// `StopIteration` when there will be no more.
    fn next_batch(&self, py: Python<'_>, timeout_s: f64) -> PyResult<Option<ArrowStream>> {
        let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::MAX);
        let received = py.detach(|| match &*self.batches() {
            Batches::None => None,
            Batches::Waiting(receiver) => Some(receiver.recv_timeout(timeout)),
            Batches::Over => Some(Err(RecvTimeoutError::Disconnected)),
        });
        let received = received
            .ok_or_else(|| usage_to_python("packets go to files alone; ask for some as batches"))?;
        match received {
            Ok(batch) => {
                let batch = columns(batch, &self.interfaces()).map_err(to_python)?;
                let schema = batch.schema();
                let reader = RecordBatchIterator::new([Ok(batch)], schema);
                Ok(Some(ArrowStream::new(reader)))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(PyStopIteration::new_err(())),
        }
    }

    fn request_stop(&self) {
        match &self.running {
            Running::Ring(capture) => capture.request_stop(),
            Running::SocketCapture(capture) => capture.request_stop(),
        }
    }

    /// Returns `(ledger as JSON, what stopped it or None)`.
    fn stop(&self, py: Python<'_>) -> PyResult<(String, Option<String>)> {
        let summary = py
            .detach(|| {
                // A reader that waits for us to take a batch must not wait for ever.
                let mut batches = self.batches();
                if matches!(*batches, Batches::Waiting(_)) {
                    *batches = Batches::Over;
                }
                drop(batches);
                match &self.running {
                    Running::Ring(capture) => capture.stop(),
                    Running::SocketCapture(capture) => capture.stop(),
                }
            })
            .map_err(raise)?;
        let ledger = serde_json::to_string(&summary.ledger).map_err(to_python)?;
        Ok((ledger, summary.failure.map(|failure| failure.to_string())))
    }
}

impl Capture {
    fn batches(&self) -> MutexGuard<'_, Batches> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Keeps a ring for whoever is at the other end of the standard input, until its last reader has gone.
#[pyfunction]
pub fn keep_capture_ring(py: Python<'_>) {
    // SAFETY: this process was started for nothing but this, and nobody else here uses descriptor 0.
    let founder = unsafe { OwnedFd::from_raw_fd(0) };
    py.detach(|| keeper::keep(founder));
}

/// The rings of this host as JSON objects: `{"name": ..., ...}` or `{"name": ..., "unreadable": why}`.
#[pyfunction]
pub fn list_capture_rings(py: Python<'_>) -> PyResult<Vec<String>> {
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

/// Removes what keepers that were killed left; returns the names of their rings.
#[pyfunction]
pub fn clean_capture_rings(py: Python<'_>) -> Vec<String> {
    py.detach(keeper::directory::clean)
}
