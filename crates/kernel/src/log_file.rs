//! The file of a log: a stream, so a pipe will do.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use parshall_core::output_file::{self, OutputError, Place};

/// Opens the file of a log; `-` is standard output, which is in its place already.
///
/// # Errors
/// [`OutputError`]; no file is changed then.
pub(crate) fn create(
    path: &Path,
    is_given_up: &mut dyn FnMut() -> bool,
) -> Result<(File, Option<Place>), OutputError> {
    if path != Path::new("-") {
        let (file, place) = output_file::create(path, is_given_up)?;
        return Ok((file, Some(place)));
    }
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    let stdout = stdout.map_err(|source| OutputError::Create {
        path: path.into(),
        source,
    })?;
    Ok((File::from(stdout), None))
}
