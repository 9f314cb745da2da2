//! `_native.convert`: a log into another format, with Ctrl-C heard.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parshall_core::convert::{self, ConvertError, ConvertOptions, ConvertReport, Format};
use parshall_core::log::LogReader;
use pyo3::exceptions::PyBrokenPipeError;
use pyo3::prelude::*;

use crate::errors::{to_python, usage_to_python};

/// How long a Ctrl-C may go unheard.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// Hands on what it is given and asks Python for signals now and then.
struct Interruptible<W> {
    inner: W,
    asked: Instant,
    interrupt: Option<PyErr>,
}

impl<W> Interruptible<W> {
    fn new(inner: W) -> Self {
        Self {
            inner,
            asked: Instant::now(),
            interrupt: None,
        }
    }
}

impl<W: Write> Write for Interruptible<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.asked.elapsed() >= SIGNAL_INTERVAL {
            self.asked = Instant::now();
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
                | ConvertError::Option { .. }
                | ConvertError::TooManyLines { .. }),
            ),
        ) => Err(usage_to_python(error)),
        (None, result) => result.map_err(to_python),
    }
}

/// Writes to a file that takes the place of `output` when it is whole: a conversion that fails, or is killed,
/// leaves what was there. What is no file (a pipe, a device) is written to as it is.
fn into_file(
    path: &PathBuf,
    format: Format,
    output: &Path,
    options: ConvertOptions,
) -> PyResult<ConvertReport> {
    let fail = |error: io::Error| {
        to_python(format!(
            "{}: cannot be written: {error}; name another output",
            output.display()
        ))
    };
    // Where a link leads is replaced, and not the link.
    let target = fs::canonicalize(output).unwrap_or_else(|_| output.to_path_buf());
    let before = fs::metadata(&target).ok();
    let name = match target.file_name() {
        Some(name) if before.as_ref().is_none_or(fs::Metadata::is_file) => name,
        _ => {
            let file = File::create(&target).map_err(fail)?;
            return into(path, format, file, output.display(), options);
        }
    };
    let mut part_name = name.to_os_string();
    part_name.push(format!(".{}.part", std::process::id()));
    let part = target.with_file_name(part_name);
    let file = File::create(&part).map_err(fail)?;
    let result = into(path, format, file, output.display(), options).and_then(|report| {
        if let Some(before) = before {
            // Best effort: a file system may know no permissions.
            let _ = fs::set_permissions(&part, before.permissions());
        }
        fs::rename(&part, &target).map_err(fail)?;
        Ok(report)
    });
    if result.is_err() {
        let _ = fs::remove_file(&part);
    }
    result
}

/// See `parshall.log.convert`. Returns `(rows, warnings)`; `output` None is the standard output.
#[pyfunction]
#[pyo3(signature = (path, format, output=None, every_ns=None))]
pub fn convert_log(
    py: Python<'_>,
    path: PathBuf,
    format: &str,
    output: Option<PathBuf>,
    every_ns: Option<u64>,
) -> PyResult<(u64, Vec<String>)> {
    let format: Format = format.parse().map_err(usage_to_python)?;
    let options = ConvertOptions { every_ns };
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

/// `(name, suffix, is text)` of every format.
#[pyfunction]
pub fn log_formats() -> Vec<(&'static str, &'static str, bool)> {
    Format::ALL
        .into_iter()
        .map(|format| (format.name(), format.suffix(), format.is_text()))
        .collect()
}
