//! The destination of a capture, opened before anything is written or replaced.

use super::error::TraceError;
use super::options::WriterOptions;
use super::output::Output;
use crate::output_file::Place;
use crate::output_file::series::FileSeries;
use std::path::Path;

/// A file, the first of a series, a FIFO, a device or standard output, open for a [`super::Writer`]. An
/// existing file stays until [`super::Writer::commit`].
pub struct Destination {
    pub(super) series: Option<FileSeries>,
    pub(super) output: Output,
    pub(super) place: Option<Place>,
}

impl Destination {
    /// Opens it. `-` is standard output. It waits until a FIFO has a reader, or `is_stopping` returns true.
    ///
    /// # Errors
    /// [`TraceError::Create`] when the file cannot be created, [`TraceError::Option`] when options contradict
    /// each other.
    pub fn open(
        path: &Path,
        options: &WriterOptions,
        is_stopping: &mut dyn FnMut() -> bool,
    ) -> Result<Self, TraceError> {
        let rotation = options.rotation;
        let is_stdout = path.as_os_str() == "-";
        if let Some((option, found)) = rotation.limit_without_rotation() {
            return Err(TraceError::Option {
                option,
                found,
                expected: "a size or a time at which the next file begins is needed, too".into(),
            });
        }
        if is_stdout && rotation.is_on() {
            return Err(TraceError::Option {
                option: "rotation",
                found: "with standard output".into(),
                expected: "a file name is needed to make more than one".into(),
            });
        }
        if is_stdout {
            return Ok(Self {
                series: None,
                output: Output::stdout()?,
                place: None,
            });
        }
        let mut series = match rotation.is_on() {
            true => Some(FileSeries::new(path, rotation)?),
            false => None,
        };
        let (output, place) = match &mut series {
            // Do not wait for a FIFO that now has this name.
            Some(series) => Output::file(&series.next_path(), &mut || true)?,
            None => Output::file(path, is_stopping)?,
        };
        Ok(Self {
            series,
            output,
            place: Some(place),
        })
    }
}
