//! Reads one file of a log.

use super::error::LogError;
use super::flow_table::decode_flows;
use super::header::LogHeader;
use super::message::{KEY_FINAL, KEY_FLOWS, KEY_LEDGER, KEY_LISTENERS, KEY_THINNING};
use super::message_reader::{MessageReader, RawMessage, Step, Truncation};
use super::rows::{RowDecoder, row_count};
use super::schema::batch_schema;
use super::{FlowRow, ListenerRow, ThinningRow};
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

/// What the ticks say.
#[derive(Debug, Default)]
pub struct Tables {
    pub flows: BTreeMap<u32, FlowRow>,
    pub listeners: BTreeMap<u32, ListenerRow>,
    /// Changes of the thinning, by their time.
    pub thinning: BTreeMap<i64, ThinningRow>,
    /// The last ledger of the file that is read.
    ledger: Option<Ledger>,
    /// Of the files before.
    former: Option<Ledger>,
    /// Added to the numbers of the file that is read: it belongs to another run of the writer, which counted anew.
    pub bases: Bases,
    /// The highest numbers so far.
    pub highest: Bases,
}

/// Numbers of flows and listeners.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bases {
    pub flow: u32,
    pub listener: u32,
}

impl Tables {
    /// The last ledger of the file that is read.
    pub fn file_ledger(&self) -> Option<&Ledger> {
        self.ledger.as_ref()
    }

    /// The account of all files so far.
    pub fn account(&self) -> Option<Ledger> {
        match (&self.former, &self.ledger) {
            (Some(former), Some(last)) => Some(former.joined(last)),
            (former, last) => former.as_ref().or(last.as_ref()).cloned(),
        }
    }

    /// Goes on to another file of the log.
    pub fn begin_file(&mut self, is_same_run: bool) {
        self.former = self.account();
        self.ledger = None;
        if !is_same_run {
            self.bases = self.highest;
        }
    }

    fn add_flows(&mut self, rows: Vec<FlowRow>) {
        for mut row in rows {
            row.flow = row.flow.saturating_add(self.bases.flow);
            self.highest.flow = self.highest.flow.max(row.flow);
            self.flows.insert(row.flow, row);
        }
    }

    fn add_listeners(&mut self, rows: Vec<ListenerRow>) {
        for mut row in rows {
            row.listener = row.listener.saturating_add(self.bases.listener);
            self.highest.listener = self.highest.listener.max(row.listener);
            self.listeners.insert(row.listener, row);
        }
    }
}

pub struct PartReader<R: Read> {
    messages: MessageReader<R>,
    pub header: LogHeader,
    file_schema: Schema,
    /// Of all columns of the format, with the metadata of the file.
    pub schema: SchemaRef,
    decoder: RowDecoder,
    rows_at_byte: u64,
    is_final: bool,
    has_ended: bool,
    pub truncation: Option<Truncation>,
}

impl PartReader<File> {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, LogError> {
        let name = path.display().to_string();
        let file = open_regular(path).map_err(|source| LogError::Read {
            path: name.clone(),
            source,
        })?;
        Self::new(file, name)
    }
}

