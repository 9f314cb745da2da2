//! The flow table as an Arrow table, and as the text that a tick carries.

use super::flow::FlowRow;
use super::message_reader::{MessageReader, Step};
use arrow::array::{
    Array, ArrayRef, BooleanArray, PrimitiveArray, StringArray, TimestampNanosecondArray,
    UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow::datatypes::{
    ArrowPrimitiveType, Field, Schema, SchemaRef, TimestampNanosecondType, UInt16Type, UInt32Type,
    UInt64Type,
};
use arrow::error::ArrowError;
use arrow::ipc::CompressionType;
use arrow::ipc::convert::try_fb_to_schema;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow::record_batch::RecordBatch;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::sync::Arc;

/// More in one tick are damage.
const FLOWS_MAX: i64 = 1 << 24;
/// Columns of any table may have so many bytes, compressed ones at most so many for each of theirs.
const ANY_TABLE_BYTES: i64 = 16 << 20;
const BYTES_PER_COMPRESSED_BYTE: i64 = 256;

type Columns = Vec<(&'static str, bool, ArrayRef)>;

fn columns(rows: &[FlowRow]) -> Columns {
    macro_rules! numbers {
        ($array:ident, $field:ident) => {
            (
                stringify!($field),
                false,
                Arc::new($array::from_iter_values(rows.iter().map(|row| row.$field))) as ArrayRef,
            )
        };
    }
    macro_rules! flags {
        ($field:ident) => {
            (
                stringify!($field),
                false,
                Arc::new(BooleanArray::from_iter(
                    rows.iter().map(|row| Some(row.$field)),
                )) as ArrayRef,
            )
        };
    }
    macro_rules! texts {
        ($name:literal, $nullable:literal, |$row:ident| $value:expr) => {
            (
                $name,
                $nullable,
                Arc::new(StringArray::from_iter(rows.iter().map(|$row| $value))) as ArrayRef,
            )
        };
    }
    macro_rules! times {
        ($field:ident) => {
            (
                stringify!($field),
                false,
                Arc::new(
                    TimestampNanosecondArray::from_iter_values(rows.iter().map(|row| row.$field))
                        .with_timezone("UTC"),
                ) as ArrayRef,
            )
        };
    }
    vec![
        numbers!(UInt32Array, flow),
        texts!("local_address", false, |row| Some(
            row.local_address.to_string()
        )),
        numbers!(UInt16Array, local_port),
        texts!("remote_address", false, |row| Some(
            row.remote_address.to_string()
        )),
        numbers!(UInt16Array, remote_port),
        (
            "ip_version",
            false,
            Arc::new(UInt8Array::from_iter_values(
                rows.iter().map(FlowRow::ip_version),
            )),
        ),
        texts!("congestion_control", false, |row| Some(
            row.congestion_control.as_str()
        )),
        numbers!(UInt64Array, socket_cookie),
        numbers!(UInt64Array, cgroup_id),
        texts!("cgroup", true, |row| row.cgroup.as_deref()),
        numbers!(UInt64Array, netns_cookie),
        numbers!(UInt32Array, netns_inode),
        texts!("command", true, |row| row.command.as_deref()),
        (
            "pid",
            true,
            Arc::new(UInt32Array::from_iter(rows.iter().map(|row| row.pid))),
        ),
        numbers!(UInt32Array, uid),
        flags!(passive),
        flags!(began_before),
        numbers!(UInt32Array, mss_clamp_bytes),
        numbers!(UInt32Array, advmss_bytes),
        flags!(sack),
        flags!(timestamps),
        flags!(ecn),
        flags!(window_scaling),
        times!(first_time_ns),
        times!(last_time_ns),
        flags!(ended),
        numbers!(UInt64Array, packets_seen),
        numbers!(UInt64Array, packets_filtered),
        numbers!(UInt64Array, packets_thinned),
        numbers!(UInt64Array, packets_logged),
        numbers!(UInt64Array, packets_dropped),
        numbers!(UInt64Array, packets_overwritten),
        numbers!(UInt64Array, packets_unwritten),
        numbers!(UInt64Array, events_seen),
        numbers!(UInt64Array, events_logged),
        numbers!(UInt64Array, events_dropped),
        numbers!(UInt64Array, events_overwritten),
        numbers!(UInt64Array, events_unwritten),
    ]
}

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

/// The rows of an Arrow batch.
///
/// # Errors
/// [`ArrowError::SchemaError`] when a column is missing or has another type,
/// [`ArrowError::ParseError`] when an address is none.
pub fn flow_rows(batch: &RecordBatch) -> Result<Vec<FlowRow>, ArrowError> {
    macro_rules! columns {
        ($($name:ident: $array:ty),* $(,)?) => {
            $(let $name = column::<$array>(batch, stringify!($name))?;)*
        };
    }
    columns! {
        local_address: StringArray, remote_address: StringArray, congestion_control: StringArray,
        cgroup: StringArray, command: StringArray, pid: UInt32Array,
        passive: BooleanArray, began_before: BooleanArray, sack: BooleanArray, timestamps: BooleanArray,
        ecn: BooleanArray, window_scaling: BooleanArray, ended: BooleanArray,
    }
    let u16s = |name| numbers::<UInt16Type>(batch, name);
    let u32s = |name| numbers::<UInt32Type>(batch, name);
    let u64s = |name| numbers::<UInt64Type>(batch, name);
    let times = |name| numbers::<TimestampNanosecondType>(batch, name);
    let (flow, local_port, remote_port) =
        (u32s("flow")?, u16s("local_port")?, u16s("remote_port")?);
    let (socket_cookie, cgroup_id) = (u64s("socket_cookie")?, u64s("cgroup_id")?);
    let (netns_cookie, netns_inode, uid) =
        (u64s("netns_cookie")?, u32s("netns_inode")?, u32s("uid")?);
    let (mss_clamp_bytes, advmss_bytes) = (u32s("mss_clamp_bytes")?, u32s("advmss_bytes")?);
    let (first_time_ns, last_time_ns) = (times("first_time_ns")?, times("last_time_ns")?);
    let packets_seen = u64s("packets_seen")?;
    let packets_filtered = u64s("packets_filtered")?;
    let packets_thinned = u64s("packets_thinned")?;
    let packets_logged = u64s("packets_logged")?;
    let packets_dropped = u64s("packets_dropped")?;
    let packets_overwritten = u64s("packets_overwritten")?;
    let packets_unwritten = u64s("packets_unwritten")?;
    let events_seen = u64s("events_seen")?;
    let events_logged = u64s("events_logged")?;
    let events_dropped = u64s("events_dropped")?;
    let events_overwritten = u64s("events_overwritten")?;
    let events_unwritten = u64s("events_unwritten")?;
    (0..batch.num_rows())
        .map(|row| {
            Ok(FlowRow {
                flow: flow[row],
                local_address: address(local_address.value(row))?,
                local_port: local_port[row],
                remote_address: address(remote_address.value(row))?,
                remote_port: remote_port[row],
                congestion_control: congestion_control.value(row).to_string(),
                socket_cookie: socket_cookie[row],
                cgroup_id: cgroup_id[row],
                cgroup: cgroup.is_valid(row).then(|| cgroup.value(row).to_string()),
                netns_cookie: netns_cookie[row],
                netns_inode: netns_inode[row],
                command: command
                    .is_valid(row)
                    .then(|| command.value(row).to_string()),
                pid: pid.is_valid(row).then(|| pid.value(row)),
                uid: uid[row],
                passive: passive.value(row),
                began_before: began_before.value(row),
                mss_clamp_bytes: mss_clamp_bytes[row],
                advmss_bytes: advmss_bytes[row],
                sack: sack.value(row),
                timestamps: timestamps.value(row),
                ecn: ecn.value(row),
                window_scaling: window_scaling.value(row),
                first_time_ns: first_time_ns[row],
                last_time_ns: last_time_ns[row],
                ended: ended.value(row),
                packets_seen: packets_seen[row],
                packets_filtered: packets_filtered[row],
                packets_thinned: packets_thinned[row],
                packets_logged: packets_logged[row],
                packets_dropped: packets_dropped[row],
                packets_overwritten: packets_overwritten[row],
                packets_unwritten: packets_unwritten[row],
                events_seen: events_seen[row],
                events_logged: events_logged[row],
                events_dropped: events_dropped[row],
                events_overwritten: events_overwritten[row],
                events_unwritten: events_unwritten[row],
            })
        })
        .collect()
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

/// Holds lengths against the bytes that are there: arrow's reader believes them, and panics or takes memory.
fn check(bytes: &[u8]) -> Result<(), String> {
    let mut messages = MessageReader::new(bytes, String::new());
    while let Step::Message(message) = messages.next_message().map_err(|error| error.to_string())? {
        let head = message.message()?;
        if let Some(schema) = head.header_as_schema() {
            let schema = try_fb_to_schema(schema).map_err(|error| error.to_string())?;
            if schema.fields() != flow_schema().fields() {
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
            let slice = usize::try_from(buffer.offset()).ok().and_then(|start| {
                let length = usize::try_from(buffer.length()).ok()?;
                message.body.get(start..start.checked_add(length)?)
            });
            let slice = slice.ok_or("a buffer reaches beyond the body")?;
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

fn column<'a, T: Array + 'static>(batch: &'a RecordBatch, name: &str) -> Result<&'a T, ArrowError> {
    batch
        .column_by_name(name)
        .and_then(|array| array.as_any().downcast_ref::<T>())
        .ok_or_else(|| {
            ArrowError::SchemaError(format!(
                "flow table: the column {name} is missing or has another type"
            ))
        })
}

fn numbers<'a, T: ArrowPrimitiveType>(
    batch: &'a RecordBatch,
    name: &str,
) -> Result<&'a [T::Native], ArrowError> {
    column::<PrimitiveArray<T>>(batch, name).map(|array| array.values().as_ref())
}

fn address(text: &str) -> Result<std::net::IpAddr, ArrowError> {
    text.parse()
        .map_err(|_| ArrowError::ParseError(format!("flow table: {text:?} is no IP address")))
}
