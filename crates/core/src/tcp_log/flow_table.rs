//! The flow table as an Arrow table, and as the text of a tick.

use super::columns::ENDING_NAMES;
use super::flow::{FlowRow, flow_columns};
use super::message::buffer_bytes;
use super::message_reader::{MessageReader, Step};
use arrow::array::{
    Array, ArrayRef, BooleanArray, StringArray, TimestampNanosecondArray, UInt8Array, UInt16Array,
    UInt32Array, UInt64Array,
};
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::CompressionType;
use arrow::ipc::convert::try_fb_to_schema;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow::record_batch::RecordBatch;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::net::IpAddr;
use std::sync::Arc;

/// Maximum number of flows in a tick: more are damage.
const FLOWS_MAX: i64 = 1 << 24;
/// The last column of version 1.0. Each version has the columns of those before it and more; what a log lacks is null.
const LAST_OF_OLDEST: &str = "events_unwritten";
/// Maximum bytes of the columns of any table; beyond that, for each compressed byte.
const ANY_TABLE_BYTES: i64 = 16 << 20;
const BYTES_PER_COMPRESSED_BYTE: i64 = 256;

/// A type of the flow table's columns: how it becomes an Arrow array, and back.
trait Cell: Sized {
    type Array: Array + 'static;
    const IS_NULLABLE: bool;
    fn array<'a>(values: impl Iterator<Item = &'a Self>) -> ArrayRef
    where
        Self: 'a;
    fn read(array: &Self::Array, row: usize) -> Result<Self, ArrowError>;
}

macro_rules! cells {
    ($($type:ty, $array:ty, nullable $is_nullable:literal:
        |$value:ident| $write:expr, |$from:ident, $row:ident| $read:expr;)*) => {$(
        impl Cell for $type {
            type Array = $array;
            const IS_NULLABLE: bool = $is_nullable;

            fn array<'a>(values: impl Iterator<Item = &'a Self>) -> ArrayRef {
                Arc::new(values.map(|$value| $write).collect::<$array>())
            }

            fn read($from: &$array, $row: usize) -> Result<Self, ArrowError> {
                Ok($read)
            }
        }
    )*};
}

cells! {
    u16, UInt16Array, nullable false: |value| Some(*value), |array, row| array.value(row);
    u32, UInt32Array, nullable false: |value| Some(*value), |array, row| array.value(row);
    u64, UInt64Array, nullable false: |value| Some(*value), |array, row| array.value(row);
    bool, BooleanArray, nullable false: |value| Some(*value), |array, row| array.value(row);
    IpAddr, StringArray, nullable false:
        |value| Some(value.to_string()), |array, row| address(array.value(row))?;
    String, StringArray, nullable false:
        |value| Some(value.as_str()), |array, row| array.value(row).to_owned();
    Option<String>, StringArray, nullable true:
        |value| value.as_deref(), |array, row| array.is_valid(row).then(|| array.value(row).to_owned());
    Option<u32>, UInt32Array, nullable true:
        |value| *value, |array, row| array.is_valid(row).then(|| array.value(row));
    Option<u64>, UInt64Array, nullable true:
        |value| *value, |array, row| array.is_valid(row).then(|| array.value(row));
    Option<bool>, BooleanArray, nullable true:
        |value| *value, |array, row| array.is_valid(row).then(|| array.value(row));
    Option<&'static str>, StringArray, nullable true:
        |value| *value, |array, row| array.is_valid(row).then(|| ending(array.value(row))).transpose()?;
}

/// Only times are signed.
impl Cell for i64 {
    type Array = TimestampNanosecondArray;
    const IS_NULLABLE: bool = false;

    fn array<'a>(values: impl Iterator<Item = &'a Self>) -> ArrayRef {
        let array = TimestampNanosecondArray::from_iter_values(values.copied());
        Arc::new(array.with_timezone("UTC"))
    }

    fn read(array: &TimestampNanosecondArray, row: usize) -> Result<Self, ArrowError> {
        Ok(array.value(row))
    }
}

