//! `_native.convert`: converts a log into another format; Ctrl-C interrupts it.

use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parshall_core::convert::{self, ConvertError, ConvertOptions, ConvertReport, Format};
use parshall_core::tcp_log::LogReader;
use pyo3::exceptions::PyBrokenPipeError;
use pyo3::prelude::*;

use crate::errors::{error_to_python, to_python, usage_to_python};
use crate::output_file::{create, take};

/// Interval between checks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// Passes writes on to `inner`, and checks for Python's signals every [`SIGNAL_INTERVAL`].
struct Interruptible<W> {
    inner: W,
    checked_at: Instant,
    interrupt: Option<PyErr>,
}

impl<W> Interruptible<W> {
    fn new(inner: W) -> Self {
        Self {
            inner,
            checked_at: Instant::now(),
            interrupt: None,
        }
    }
}

impl<W: Write> Write for Interruptible<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.checked_at.elapsed() >= SIGNAL_INTERVAL {
            self.checked_at = Instant::now();
            if let Err(interrupt) = Python::attach(|py| py.check_signals()) {
                self.interrupt = Some(interrupt);
                return Err(io::Error::other("stopped by a signal"));
            }
        }
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn into<W: Write + Send>(
    path: &PathBuf,
    format: Format,
    out: W,
    name: impl Display,
    options: ConvertOptions,
) -> PyResult<ConvertReport> {
    let mut out = Interruptible::new(out);
    let result = LogReader::open(path)
        .map_err(ConvertError::from)
        .and_then(|reader| convert::convert(reader, format, &mut out, options));
    match (out.interrupt, result) {
        (Some(interrupt), _) => Err(interrupt),
        (None, Err(ConvertError::Write(error))) if error.kind() == io::ErrorKind::BrokenPipe => {
            Err(PyBrokenPipeError::new_err(error.to_string()))
        }
        (None, Err(error @ ConvertError::Write(_))) => Err(to_python(format!("{name}: {error}"))),
        (
            None,
            Err(
                error @ (ConvertError::UnknownFormat { .. }
                | ConvertError::UnknownFlow { .. }
                | ConvertError::Option { .. }
                | ConvertError::TooManyLines { .. }),
            ),
        ) => Err(usage_to_python(error)),
        (None, result) => result.map_err(|error| error_to_python(error, false)),
    }
}

/// Writes to a file that replaces `output` when it is complete: if the conversion fails or is
/// killed, the old file stays. Writes directly to a pipe or a device.
fn into_file(
    path: &PathBuf,
    format: Format,
    output: &Path,
    options: ConvertOptions,
) -> PyResult<ConvertReport> {
    let (file, replacement) = create(output)?;
    let report = into(path, format, file, output.display(), options)?;
    take(replacement)?;
    Ok(report)
}

/// See `parshall.instruments.tcp_log.convert`. Returns `(rows, warnings)`; `output` None is the standard output.
#[pyfunction]
#[pyo3(signature = (path, format, output=None, every_ns=None, flows=Vec::new()))]
pub fn convert_log(
    py: Python<'_>,
    path: PathBuf,
    format: &str,
    output: Option<PathBuf>,
    every_ns: Option<u64>,
    flows: Vec<u32>,
) -> PyResult<(u64, Vec<String>)> {
    let format: Format = format.parse().map_err(usage_to_python)?;
    let options = ConvertOptions { flows, every_ns };
    let report = py.detach(|| match &output {
        None => into(&path, format, io::stdout(), "standard output", options),
        Some(output) => {
            let is_itself = fs::canonicalize(output)
                .is_ok_and(|output| fs::canonicalize(&path).is_ok_and(|path| path == output));
            if is_itself {
                return Err(usage_to_python(format!(
                    "{}: is the log itself; name another output",
                    output.display()
                )));
            }
            into_file(&path, format, output, options)
        }
    })?;
    Ok((report.rows, report.warnings))
}

/// Name, suffix, and whether it is text, of every format.
#[pyfunction]
pub fn log_formats() -> Vec<(&'static str, &'static str, bool)> {
    Format::ALL
        .into_iter()
        .map(|format| (format.name(), format.suffix(), format.is_text()))
        .collect()
}
