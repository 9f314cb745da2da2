//! Follows a log that is being written.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

use super::error::LogError;
use super::flow::FlowRow;
use super::flow_states::{EVENT_COLUMNS, STATE_COLUMNS};
use super::header::LogHeader;
use super::listener::ListenerRow;
use super::part_reader::{PartReader, Tables};
use super::schema::selected;
use super::series::{GapCause, files_of_log};
use crate::ledger::Ledger;

/// A log that is being written, read from its newest file on: each call gives what came since the last one.
pub struct LogFollower {
    path: PathBuf,
    file: PathBuf,
    part: PartReader<File>,
    schema: SchemaRef,
    tables: Tables,
}

impl LogFollower {
    /// Opens the newest file of a log, for what [`FlowStates`](super::FlowStates) needs.
    ///
    /// # Errors
    /// As [`super::LogReader::open`].
    pub fn open_states(path: &Path) -> Result<Self, LogError> {
        Self::open(path, &STATE_COLUMNS, &EVENT_COLUMNS)
    }

    /// Opens the newest file of a log, for some columns, and further ones of batches with events; names that the format
    /// does not have are ignored.
    ///
    /// # Errors
    /// As [`super::LogReader::open`].
    pub fn open(
        path: &Path,
        columns: &[impl AsRef<str>],
        of_events: &[impl AsRef<str>],
    ) -> Result<Self, LogError> {
        let mut files = files_of_log(path)?;
        let (file, part) = loop {
            let file = files.pop().unwrap_or_else(|| path.to_owned());
            match PartReader::open(&file) {
                Err(error) if !files.is_empty() && GapCause::of(&error).is_some() => {}
                opened => break (file, opened?),
            }
        };
        let schema = selected(&part.schema, columns, of_events);
        let mut follower = Self {
            path: path.to_owned(),
            file,
            part,
            schema,
            tables: Tables::default(),
        };
        follower.part.select(&follower.schema)?;
        Ok(follower)
    }

    /// The head of the file that is read.
    pub fn header(&self) -> &LogHeader {
        &self.part.header
    }

    /// The schema of the batches.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// The next rows; `None` when no more are there yet.
    ///
    /// # Errors
    /// As [`super::LogReader`]'s iterator.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>, LogError> {
        loop {
            if let Some(batch) = self.part.next_written_batch(&mut self.tables)? {
                return Ok(Some(batch));
            }
            let Some((file, mut part)) = self.next_file()? else {
                return Ok(None);
            };
            // The writer ends a file before the next one has its name, so this is all that is in it.
            if let Some(batch) = self.part.next_written_batch(&mut self.tables)? {
                return Ok(Some(batch));
            }
            part.select(&self.schema)?;
            self.tables.begin_file(part.is_of_run_of(&self.part));
            (self.file, self.part) = (file, part);
        }
    }

    /// The file after the current one; one that cannot be read is left out.
    fn next_file(&self) -> Result<Option<(PathBuf, PartReader<File>)>, LogError> {
        let files = files_of_log(&self.path)?;
        // Rotation removes the oldest ones: if it is gone, all others came later.
        let at = files.iter().position(|file| *file == self.file);
        for file in files.into_iter().skip(at.map_or(0, |at| at + 1)) {
            match PartReader::open(&file) {
                Ok(part) => return Ok(Some((file, part))),
                Err(error) if GapCause::of(&error).is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The flows that are new or changed since the last call, by number in what was followed.
    pub fn take_flows(&mut self) -> BTreeMap<u32, FlowRow> {
        std::mem::take(&mut self.tables.flows)
    }

    /// The listeners that are new or changed since the last call.
    pub fn take_listeners(&mut self) -> BTreeMap<u32, ListenerRow> {
        std::mem::take(&mut self.tables.listeners)
    }

    /// The account of what was followed so far.
    pub fn ledger(&self) -> Option<Ledger> {
        self.tables.account()
    }

    /// What is added to the numbers of flows in the batches.
    pub fn flow_base(&self) -> u32 {
        self.tables.bases.flow
    }

    /// Whether the log has its end.
    pub fn has_ended(&self) -> bool {
        let ledger = self.tables.file_ledger();
        self.part.is_complete() && ledger.is_some_and(|ledger| ledger.complete)
    }
}