type Columns = Vec<(&'static str, bool, ArrayRef)>;

macro_rules! columns {
    (|$record:ident, $flag:ident, $time_ns:ident|
        $($(#[$doc:meta])* $name:ident: $type:ty => $value:expr;)*) => {
        fn columns(rows: &[FlowRow]) -> Columns {
            let mut columns: Columns = vec![$((
                stringify!($name),
                <$type>::IS_NULLABLE,
                <$type>::array(rows.iter().map(|row| &row.$name)),
            ),)*];
            let versions = UInt8Array::from_iter_values(rows.iter().map(FlowRow::ip_version));
            // Behind the addresses and ports.
            columns.insert(5, ("ip_version", false, Arc::new(versions)));
            columns
        }

        /// The rows of an Arrow batch.
        ///
        /// # Errors
        /// [`ArrowError::SchemaError`] when a column that may not be null is missing, or one has another type,
        /// [`ArrowError::ParseError`] when an address is invalid.
        pub fn flow_rows(batch: &RecordBatch) -> Result<Vec<FlowRow>, ArrowError> {
            let unknown = FlowRow::default();
            $(let $name = column::<<$type as Cell>::Array>(batch, stringify!($name), <$type>::IS_NULLABLE)?;)*
            (0..batch.num_rows())
                .map(|row| Ok(FlowRow {
                    $($name: match $name {
                        Some(column) => <$type>::read(column, row)?,
                        None => unknown.$name.clone(),
                    },)*
                }))
                .collect()
        }
    };
}

flow_columns!(columns);

/// The schema of the flow table.
pub fn flow_schema() -> SchemaRef {
    schema_of(&columns(&[]))
}

fn schema_of(columns: &Columns) -> SchemaRef {
    let fields = columns
        .iter()
        .map(|(name, nullable, array)| Field::new(*name, array.data_type().clone(), *nullable));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The rows as an Arrow batch.
///
/// # Errors
/// None in practice: the columns follow from the rows.
pub fn flow_batch(rows: &[FlowRow]) -> Result<RecordBatch, ArrowError> {
    let columns = columns(rows);
    RecordBatch::try_new(
        schema_of(&columns),
        columns.into_iter().map(|(.., array)| array).collect(),
    )
}

/// The text of the rows for a tick: base64 of an Arrow stream.
pub fn encode_flows(rows: &[FlowRow]) -> Result<String, ArrowError> {
    let batch = flow_batch(rows)?;
    let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD))?;
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options)?;
    writer.write(&batch)?;
    Ok(BASE64.encode(writer.into_inner()?))
}

/// The rows of a tick's text.
pub fn decode_flows(text: &str) -> Result<Vec<FlowRow>, ArrowError> {
    let bytes = BASE64
        .decode(text)
        .map_err(|error| ArrowError::ParseError(format!("flow table: {error}")))?;
    check(&bytes).map_err(|reason| ArrowError::IpcError(format!("flow table: {reason}")))?;
    let mut rows = Vec::new();
    for batch in StreamReader::try_new(bytes.as_slice(), None)? {
        rows.extend(flow_rows(&batch?)?);
    }
    Ok(rows)
}

/// Compares lengths with the bytes present: arrow's reader trusts them, and panics or allocates.
fn check(bytes: &[u8]) -> Result<(), String> {
    let mut messages = MessageReader::new(bytes, String::new());
    while let Step::Message(message) = messages.next_message().map_err(|error| error.to_string())? {
        let head = message.message()?;
        if let Some(schema) = head.header_as_schema() {
            let schema = try_fb_to_schema(schema).map_err(|error| error.to_string())?;
            let (known, found) = (flow_schema(), schema.fields());
            let is_whole = found.iter().any(|field| field.name() == LAST_OF_OLDEST);
            if !is_whole || !known.fields().starts_with(found) {
                return Err("its columns are not those of the format".into());
            }
        }
        let Some(batch) = head.header_as_record_batch() else {
            continue;
        };
        let rows = batch.length();
        if !(0..=FLOWS_MAX).contains(&rows) {
            return Err(format!("{rows} rows"));
        }
        if batch
            .nodes()
            .into_iter()
            .flatten()
            .any(|node| node.length() != rows || !(0..=rows).contains(&node.null_count()))
        {
            return Err("columns of several lengths".into());
        }
        let mut left_bytes =
            ANY_TABLE_BYTES.max(message.body.len() as i64 * BYTES_PER_COMPRESSED_BYTE);
        for buffer in batch.buffers().into_iter().flatten() {
            let slice =
                buffer_bytes(&message.body, buffer).ok_or("a buffer reaches beyond the body")?;
            let claimed = slice
                .first_chunk()
                .map_or(0, |bytes| i64::from_le_bytes(*bytes));
            if batch.compression().is_some() {
                if !(-1..=left_bytes).contains(&claimed) {
                    return Err(format!("a buffer that claims {claimed} bytes"));
                }
                left_bytes -= claimed.max(0);
            }
        }
    }
    Ok(())
}

/// A column; `None`: it may be null and is not there.
fn column<'a, T: Array + 'static>(
    batch: &'a RecordBatch,
    name: &str,
    is_nullable: bool,
) -> Result<Option<&'a T>, ArrowError> {
    let found = batch.column_by_name(name);
    if found.is_none() && is_nullable {
        return Ok(None);
    }
    found
        .and_then(|array| array.as_any().downcast_ref::<T>())
        .map(Some)
        .ok_or_else(|| {
            ArrowError::SchemaError(format!(
                "flow table: the column {name} is missing or has another type"
            ))
        })
}

