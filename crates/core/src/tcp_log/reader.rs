//! Reads a log: rows in batches, flows, listeners and ledger.

use super::error::LogError;
use super::flow::FlowRow;
use super::flow_table::decode_flows;
use super::header::LogHeader;
use super::listener::ListenerRow;
use super::message::{KEY_FINAL, KEY_FLOWS, KEY_LEDGER, KEY_LISTENERS};
use super::message_reader::{MessageReader, RawMessage, Step, Truncation};
use super::rows::{RowDecoder, row_count};
use super::schema::batch_schema;
use crate::input_file::open_regular;
use crate::ledger::Ledger;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::MessageHeader;
use arrow::ipc::convert::try_fb_to_schema;
use arrow::record_batch::RecordBatch;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::sync::Arc;

/// A log that is being read: an iterator over its record batches.
///
/// [`LogReader::flows`], [`LogReader::listeners`] and [`LogReader::ledger`] have the content read so far, and all of it after the last
/// batch; [`LogReader::survey`] reads them ahead.
pub struct LogReader<R: Read> {
    messages: MessageReader<R>,
    header: LogHeader,
    file_schema: Schema,
    schema: SchemaRef,
    decoder: RowDecoder,
    rows_at_byte: u64,
    flows: BTreeMap<u32, FlowRow>,
    listeners: BTreeMap<u32, ListenerRow>,
    ledger: Option<Ledger>,
    is_final: bool,
    surveyed: bool,
    ended: bool,
    truncation: Option<Truncation>,
}

impl LogReader<File> {
    /// Opens a file.
    ///
    /// # Errors
    /// [`LogError::Read`], and as [`LogReader::new`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LogError> {
        let name = path.as_ref().display().to_string();
        let file = open_regular(path.as_ref()).map_err(|source| LogError::Read {
            path: name.clone(),
            source,
        })?;
        Self::new(file, name)
    }
}

impl<R: Read> LogReader<R> {
    /// Reads the head of a log; `path` names it in errors.
    ///
    /// # Errors
    /// [`LogError::NotALog`] for a file of another kind, [`LogError::NewerVersion`] for one of a newer
    /// Parshall, [`LogError::Corrupt`] for one whose head is damaged.
    pub fn new(inner: R, path: String) -> Result<Self, LogError> {
        let mut messages = MessageReader::new(inner, path.clone());
        let not_a_log = |found: &str| LogError::NotALog {
            path: path.clone(),
            found: found.to_string(),
        };
        let first = match messages.next_message() {
            Ok(Step::Message(message)) => message,
            Ok(Step::EndOfFile) => return Err(not_a_log("an empty file")),
            Ok(Step::EndOfStream) => return Err(not_a_log("an Arrow stream without a schema")),
            Ok(Step::Cut(_)) => return Err(not_a_log("not even the head of an Arrow stream")),
            Err(LogError::Corrupt { .. }) => return Err(not_a_log("not an Arrow stream")),
            Err(error) => return Err(error),
        };
        let file_schema = first
            .message()
            .ok()
            .and_then(|message| message.header_as_schema())
            .and_then(|schema| try_fb_to_schema(schema).ok())
            .ok_or_else(|| not_a_log("an Arrow stream without a readable schema"))?;
        let header = LogHeader::from_metadata(&path, file_schema.metadata())?;
        let schema = batch_schema(&file_schema)
            .map(Arc::new)
            .ok_or_else(|| messages.corrupt(0, "its columns are not those of the format"))?;
        let decoder =
            RowDecoder::new(&file_schema, schema.clone()).map_err(|source| LogError::Read {
                path: path.clone(),
                source,
            })?;
        Ok(Self {
            rows_at_byte: messages.at_byte(),
            messages,
            header,
            file_schema,
            schema,
            decoder,
            flows: BTreeMap::new(),
            listeners: BTreeMap::new(),
            ledger: None,
            is_final: false,
            surveyed: false,
            ended: false,
            truncation: None,
        })
    }

    /// Reads some columns only; batches have them in the order of the file, and the others are not
    /// decompressed. Unknown names are ignored.
    ///
    /// # Errors
    /// [`LogError::Read`] when zstd has no memory.
    pub fn select(mut self, columns: &[impl AsRef<str>]) -> Result<Self, LogError> {
        let is_wanted = |name: &String| columns.iter().any(|column| column.as_ref() == name);
        let kept = (self.schema.fields().iter())
            .filter(|field| is_wanted(field.name()))
            .cloned()
            .collect::<Vec<_>>();
        let metadata = self.schema.metadata().clone();
        self.schema = Arc::new(Schema::new(kept).with_metadata(metadata));
        let decoder = RowDecoder::new(&self.file_schema, self.schema.clone());
        self.decoder = decoder.map_err(|source| LogError::Read {
            path: self.path().to_string(),
            source,
        })?;
        Ok(self)
    }

    /// The head of the log.
    pub fn header(&self) -> &LogHeader {
        &self.header
    }

    /// The name of the file.
    pub fn path(&self) -> &str {
        self.messages.path()
    }

