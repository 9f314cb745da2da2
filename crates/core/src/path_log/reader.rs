//! Reads a path log that may come from anywhere: every length, number and text is checked before a reader sees it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::ipc::convert::try_fb_to_schema;
use arrow::ipc::reader::{read_dictionary, read_record_batch};
use arrow::ipc::{BodyCompressionMethod, CompressionType, RecordBatch as BatchHead};
use arrow::record_batch::RecordBatch;

use crate::input_file::open_regular;
use crate::tcp_log::LogError;
use crate::tcp_log::message::buffer_bytes;
use crate::tcp_log::message_reader::{MessageReader, RawMessage, Step};

/// More columns or rows than these are damage: the writer makes 57, and batches of 8,192.
const COLUMNS_MAX: usize = 1024;
const ROWS_MAX: i64 = 1 << 17;
const NAMES_MAX: i64 = 1 << 8;
/// Longest value of fixed size, and all texts of a batch.
const WIDTH_MAX_BYTES: i32 = 64;
const TEXT_MAX_BYTES: u64 = 16 << 20;
/// Other writers pad buffers to so many bytes.
const PADDING_BYTES: u64 = 64;
/// A file may expand to so many times its size, and so many bytes more; the rows of 60,000 equal packets expand 14 times.
const EXPANSION_MAX: u64 = 32;
const EXPANSION_FREE_BYTES: u64 = 32 << 20;
const PREFIX_BYTES: usize = 8;

/// A path log that is being read: an iterator over its record batches. A log that was cut ends with its last whole batch.
pub struct PathLogReader<R: Read> {
    messages: MessageReader<R>,
    schema: SchemaRef,
    dictionaries: HashMap<i64, ArrayRef>,
    expanded_bytes: u64,
    has_ended: bool,
}