fn ending(text: &str) -> Result<&'static str, ArrowError> {
    let mut names = ENDING_NAMES.iter().copied();
    names.find(|name| *name == text).ok_or_else(|| {
        ArrowError::ParseError(format!("flow table: {text:?} is no ending of a connection"))
    })
}

fn address(text: &str) -> Result<IpAddr, ArrowError> {
    text.parse()
        .map_err(|_| ArrowError::ParseError(format!("flow table: {text:?} is no IP address")))
}

#[cfg(test)]
mod tests {
    use super::super::testing::flow;
    use super::*;

    #[test]
    fn flow_tables_of_older_versions_have_nulls() {
        let row = FlowRow {
            ending: Some("fin"),
            fin_sent: Some(true),
            retransmits_total: Some(7),
            bytes_acked: Some(5 << 32),
            ..flow(1)
        };
        let batch = flow_batch(std::slice::from_ref(&row)).unwrap();
        let columns = batch.num_columns();
        let read = |columns: usize| {
            let of_older = batch.project(&(0..columns).collect::<Vec<_>>()).unwrap();
            let mut writer = StreamWriter::try_new(Vec::new(), &of_older.schema()).unwrap();
            writer.write(&of_older).unwrap();
            decode_flows(&BASE64.encode(writer.into_inner().unwrap()))
                .map(|mut rows| rows.remove(0))
        };
        assert_eq!(read(columns).unwrap(), row);
        let of_1_6 = FlowRow {
            bytes_acked: None,
            ..row
        };
        assert_eq!(read(columns - 2).unwrap(), of_1_6);
        let of_1_3 = FlowRow {
            ending: None,
            fin_sent: None,
            ..of_1_6
        };
        assert_eq!(read(columns - 7).unwrap(), of_1_3);
        let of_1_0 = FlowRow {
            retransmits_total: None,
            ..of_1_3
        };
        assert_eq!(read(columns - 13).unwrap(), of_1_0);
        read(columns - 14).unwrap_err();
    }
}
