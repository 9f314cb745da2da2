//! Writes a path log.

use super::columns::{COLUMNS, Kind, path_schema};
use super::{FORMAT, FORMAT_VERSION, PathRows, Row};
use crate::tcp_log::message::{END_OF_STREAM, batch_head};
use crate::tcp_log::{Codec, LogError};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::writer::{
    DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions, write_message,
};
use arrow::ipc::{Buffer, CompressionType, FieldNode};
use flatbuffers::FlatBufferBuilder;
use std::collections::HashMap;
use std::io::Write;

const BATCH_ROWS: usize = 8192;

/// Writes a path log to any [`Write`]. After an error of it, nothing more is written: the file has all batches before,
/// and the rows that come are counted as not written.
pub struct PathLogWriter<W: Write> {
    inner: W,
    schema: SchemaRef,
    rows: PathRows,
    offset_ns: i64,
    tracker: DictionaryTracker,
    options: IpcWriteOptions,
    compression: IpcWriteContext,
    written_bytes: u64,
    written: [u64; 2],
    unwritten: [u64; 2],
    has_failed: bool,
}

impl<W: Write> PathLogWriter<W> {
    /// Starts a log, and writes its head. `metadata` has JSON objects by key: environment, clock, options; `offset_ns`
    /// turns the clock of the records into that of the log.
    ///
    /// # Errors
    /// [`LogError`] when the head cannot be written.
    pub fn create(inner: W, metadata: &[(&str, String)], offset_ns: i64) -> Result<Self, LogError> {
        let mut all = HashMap::from([
            ("parshall.format".to_string(), FORMAT.to_string()),
            (
                "parshall.format_version".to_string(),
                FORMAT_VERSION.to_string(),
            ),
        ]);
        all.extend(
            metadata
                .iter()
                .map(|(key, value)| (format!("parshall.{key}"), value.clone())),
        );
        let mut writer = Self {
            inner,
            schema: path_schema(all),
            rows: PathRows::default(),
            offset_ns,
            tracker: DictionaryTracker::new(false),
            options: IpcWriteOptions::default()
                .try_with_compression(Some(CompressionType::LZ4_FRAME))
                .map_err(|error| encode_error(0, &error))?,
            compression: IpcWriteContext::default(),
            written_bytes: 0,
            written: [0; 2],
            unwritten: [0; 2],
            has_failed: false,
        };
        let head = IpcDataGenerator::default().schema_to_bytes_with_dictionary_tracker(
            &writer.schema,
            &mut writer.tracker,
            &writer.options,
        );
        let mut bytes = Vec::new();
        write_message(&mut bytes, head, &writer.options)
            .map_err(|error| encode_error(0, &error))?;
        // A batch without rows brings the dictionaries, so that a log without packets is whole.
        bytes.extend(writer.encode()?);
        writer.write(&bytes)?;
        Ok(writer)
    }

    /// Adds a row; full batches are written.
    ///
    /// # Errors
    /// [`LogError::Write`] when the file takes no more.
    pub fn push(&mut self, row: Row<'_>) -> Result<(), LogError> {
        self.rows.push(row);
        match self.rows.len() < BATCH_ROWS {
            true => Ok(()),
            false => self.flush(),
        }
    }

    /// Writes the rows that wait, however few.
    ///
    /// # Errors
    /// As [`PathLogWriter::push`].
    pub fn flush(&mut self) -> Result<(), LogError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let counts = self.rows.counts();
        let written = self.encode().and_then(|bytes| self.write(&bytes));
        let sums = if written.is_ok() {
            &mut self.written
        } else {
            &mut self.unwritten
        };
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count;
        }
        written
    }

    /// Flushes, and writes values by key: the account so far.
    ///
    /// # Errors
    /// As [`PathLogWriter::push`].
    pub fn tick(&mut self, values: &[(&str, &str)]) -> Result<(), LogError> {
        self.flush()?;
        // Every column has a bitmap and its values; texts have offsets, too.
        let buffers = COLUMNS
            .iter()
            .map(|column| if column.kind == Kind::Text { 3 } else { 2 })
            .sum();
        let mut bytes = Vec::new();
        batch_head(
            &mut FlatBufferBuilder::new(),
            0,
            &vec![FieldNode::new(0, 0); COLUMNS.len()],
            &vec![Buffer::new(0, 0); buffers],
            // Readers such as polars expect something in each compressed buffer.
            Codec::None,
            values,
            &[],
            &mut bytes,
        );
        self.write(&bytes)
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// As [`PathLogWriter::push`].
    pub fn finish(&mut self) -> Result<(), LogError> {
        self.flush()?;
        self.write(&END_OF_STREAM)
    }

    /// Bytes in the file.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Packets and reads in the file.
    pub fn written(&self) -> [u64; 2] {
        self.written
    }

    /// Packets and reads that were to be written, and are not in the file; those that wait are not counted.
    pub fn unwritten(&self) -> [u64; 2] {
        self.unwritten
    }

    fn encode(&mut self) -> Result<Vec<u8>, LogError> {
        let rows = self.rows.len();
        self.try_encode()
            .map_err(|error| encode_error(rows, &error))
    }

    fn try_encode(&mut self) -> Result<Vec<u8>, ArrowError> {
        let batch = self.rows.take_batch(&self.schema, self.offset_ns)?;
        // As in `tick`.
        let plain = IpcWriteOptions::default();
        let options = match batch.num_rows() {
            0 => &plain,
            _ => &self.options,
        };
        let (dictionaries, data) = IpcDataGenerator::default().encode(
            &batch,
            &mut self.tracker,
            options,
            &mut self.compression,
        )?;
        let mut bytes = Vec::new();
        for message in dictionaries.into_iter().chain([data]) {
            write_message(&mut bytes, message, &self.options)?;
        }
        Ok(bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), LogError> {
        if self.has_failed {
            return Err(self.error(std::io::ErrorKind::StorageFull.into()));
        }
        match self
            .inner
            .write_all(bytes)
            .and_then(|()| self.inner.flush())
        {
            Ok(()) => {
                self.written_bytes += bytes.len() as u64;
                Ok(())
            }
            Err(source) => {
                self.has_failed = true;
                Err(self.error(source))
            }
        }
    }

    fn error(&self, source: std::io::Error) -> LogError {
        LogError::Write {
            written_bytes: self.written_bytes,
            source,
        }
    }
}

fn encode_error(rows: usize, error: &ArrowError) -> LogError {
    LogError::Encode {
        rows,
        reason: error.to_string(),
    }
}
