//! Reads a log: rows in batches, flows, listeners and ledger. A log may be a series of files.

use super::error::LogError;
use super::flow::FlowRow;
use super::flow_states::{EVENT_COLUMNS, STATE_COLUMNS};
use super::header::LogHeader;
use super::listener::ListenerRow;
use super::message_reader::Truncation;
use super::part_reader::{Bases, PartReader, Tables};
use super::schema::selected;
use super::series::{self, Gap, GapCause};
use super::thinning::ThinningRow;
use crate::ledger::Ledger;
use arrow::array::UInt32Array;
use arrow::compute::kernels::numeric::add_wrapping;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

/// The files of a log that rotated.
struct Series<R: Read> {
    files: usize,
    /// Opens one by its number, from 0.
    open: Box<dyn Fn(usize) -> Result<PartReader<R>, LogError> + Send>,
}

/// A log that is being read: an iterator over its record batches.
///
/// [`LogReader::flows`], [`LogReader::listeners`] and [`LogReader::ledger`] have the content read so far, and all of it after the last
/// batch; [`LogReader::survey`] reads them ahead.
pub struct LogReader<R: Read> {
    path: String,
    header: LogHeader,
    schema: SchemaRef,
    part: PartReader<R>,
    series: Option<Series<R>>,
    /// The file that is read, from 0, and the first that can be.
    at: usize,
    first: usize,
    tables: Tables,
    gaps: Vec<Gap>,
    truncation: Option<Truncation>,
    is_complete: bool,
    /// What is added to the numbers of each file, once a survey knows.
    surveyed: Option<Vec<Bases>>,
    has_ended: bool,
}

impl LogReader<File> {
    /// Opens a log: a file, or a series of files by the name that they have without their numbers, or by their
    /// directory.
    ///
    /// # Errors
    /// [`LogError::Read`], [`LogError::Series`], and as [`LogReader::new`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LogError> {
        let path = path.as_ref();
        let files = series::files_of_log(path)?;
        let count = files.len();
        let open = move |at: usize| PartReader::open(&files[at]);
        let mut at = 0;
        let first = loop {
            match open(at) {
                Err(error) if at + 1 < count && GapCause::of(&error).is_some() => at += 1,
                opened => break opened?,
            }
        };
        let mut reader = Self::of_part(path.display().to_string(), first);
        (reader.at, reader.first) = (at, at);
        reader.series = (count > 1).then(|| Series {
            files: count,
            open: Box::new(open),
        });
        Ok(reader)
    }
}

impl<R: Read> LogReader<R> {
    /// Reads the head of a log in one file; `path` names it in errors.
    ///
    /// # Errors
    /// [`LogError::NotALog`] for a file of another kind, [`LogError::NewerVersion`] for one of a newer
    /// Parshall, [`LogError::Corrupt`] for one whose head is damaged.
    pub fn new(inner: R, path: String) -> Result<Self, LogError> {
        let part = PartReader::new(inner, path.clone())?;
        Ok(Self::of_part(path, part))
    }

    fn of_part(path: String, part: PartReader<R>) -> Self {
        let first = part.header.part.as_ref().filter(|part| part.number > 1);
        let before = first.map(|part| Gap {
            from_ns: 0,
            until_ns: part.began_ns,
            cause: GapCause::FileMissing,
        });
        Self {
            gaps: before.into_iter().collect(),
            path,
            header: part.header.clone(),
            schema: part.schema.clone(),
            part,
            series: None,
            at: 0,
            first: 0,
            tables: Tables::default(),
            truncation: None,
            is_complete: false,
            surveyed: None,
            has_ended: false,
        }
    }

    /// Reads some columns only; batches have them in the order of the file, and the others are not
    /// decompressed. Unknown names are ignored.
    ///
    /// # Errors
    /// [`LogError::Read`] when zstd has no memory.
    pub fn select(mut self, columns: &[impl AsRef<str>]) -> Result<Self, LogError> {
        self.schema = selected(&self.schema, columns, &[""; 0]);
        self.part.select(&self.schema)?;
        Ok(self)
    }

    /// Reads what [`FlowStates`](super::FlowStates) needs only.
    ///
    /// # Errors
    /// As [`LogReader::select`].
    pub fn select_states(mut self) -> Result<Self, LogError> {
        self.schema = selected(&self.schema, &STATE_COLUMNS, &EVENT_COLUMNS);
        self.part.select(&self.schema)?;
        Ok(self)
    }

    /// The head of the log, that of its first file.
    pub fn header(&self) -> &LogHeader {
        &self.header
    }

    /// The name of the log.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The schema of the batches, with the metadata of the first file. Columns that an older version of the format
    /// lacks are null.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// The flows read so far, by number.
    pub fn flows(&self) -> &BTreeMap<u32, FlowRow> {
        &self.tables.flows
    }

    /// Moves the flows read so far out of the reader, so that a flood of connections is not kept twice.
    pub fn take_flows(&mut self) -> BTreeMap<u32, FlowRow> {
        std::mem::take(&mut self.tables.flows)
    }

    /// The listeners read so far, by number.
    pub fn listeners(&self) -> &BTreeMap<u32, ListenerRow> {
        &self.tables.listeners
    }

    /// The changes of the thinning read so far, by their time.
    pub fn thinning(&self) -> &BTreeMap<i64, ThinningRow> {
        &self.tables.thinning
    }

