//! The files of a log that rotated.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::error::LogError;
use crate::output_file::series::{files_of_series, series_of};

/// Why a log has no rows for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GapCause {
    /// Its writer ended in order, and was started again.
    Restarted,
    /// Its writer was killed, or ran out of room; another one was started.
    Killed,
    /// A file was removed, or is in another directory.
    FileMissing,
    /// A file has no head: it was new when the host lost power.
    FileDamaged,
}

/// A time that a log does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// The last account before it, `CLOCK_REALTIME`. 0: unknown.
    pub from_ns: i64,
    /// The next file begins. 0: unknown.
    pub until_ns: i64,
    /// Why.
    pub cause: GapCause,
}

impl GapCause {
    /// Of a file that cannot be opened; `None` if that is no reason to go on without it.
    pub fn of(error: &LogError) -> Option<Self> {
        match error {
            LogError::Headless { .. } => Some(Self::FileDamaged),
            // Rotation removed it meanwhile.
            LogError::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some(Self::FileMissing)
            }
            _ => None,
        }
    }
}

/// The files of the log with this name: the file, those of the series of this name, or those of the only series in
/// this directory. There is at least one.
///
/// # Errors
/// [`LogError::Read`], [`LogError::Series`] for a directory with no series or several.
pub fn files_of_log(path: &Path) -> Result<Vec<PathBuf>, LogError> {
    let read_error = |source| LogError::Read {
        path: path.display().to_string(),
        source,
    };
    if path.is_dir() {
        return files_of_directory(path, &mut std::fs::read_dir(path).map_err(read_error)?);
    }
    if path.symlink_metadata().is_err() {
        // The name that was given to the writer.
        let files = files_of_series(path).unwrap_or_default();
        if !files.is_empty() {
            return Ok(files);
        }
    }
    Ok(vec![path.to_owned()])
}

fn files_of_directory(
    path: &Path,
    entries: &mut std::fs::ReadDir,
) -> Result<Vec<PathBuf>, LogError> {
    let mut names: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|suffix| suffix == "arrow"))
        .map(|path| series_of(&path).unwrap_or(path))
        .collect();
    names.sort();
    names.dedup();
    match names.as_slice() {
        [one] => files_of_log(one),
        [] => Err(LogError::Series {
            path: path.display().to_string(),
            found: "has no log".into(),
            remedy: "name a log, or the directory of the files of one".into(),
            source: io::ErrorKind::IsADirectory.into(),
        }),
        [first, second, ..] => Err(LogError::Series {
            path: path.display().to_string(),
            found: format!("has {} logs", names.len()),
            remedy: format!(
                "name one of them: {}, {}{}",
                first.display(),
                second.display(),
                if names.len() > 2 { ", ..." } else { "" }
            ),
            source: io::ErrorKind::IsADirectory.into(),
        }),
    }
}
