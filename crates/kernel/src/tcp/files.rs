//! The files of a TCP state log: one, or a series that rotates.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use parshall_core::output_file::series::{FileSeries, Rotation, files_of_series};
use parshall_core::output_file::{OutputError, Place};
use parshall_core::tcp_log::{LogHeader, LogPart};

use crate::clock::realtime_ns;
use crate::log_file;

/// Of a file without rows, before another one begins.
const AGE_WITHOUT_ROWS: Duration = Duration::from_secs(2);

pub(super) struct LogFiles {
    path: PathBuf,
    header: LogHeader,
    rotation: Rotation,
    series: Option<FileSeries>,
    began: Instant,
}

impl LogFiles {
    /// # Errors
    /// As [`FileSeries::new`], and [`OutputError::NameInUse`].
    pub fn new(
        path: PathBuf,
        mut header: LogHeader,
        rotation: Rotation,
    ) -> Result<Self, OutputError> {
        let series = match rotation.is_on() {
            true => Some(FileSeries::new(&path, rotation)?),
            false => None,
        };
        // A log is read by its name, which a file and a series would share.
        let in_use = match &series {
            Some(_) if path.symlink_metadata().is_ok() => {
                Some("is a file, and the files of a log that rotates are read by this name")
            }
            None if !files_of_series(&path).unwrap_or_default().is_empty() => {
                Some("is the name of a log that rotated, whose files are there")
            }
            _ => None,
        };
        if let Some(what) = in_use {
            return Err(OutputError::NameInUse { path, what });
        }
        header.part = series.as_ref().map(|_| LogPart {
            run: format!("{:x}-{:x}", realtime_ns(), std::process::id()),
            number: 0,
            began_ns: 0,
        });
        Ok(Self {
            path,
            header,
            rotation,
            series,
            began: Instant::now(),
        })
    }

    /// The head of the file that was created last.
    pub fn header(&self) -> &LogHeader {
        &self.header
    }

    /// Creates the file, or the next one of the series, which has what came after `began_ns` (`CLOCK_REALTIME`).
    ///
    /// # Errors
    /// [`OutputError`]; no file is changed then.
    pub fn create(
        &mut self,
        began_ns: i64,
        is_given_up: &mut dyn FnMut() -> bool,
    ) -> Result<(File, Option<Place>), OutputError> {
        let Some(series) = &mut self.series else {
            return log_file::create(&self.path, is_given_up);
        };
        // Do not wait for a FIFO that now has this name.
        let created = log_file::create(&series.next_path(), &mut || true)?;
        self.began = Instant::now();
        if let Some(part) = &mut self.header.part {
            part.number += 1;
            part.began_ns = began_ns;
        }
        Ok(created)
    }

    /// Gives the created file its name.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn take(&mut self, place: &mut Place) -> Result<(), OutputError> {
        match &mut self.series {
            Some(series) => series.take(place),
            None => place.take(),
        }
    }

    /// Removes those of the series that are too many or too old, so that the next file is within the limits.
    ///
    /// # Errors
    /// [`OutputError::Remove`].
    pub fn make_room(&mut self) -> Result<(), OutputError> {
        self.series.as_mut().map_or(Ok(()), FileSeries::make_room)
    }

    /// Whether the file of this size is large enough, or old enough when it has rows. Without rows it grows by its
    /// accounts, and a short time keeps a limit below the size of a head from making file after file.
    pub fn is_full(&self, bytes: u64, has_rows: bool) -> bool {
        let Rotation {
            size_bytes,
            time_ns,
            ..
        } = self.rotation;
        let age = self.began.elapsed();
        let is_large = size_bytes.is_some_and(|most| bytes >= most);
        let is_old = time_ns.is_some_and(|most| age >= Duration::from_nanos(most));
        is_large && (has_rows || age >= AGE_WITHOUT_ROWS) || is_old && has_rows
    }
}