    /// The schema of the batches, with the metadata of the file. Columns that an older version of the format
    /// lacks are null.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// The flows read so far, by number.
    pub fn flows(&self) -> &BTreeMap<u32, FlowRow> {
        &self.flows
    }

    /// Moves the flows read so far out of the reader, so that a flood of connections is not kept twice.
    pub fn take_flows(&mut self) -> BTreeMap<u32, FlowRow> {
        std::mem::take(&mut self.flows)
    }

    /// The listeners read so far, by number.
    pub fn listeners(&self) -> &BTreeMap<u32, ListenerRow> {
        &self.listeners
    }

    /// The last ledger read so far.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.ledger.as_ref()
    }

    /// Where the log ends early, known after the last batch or a survey.
    pub fn truncation(&self) -> Option<&Truncation> {
        self.truncation.as_ref()
    }

    /// Whether the log is complete; known after the last batch or a survey.
    pub fn is_complete(&self) -> bool {
        self.is_final && self.truncation.is_none()
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, LogError> {
        while !self.ended {
            let step = self.messages.next_message()?;
            if let Some(message) = self.open_step(step) {
                let batch = self.rows_of(&message);
                match batch {
                    Ok(Some(batch)) => return Ok(Some(batch)),
                    Ok(None) => {}
                    Err(reason) => {
                        let step = self.messages.damaged(message.at_byte, reason)?;
                        self.open_step(step);
                    }
                }
            }
        }
        Ok(None)
    }

    /// The message of a step; without one, records how the log ended.
    fn open_step(&mut self, step: Step) -> Option<RawMessage> {
        match step {
            Step::Message(message) => return Some(message),
            Step::Cut(truncation) => self.truncation = Some(truncation),
            Step::EndOfStream | Step::EndOfFile => {
                self.truncation = (!self.is_final).then(|| Truncation {
                    at_byte: self.messages.at_byte(),
                    reason: "its last tick is missing: the writer was killed, still runs, or ran out of room".into(),
                });
            }
        }
        self.ended = true;
        None
    }

    fn rows_of(&mut self, raw: &RawMessage) -> Result<Option<RecordBatch>, String> {
        let message = raw.message()?;
        if let Some(dictionary) = message.header_as_dictionary_batch() {
            let names = dictionary.data().ok_or("a dictionary without data")?;
            return self
                .decoder
                .check_dictionary(dictionary.id(), names, &raw.body)
                .map(|()| None);
        }
        let head = message
            .header_as_record_batch()
            .ok_or("neither rows nor a tick")?;
        let rows = row_count(head)?;
        raw.verify(rows as u64)?;
        if rows == 0 {
            return self.take_tick(raw).map(|()| None);
        }
        self.decoder.decode(head, &raw.body).map(Some)
    }

    fn take_tick(&mut self, raw: &RawMessage) -> Result<(), String> {
        if self.surveyed {
            return Ok(());
        }
        for (key, value) in raw.values()? {
            match key {
                KEY_FLOWS => {
                    let rows = decode_flows(value).map_err(|error| error.to_string())?;
                    self.flows
                        .extend(rows.into_iter().map(|row| (row.flow, row)));
                }
                KEY_LISTENERS => {
                    let rows: Vec<ListenerRow> = serde_json::from_str(value)
                        .map_err(|error| format!("its listeners: {error}"))?;
                    self.listeners
                        .extend(rows.into_iter().map(|row| (row.listener, row)));
                }
                KEY_LEDGER => {
                    self.ledger = Some(
                        serde_json::from_str(value)
                            .map_err(|error| format!("its ledger: {error}"))?,
                    );
                }
                KEY_FINAL => self.is_final = value == "true",
                _ => {}
            }
        }
        Ok(())
    }
}

impl<R: Read + Seek> LogReader<R> {
    /// Reads flows, listeners, ledger and completeness ahead, without the rows, and returns to the first row. It does
    /// not report damage; reading the rows does.
    ///
    /// # Errors
    /// [`LogError::Read`].
    pub fn survey(&mut self) -> Result<(), LogError> {
        let file_bytes = self.messages.file_bytes()?;
        self.messages.go_to(self.rows_at_byte)?;
        while !self.ended {
            let step = match self.messages.next_head(file_bytes) {
                Err(LogError::Corrupt {
                    at_byte, reason, ..
                }) => Step::Cut(Truncation { at_byte, reason }),
                other => other?,
            };
            let Some(raw) = self.open_step(step) else {
                break;
            };
            let is_tick = raw.message().is_ok_and(|message| {
                message.header_type() == MessageHeader::RecordBatch
                    && message
                        .header_as_record_batch()
                        .is_some_and(|head| head.length() == 0)
            });
            if is_tick && raw.verify(0).is_ok() {
                // A tick that cannot be read is reported when the rows are read.
                let _ = self.take_tick(&raw);
            }
        }
        self.ended = false;
        self.surveyed = true;
        self.messages.go_to(self.rows_at_byte)
    }
}

impl<R: Read> Iterator for LogReader<R> {
    type Item = Result<RecordBatch, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        let result = self.next_batch();
        if result.is_err() {
            self.ended = true;
        }
        result.transpose()
    }
}
