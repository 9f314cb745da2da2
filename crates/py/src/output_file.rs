//! `_native.OutputFile`: an output file that Python writes.

use std::fs::File;
use std::os::fd::IntoRawFd;
use std::path::PathBuf;

use parshall_core::output_file::{self, Place};
use pyo3::prelude::*;

use crate::errors::error_to_python;
use crate::signals::Interrupts;

/// Opens an output file; a signal interrupts that. Python's lock must not be held.
pub fn create(path: &std::path::Path) -> PyResult<(File, Place)> {
    let mut interrupts = Interrupts::new(None);
    output_file::create(path, &mut || interrupts.is_stopping()).map_err(|error| {
        let is_usage = error.is_about_the_name();
        interrupts.or_raise(error_to_python(error, is_usage))
    })
}

/// Puts an output file into its place.
pub fn take(mut place: Place) -> PyResult<()> {
    place.take().map_err(|error| error_to_python(error, false))
}

/// See `parshall.host.whole_file`.
#[pyclass(module = "parshall._native")]
pub struct OutputFile {
    file: Option<File>,
    place: Option<Place>,
}

#[pymethods]
impl OutputFile {
    #[new]
    #[pyo3(signature = (path, below=None))]
    fn open(py: Python<'_>, path: PathBuf, below: Option<PathBuf>) -> PyResult<Self> {
        let (file, place) = match below {
            None => py.detach(|| create(&path))?,
            Some(directory) => output_file::create_below(&directory, &path).map_err(|error| {
                let is_usage = error.is_about_the_name();
                error_to_python(error, is_usage)
            })?,
        };
        Ok(Self {
            file: Some(file),
            place: Some(place),
        })
    }

    /// Returns its descriptor, once; the caller closes it.
    fn detach(&mut self) -> Option<i32> {
        self.file.take().map(IntoRawFd::into_raw_fd)
    }

    /// Puts the file into its place.
    fn commit(&mut self) -> PyResult<()> {
        self.place.take().map_or(Ok(()), take)
    }

    /// Removes the file unless it is in its place; an old file stays.
    fn discard(&mut self) {
        self.place = None;
    }
}