/// The value of `parshall.format` of an Arrow stream; `None` for a file of another kind.
///
/// # Errors
/// [`LogError::Read`].
pub fn stream_format(path: &Path) -> Result<Option<String>, LogError> {
    match PathLogReader::open(path) {
        Ok(reader) => Ok(reader.schema.metadata().get("parshall.format").cloned()),
        Err(LogError::NotAPathLog { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl PathLogReader<File> {
    /// Opens a file, and reads its head.
    ///
    /// # Errors
    /// [`LogError::Read`], and [`LogError::NotAPathLog`] when it is no Arrow stream.
    pub fn open(path: &Path) -> Result<Self, LogError> {
        let name = path.display().to_string();
        let file = open_regular(path).map_err(|source| LogError::Read {
            path: name.clone(),
            source,
        })?;
        Self::new(file, name)
    }
}

impl<R: Read> PathLogReader<R> {
    /// Reads the head of a log; `path` names it in errors.
    fn new(inner: R, path: String) -> Result<Self, LogError> {
        let mut messages = MessageReader::new(inner, path.clone());
        let schema = match messages.next_message() {
            Err(error @ LogError::Read { .. }) => return Err(error),
            Ok(Step::Message(raw)) => schema_of(&raw),
            _ => None,
        };
        Ok(Self {
            messages,
            schema: schema.ok_or(LogError::NotAPathLog { path })?,
            dictionaries: HashMap::new(),
            expanded_bytes: 0,
            has_ended: false,
        })
    }

    /// The schema of the batches, with the metadata of the file.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// Refuses columns of types that no path log has: their checks are not made here.
    ///
    /// # Errors
    /// [`LogError::Corrupt`].
    pub fn check_columns(&self) -> Result<(), LogError> {
        let fields = self.schema.fields();
        if fields.len() > COLUMNS_MAX {
            return Err(self
                .messages
                .corrupt(0, &format!("it has {} columns", fields.len())));
        }
        match fields
            .iter()
            .find(|field| buffers_of(field.data_type(), 0).is_none())
        {
            None => Ok(()),
            Some(field) => {
                let reason = format!("column {} has the type {}", field.name(), field.data_type());
                Err(self.messages.corrupt(0, &reason))
            }
        }
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, LogError> {
        while !self.has_ended {
            let Step::Message(raw) = self.messages.next_message()? else {
                break;
            };
            let decoded = catch_unwind(AssertUnwindSafe(|| self.rows_of(&raw)));
            match decoded.unwrap_or_else(|_| Err("the library cannot decode it".into())) {
                Ok(Some(batch)) => return Ok(Some(batch)),
                Ok(None) => {}
                // At the end of the file it is a cut.
                Err(reason) => {
                    self.messages.damaged(raw.at_byte, reason)?;
                    break;
                }
            }
        }
        self.has_ended = true;
        Ok(None)
    }

    fn rows_of(&mut self, raw: &RawMessage) -> Result<Option<RecordBatch>, String> {
        let message = raw.message()?;
        let allowed_bytes = EXPANSION_MAX * self.messages.at_byte() + EXPANSION_FREE_BYTES;
        let in_words = |error: arrow::error::ArrowError| error.to_string();
        if let Some(dictionary) = message.header_as_dictionary_batch() {
            let names = dictionary.data().ok_or("a dictionary without data")?;
            let count = names.length();
            if dictionary.isDelta() || !(0..=NAMES_MAX).contains(&count) {
                return Err(format!("a dictionary of {count} names, or a part of one"));
            }
            if count == 0 {
                let none: ArrayRef = Arc::new(StringArray::from(Vec::<&str>::new()));
                self.dictionaries.insert(dictionary.id(), none);
                return Ok(None);
            }
            checked_bytes(names, &raw.body, &[DataType::Utf8], count)?;
            let body = Buffer::from(raw.body.as_slice());
            let known = &mut self.dictionaries;
            read_dictionary(&body, dictionary, &self.schema, known, &message.version())
                .map_err(in_words)?;
            return Ok(None);
        }
        let head = message
            .header_as_record_batch()
            .ok_or("neither rows nor a tick")?;
        if head.length() == 0 {
            return Ok(None);
        }
        if !(0..=ROWS_MAX).contains(&head.length()) {
            return Err(format!("{} rows", head.length()));
        }
        let fields = self.schema.fields();
        let types: Vec<DataType> = fields
            .iter()
            .map(|field| field.data_type().clone())
            .collect();
        self.expanded_bytes += checked_bytes(head, &raw.body, &types, head.length())?;
        if self.expanded_bytes > allowed_bytes {
            return Err(format!(
                "its rows expand to more than {EXPANSION_MAX} times the file"
            ));
        }
        let body = Buffer::from(raw.body.as_slice());
        let version = message.version();
        read_record_batch(
            &body,
            head,
            self.schema.clone(),
            &self.dictionaries,
            None,
            &version,
        )
        .map(Some)
        .map_err(in_words)
    }
}

/// What the ticks of a log say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The last ledger, as text.
    pub ledger: Option<String>,
    /// Whether the log was ended in order.
    pub is_final: bool,
    /// Windows in which the programs were attached: from and until, ns. Empty, if they always were.
    pub windows: Vec<[i64; 2]>,
}

impl<R: Read + Seek> PathLogReader<R> {
    /// What the ticks say. Reads the heads of what is left only, up to the first damage.
    ///
    /// # Errors
    /// [`LogError::Read`].
    pub fn account(mut self) -> Result<Account, LogError> {
        let file_bytes = self.messages.file_bytes()?;
        let mut account = Account::default();
        loop {
            let raw = match self.messages.next_head(file_bytes) {
                Ok(Step::Message(raw)) => raw,
                Err(error @ LogError::Read { .. }) => return Err(error),
                _ => return Ok(account),
            };
            let values = raw.values().unwrap_or_default();
            let value = |name: &str| {
                values
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| *value)
            };
            if let Some(text) = value("parshall.ledger") {
                account.ledger = Some(text.to_owned());
                account.is_final = value("parshall.final") == Some("true");
            }
            let windows = value("parshall.windows").map(serde_json::from_str::<Vec<[i64; 2]>>);
            match windows {
                Some(Ok(windows)) => account.windows.extend(windows),
                Some(Err(_)) => return Ok(account),
                None => {}
            }
        }
    }
}

impl<R: Read> Iterator for PathLogReader<R> {
    type Item = Result<RecordBatch, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        let result = self.next_batch();
        if result.is_err() {
            self.has_ended = true;
        }
        result.transpose()
    }
}

fn schema_of(raw: &RawMessage) -> Option<SchemaRef> {
    let message = raw.message().ok()?;
    let schema = message.header_as_schema()?;
    let read = catch_unwind(AssertUnwindSafe(|| try_fb_to_schema(schema).ok()));
    read.ok().flatten().map(Arc::new)
}

/// What a buffer must hold.
#[derive(Clone, Copy)]
enum Needed {
    Bytes(u64),
    Text,
}

/// The buffers of a column behind its bitmap; `None` for a type that no path log has.
fn buffers_of(data_type: &DataType, rows: u64) -> Option<Vec<Needed>> {
    let fixed = |width: u64| Some(vec![Needed::Bytes(rows * width)]);
    match data_type {
        DataType::Boolean => Some(vec![Needed::Bytes(rows.div_ceil(8))]),
        DataType::FixedSizeBinary(width) if (1..=WIDTH_MAX_BYTES).contains(width) => {
            fixed(*width as u64)
        }
        DataType::Dictionary(key, value)
            if **key == DataType::Int8 && **value == DataType::Utf8 =>
        {
            fixed(1)
        }
        DataType::Utf8 => Some(vec![Needed::Bytes(4 * (rows + 1)), Needed::Text]),
        DataType::Dictionary(..) => None,
        other => other
            .primitive_width()
            .and_then(|width| fixed(width as u64)),
    }
}

/// Bytes to which the buffers of a batch expand. The library trusts these lengths.
fn checked_bytes(
    head: BatchHead<'_>,
    body: &[u8],
    types: &[DataType],
    rows: i64,
) -> Result<u64, String> {
    let is_compressed = match head.compression() {
        None => false,
        Some(how)
            if how.method() == BodyCompressionMethod::BUFFER
                && [CompressionType::LZ4_FRAME, CompressionType::ZSTD].contains(&how.codec()) =>
        {
            true
        }
        Some(_) => return Err("its rows are compressed by something else than lz4 or zstd".into()),
    };
    let (Some(nodes), Some(buffers)) = (head.nodes(), head.buffers()) else {
        return Err("it lists no columns".into());
    };
    let mut left = buffers.iter();
    let mut next = || -> Result<u64, String> {
        let buffer = left.next().ok_or("a column without its buffers")?;
        let bytes = buffer_bytes(body, buffer).ok_or("a buffer reaches beyond the body")?;
        match bytes.split_first_chunk::<PREFIX_BYTES>() {
            _ if !is_compressed || bytes.is_empty() => Ok(bytes.len() as u64),
            None => Err("a buffer without its length".into()),
            Some((prefix, data)) => match i64::from_le_bytes(*prefix) {
                -1 => Ok(data.len() as u64),
                claimed => {
                    u64::try_from(claimed).map_err(|_| format!("a buffer of {claimed} bytes"))
                }
            },
        }
    };
    if nodes.len() != types.len() {
        return Err(format!(
            "it has {} columns, expected {}",
            nodes.len(),
            types.len()
        ));
    }
    let count = rows.unsigned_abs();
    let mut all_bytes = 0;
    for (node, data_type) in nodes.iter().zip(types) {
        if node.length() != rows || !(0..=rows).contains(&node.null_count()) {
            return Err(format!(
                "a column of {} rows, expected {rows}",
                node.length()
            ));
        }
        let bitmap = next()?;
        let bitmap_needed = count.div_ceil(8);
        let is_absent = node.null_count() == 0 && bitmap == 0;
        if !is_absent && !(bitmap_needed..=bitmap_needed + PADDING_BYTES).contains(&bitmap) {
            return Err(format!(
                "a bitmap of {bitmap} bytes, expected {bitmap_needed}"
            ));
        }
        all_bytes += bitmap;
        for needed in buffers_of(data_type, count).ok_or("a column of another type")? {
            let found = next()?;
            let (least, most) = match needed {
                Needed::Bytes(bytes) => (bytes, bytes + PADDING_BYTES),
                Needed::Text => (0, TEXT_MAX_BYTES),
            };
            if !(least..=most).contains(&found) {
                return Err(format!("a buffer of {found} bytes, expected {least}"));
            }
            all_bytes += found;
        }
    }
    Ok(all_bytes)
}
