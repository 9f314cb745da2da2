//! Follows a log that is being written.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;

use super::error::LogError;
use super::flow::FlowRow;
use super::header::LogHeader;
use super::listener::ListenerRow;
use super::part_reader::{PartReader, Tables};
use super::series::files_of_log;
use crate::input_file::open_regular;
use crate::ledger::Ledger;

/// A log that is being written, read from its newest file on: each call gives what came since the last one.
pub struct LogFollower {
    path: PathBuf,
    file: PathBuf,
    part: PartReader<File>,
    schema: SchemaRef,
    tables: Tables,
    /// Of the files before the current one.
    ledger: Option<Ledger>,
}

impl LogFollower {
    /// Opens the newest file of a log, for some columns; names that the format does not have are ignored.
    ///
    /// # Errors
    /// As [`super::LogReader::open`].
    pub fn open(path: &Path, columns: &[impl AsRef<str>]) -> Result<Self, LogError> {
        let file = newest(path)?;
        let part = open(&file)?;
        let is_wanted = |name: &String| columns.iter().any(|column| column.as_ref() == name);
        let fields = part.schema.fields().iter();
        let kept: Vec<_> = fields
            .filter(|field| is_wanted(field.name()))
            .cloned()
            .collect();
        let schema = Schema::new(kept)
            .with_metadata(part.schema.metadata().clone())
            .into();
        let mut follower = Self {
            path: path.to_owned(),
            file,
            part,
            schema,
            tables: Tables::default(),
            ledger: None,
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
            // A file that is not the newest gets no more rows, even when its writer was killed.
            let file = newest(&self.path)?;
            if file == self.file || file.file_name() < self.file.file_name() {
                return Ok(None);
            }
            self.begin_file(following(&self.path, &self.file)?.unwrap_or(file))?;
        }
    }

    fn begin_file(&mut self, file: PathBuf) -> Result<(), LogError> {
        let mut part = open(&file)?;
        part.select(&self.schema)?;
        let run = |part: &PartReader<File>| part.header.part.as_ref().map(|part| part.run.clone());
        if run(&part) != run(&self.part) {
            self.tables.bases = self.tables.highest;
        }
        if let Some(last) = self.tables.ledger.take() {
            self.ledger = Some(match &self.ledger {
                Some(sum) => sum.joined(&last),
                None => last,
            });
        }
        (self.file, self.part) = (file, part);
        Ok(())
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
        match (&self.ledger, &self.tables.ledger) {
            (Some(before), Some(last)) => Some(before.joined(last)),
            (before, last) => before.as_ref().or(last.as_ref()).cloned(),
        }
    }

    /// What is added to the numbers of flows in the batches.
    pub fn flow_base(&self) -> u32 {
        self.tables.bases.flow
    }

    /// Whether the log has its end.
    pub fn has_ended(&self) -> bool {
        let ledger = self.tables.ledger.as_ref();
        self.part.is_complete() && ledger.is_some_and(|ledger| ledger.complete)
    }
}

fn open(file: &Path) -> Result<PartReader<File>, LogError> {
    let name = file.display().to_string();
    let opened = open_regular(file).map_err(|source| LogError::Read {
        path: name.clone(),
        source,
    })?;
    PartReader::new(opened, name)
}

fn newest(path: &Path) -> Result<PathBuf, LogError> {
    let mut files = files_of_log(path)?;
    Ok(files.pop().unwrap_or_else(|| path.to_owned()))
}

/// The file after another one.
fn following(path: &Path, file: &Path) -> Result<Option<PathBuf>, LogError> {
    let files = files_of_log(path)?;
    Ok(files
        .into_iter()
        .find(|other| other.file_name() > file.file_name()))
}