impl<R: Read> PartReader<R> {
    /// Reads the head of a file; `path` names it in errors.
    pub fn new(inner: R, path: String) -> Result<Self, LogError> {
        let mut messages = MessageReader::new(inner, path.clone());
        let not_a_log = |found: &str| LogError::NotALog {
            path: path.clone(),
            found: found.to_string(),
        };
        let headless = |found| LogError::Headless {
            path: path.clone(),
            found,
        };
        let first = match messages.next_message() {
            Ok(Step::Message(message)) => message,
            Ok(Step::EndOfFile) => return Err(headless("an empty file")),
            Ok(Step::EndOfStream) => return Err(not_a_log("an Arrow stream without a schema")),
            Ok(Step::Cut(_)) => return Err(headless("not even the head of an Arrow stream")),
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
        let decoder = decoder(&path, &file_schema, &schema)?;
        Ok(Self {
            rows_at_byte: messages.at_byte(),
            messages,
            header,
            file_schema,
            schema,
            decoder,
            is_final: false,
            has_ended: false,
            truncation: None,
        })
    }

    /// Whether another file goes on where this one ended: the same run of the writer made it.
    pub fn is_of_run_of(&self, other: &Self) -> bool {
        let run = |part: &Self| part.header.part.as_ref().map(|part| part.run.clone());
        run(self).is_some() && run(self) == run(other)
    }

    /// Gives batches of this schema, which has some of the columns of the format.
    pub fn select(&mut self, schema: &SchemaRef) -> Result<(), LogError> {
        self.decoder = decoder(self.path(), &self.file_schema, schema)?;
        Ok(())
    }

    pub fn path(&self) -> &str {
        self.messages.path()
    }

    /// Whether the file has its end; known when it was read.
    pub fn is_complete(&self) -> bool {
        self.is_final && self.truncation.is_none()
    }

    /// The next rows. What ticks say before them goes into `tables`.
    pub fn next_batch(
        &mut self,
        mut tables: Option<&mut Tables>,
    ) -> Result<Option<RecordBatch>, LogError> {
        while !self.has_ended {
            let step = self.messages.next_message()?;
            if let Some(message) = self.open_step(step) {
                match self.rows_of(&message, tables.as_deref_mut()) {
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

    /// The message of a step; without one, records how the file ended.
    fn open_step(&mut self, step: Step) -> Option<RawMessage> {
        match step {
            Step::Message(message) => return Some(message),
            Step::Cut(truncation) => self.truncation = Some(truncation),
            Step::EndOfStream | Step::EndOfFile => {
                self.truncation = (!self.is_final).then(|| Truncation {
                    at_byte: self.messages.at_byte(),
                    reason:
                        "it was not finished: its writer still runs, was killed, or ran out of room"
                            .into(),
                });
            }
        }
        self.has_ended = true;
        None
    }

    fn rows_of(
        &mut self,
        raw: &RawMessage,
        tables: Option<&mut Tables>,
    ) -> Result<Option<RecordBatch>, String> {
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
            return self.take_tick(raw, tables).map(|()| None);
        }
        self.decoder.decode(head, &raw.body).map(Some)
    }

    fn take_tick(
        &mut self,
        raw: &RawMessage,
        mut tables: Option<&mut Tables>,
    ) -> Result<(), String> {
        for (key, value) in raw.values()? {
            if key == KEY_FINAL {
                self.is_final = value == "true";
            }
            let Some(tables) = tables.as_deref_mut() else {
                continue;
            };
            match key {
                KEY_FLOWS => {
                    let rows = decode_flows(value).map_err(|error| error.to_string())?;
                    tables.add_flows(rows);
                }
                KEY_LISTENERS => {
                    let rows: Vec<ListenerRow> = serde_json::from_str(value)
                        .map_err(|error| format!("its listeners: {error}"))?;
                    tables.add_listeners(rows);
                }
                KEY_THINNING => {
                    let rows: Vec<ThinningRow> = serde_json::from_str(value)
                        .map_err(|error| format!("its thinning: {error}"))?;
                    tables
                        .thinning
                        .extend(rows.into_iter().map(|row| (row.time_ns, row)));
                }
                KEY_LEDGER => {
                    tables.ledger = Some(
                        serde_json::from_str(value)
                            .map_err(|error| format!("its ledger: {error}"))?,
                    );
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl<R: Read + Seek> PartReader<R> {
    /// The next rows of a file that is being written; `None` when no more are there yet.
    pub fn next_written_batch(
        &mut self,
        tables: &mut Tables,
    ) -> Result<Option<RecordBatch>, LogError> {
        while !self.has_ended {
            let at_byte = self.messages.at_byte();
            let message = match self.messages.next_message()? {
                Step::Message(message) => message,
                // The writer is in the middle of it.
                Step::EndOfFile | Step::Cut(_) => {
                    self.messages.go_to(at_byte)?;
                    return Ok(None);
                }
                Step::EndOfStream => {
                    self.has_ended = true;
                    return Ok(None);
                }
            };
            match self.rows_of(&message, Some(tables)) {
                Ok(Some(batch)) => return Ok(Some(batch)),
                Ok(None) => {}
                Err(reason) => return Err(self.messages.corrupt(at_byte, &reason)),
            }
        }
        Ok(None)
    }

    /// Reads the ticks without the rows, and returns to the first row. It does not report damage; reading the rows
    /// does.
    pub fn survey(&mut self, tables: &mut Tables) -> Result<(), LogError> {
        let file_bytes = self.messages.file_bytes()?;
        self.messages.go_to(self.rows_at_byte)?;
        while !self.has_ended {
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
                let _ = self.take_tick(&raw, Some(tables));
            }
        }
        self.has_ended = false;
        self.messages.go_to(self.rows_at_byte)
    }
}

fn decoder(path: &str, file: &Schema, schema: &SchemaRef) -> Result<RowDecoder, LogError> {
    RowDecoder::new(file, schema.clone()).map_err(|source| LogError::Read {
        path: path.to_string(),
        source,
    })
}