    /// The account of what was read so far.
    pub fn ledger(&self) -> Option<Ledger> {
        self.tables.account()
    }

    /// Where the log ends early, known after the last batch or a survey.
    pub fn truncation(&self) -> Option<&Truncation> {
        self.truncation.as_ref()
    }

    /// Times that no file has, known after the last batch or a survey.
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// Whether the log has its end and no gap; known after the last batch or a survey.
    pub fn is_complete(&self) -> bool {
        self.is_complete && self.gaps.is_empty()
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, LogError> {
        while !self.has_ended {
            let tables = match self.surveyed {
                None => Some(&mut self.tables),
                Some(_) => None,
            };
            if let Some(batch) = self.part.next_batch(tables)? {
                return Ok(Some(self.renumbered(batch)));
            }
            self.has_ended = !self.begin_next_part()?;
        }
        Ok(None)
    }

    /// Ends the account of a file, and opens the next one; false when there is none.
    fn begin_next_part(&mut self) -> Result<bool, LogError> {
        let (next, skipped) = self.open_next()?;
        let Some(mut next) = next else {
            self.is_complete = self.part.is_complete();
            self.truncation = self.part.truncation.clone();
            self.end_series(skipped);
            return Ok(false);
        };
        next.select(&self.schema)?;
        let is_same_run = next.is_of_run_of(&self.part);
        let before = std::mem::replace(&mut self.part, next);
        if let Some(bases) = &self.surveyed {
            self.tables.bases = bases[self.at];
            return Ok(true);
        }
        let from_ns = (self.tables.file_ledger()).map_or(0, |ledger| ledger.until_time_ns);
        self.tables.begin_file(is_same_run);
        let after = self.part.header.part.as_ref();
        let number = |part: Option<&super::LogPart>| part.map_or(0, |part| part.number);
        let follows = number(before.header.part.as_ref()).checked_add(1) == Some(number(after));
        let cause = if skipped.is_some() {
            skipped
        } else if !before.is_complete() {
            Some(GapCause::Killed)
        } else if !is_same_run {
            Some(GapCause::Restarted)
        } else {
            (!follows).then_some(GapCause::FileMissing)
        };
        let until_ns = after.map_or(0, |part| part.began_ns);
        self.gaps.extend(cause.map(|cause| Gap {
            from_ns,
            until_ns,
            cause,
        }));
        Ok(true)
    }

    /// The next file that can be opened, and why those before it cannot.
    #[allow(clippy::type_complexity)]
    fn open_next(&mut self) -> Result<(Option<PartReader<R>>, Option<GapCause>), LogError> {
        let mut skipped = None;
        while let Some(series) = (self.series.as_ref()).filter(|series| self.at + 1 < series.files)
        {
            self.at += 1;
            match (series.open)(self.at) {
                Ok(part) => return Ok((Some(part), skipped)),
                Err(error) => skipped = Some(GapCause::of(&error).ok_or(error)?),
            }
        }
        Ok((None, skipped))
    }

    /// A gap at the end, when a file ended in order, but not the log.
    fn end_series(&mut self, skipped: Option<GapCause>) {
        if self.surveyed.is_some() {
            return;
        }
        let last = self.tables.file_ledger();
        let goes_on = self.is_complete
            && self.part.header.part.is_some()
            && last.is_some_and(|ledger| !ledger.complete);
        let cause = skipped.or(goes_on.then_some(GapCause::FileMissing));
        let from_ns = last.map_or(0, |ledger| ledger.until_time_ns);
        self.gaps.extend(cause.map(|cause| Gap {
            from_ns,
            until_ns: 0,
            cause,
        }));
    }

    /// The rows with the numbers of the whole log.
    fn renumbered(&self, batch: RecordBatch) -> RecordBatch {
        let base = self.tables.bases.flow;
        let Some((at, _)) = (base > 0)
            .then(|| self.schema.column_with_name("flow"))
            .flatten()
        else {
            return batch;
        };
        let mut columns = batch.columns().to_vec();
        let Ok(flows) = add_wrapping(&columns[at], &UInt32Array::new_scalar(base)) else {
            return batch;
        };
        columns[at] = flows;
        RecordBatch::try_new(self.schema.clone(), columns).unwrap_or(batch)
    }
}

impl<R: Read + Seek> LogReader<R> {
    /// Reads flows, listeners, ledger, gaps and completeness ahead, without the rows, and returns to the first row. It
    /// does not report damage; reading the rows does.
    ///
    /// # Errors
    /// [`LogError::Read`], and of a series those of the heads of its files.
    pub fn survey(&mut self) -> Result<(), LogError> {
        let mut bases = vec![Bases::default(); self.first + 1];
        self.part.survey(&mut self.tables)?;
        while self.begin_next_part()? {
            bases.resize(self.at, Bases::default());
            bases.push(self.tables.bases);
            self.part.survey(&mut self.tables)?;
        }
        if let Some(series) = &self.series {
            self.at = self.first;
            self.part = (series.open)(self.first)?;
            self.part.select(&self.schema)?;
            self.tables.bases = Bases::default();
        }
        self.surveyed = Some(bases);
        Ok(())
    }
}

impl<R: Read> Iterator for LogReader<R> {
    type Item = Result<RecordBatch, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        let result = self.next_batch();
        if result.is_err() {
            self.has_ended = true;
        }
        result.transpose()
    }
}
