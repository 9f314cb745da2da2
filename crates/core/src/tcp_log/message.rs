//! Messages of an Arrow IPC stream: marker, length, flatbuffer, body.
//!
//! arrow's writer cannot add custom metadata to a batch, and compresses constant columns in every batch.

use super::compression::Codec;
use super::error::LogError;
use super::schema::{dictionaries, record_schema_with};
use arrow::array::{ArrayRef, DictionaryArray, new_empty_array};
use arrow::datatypes::{DataType, Int8Type};
use arrow::error::ArrowError;
use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions, write_message};
use arrow::ipc::{
    BodyCompressionBuilder, BodyCompressionMethod, Buffer, CompressionType, FieldNode,
    KeyValueBuilder, MessageBuilder, MessageHeader, MetadataVersion, RecordBatchBuilder,
};
use arrow::record_batch::RecordBatch;
use flatbuffers::FlatBufferBuilder;
use std::collections::HashMap;
use std::sync::Arc;

pub const CONTINUATION: [u8; 4] = [0xff; 4];
pub const END_OF_STREAM: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
/// Buffers of a body start at multiples of this.
pub const BODY_ALIGN_BYTES: usize = 8;

/// Metadata keys of a message.
pub const KEY_CRC32: &str = "parshall.crc32";
/// The flows that are new or changed: base64 of an Arrow stream.
pub const KEY_FLOWS: &str = "parshall.flows";
/// The listeners that are new or changed, as JSON.
pub const KEY_LISTENERS: &str = "parshall.listeners";
/// Changes of the thinning, as JSON.
pub const KEY_THINNING: &str = "parshall.thinning";
/// The ledger so far, as JSON.
pub const KEY_LEDGER: &str = "parshall.ledger";
/// `"true"` on the last tick of a complete log.
pub const KEY_FINAL: &str = "parshall.final";

/// CRC-32 (as in zlib) of a message: the row count as 8 bytes little-endian, the values of the other metadata
/// keys in the order of the message, the body.
pub fn checksum(rows: u64, values: &[(&str, &str)], body: &[u8]) -> String {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&rows.to_le_bytes());
    for (_, value) in values {
        hasher.update(value.as_bytes());
    }
    hasher.update(body);
    format!("{:08x}", hasher.finalize())
}

/// The bytes of a buffer in a body; `None` if it reaches beyond the body.
pub fn buffer_bytes<'b>(body: &'b [u8], buffer: &Buffer) -> Option<&'b [u8]> {
    let start = usize::try_from(buffer.offset()).ok()?;
    let length = usize::try_from(buffer.length()).ok()?;
    body.get(start..start.checked_add(length)?)
}

/// Appends a record batch message without its body to `out`.
#[allow(clippy::too_many_arguments)]
pub fn batch_head(
    builder: &mut FlatBufferBuilder<'static>,
    rows: usize,
    nodes: &[FieldNode],
    buffers: &[Buffer],
    codec: Codec,
    values: &[(&str, &str)],
    body: &[u8],
    out: &mut Vec<u8>,
) {
    builder.reset();
    let crc = checksum(rows as u64, values, body);
    let pairs: Vec<_> = values
        .iter()
        .copied()
        .chain([(KEY_CRC32, crc.as_str())])
        .map(|(key, value)| {
            let key = builder.create_string(key);
            let value = builder.create_string(value);
            let mut pair = KeyValueBuilder::new(builder);
            pair.add_key(key);
            pair.add_value(value);
            pair.finish()
        })
        .collect();
    let custom_metadata = builder.create_vector(&pairs);
    let codec = match codec {
        Codec::Lz4 => Some(CompressionType::LZ4_FRAME),
        Codec::Zstd => Some(CompressionType::ZSTD),
        Codec::None => None,
    };
    let compression = codec.map(|codec| {
        let mut compression = BodyCompressionBuilder::new(builder);
        compression.add_method(BodyCompressionMethod::BUFFER);
        compression.add_codec(codec);
        compression.finish()
    });
    let nodes = builder.create_vector(nodes);
    let buffers = builder.create_vector(buffers);
    let mut batch = RecordBatchBuilder::new(builder);
    batch.add_length(rows as i64);
    batch.add_nodes(nodes);
    batch.add_buffers(buffers);
    if let Some(compression) = compression {
        batch.add_compression(compression);
    }
    let batch = batch.finish();
    let mut message = MessageBuilder::new(builder);
    message.add_version(MetadataVersion::V5);
    message.add_header_type(MessageHeader::RecordBatch);
    message.add_header(batch.as_union_value());
    message.add_bodyLength(body.len() as i64);
    message.add_custom_metadata(custom_metadata);
    let message = message.finish();
    builder.finish(message, None);

    let metadata = builder.finished_data();
    let padded_bytes = metadata.len().next_multiple_of(BODY_ALIGN_BYTES);
    out.extend_from_slice(&CONTINUATION);
    out.extend_from_slice(&(padded_bytes as i32).to_le_bytes());
    out.extend_from_slice(metadata);
    out.resize(out.len() + padded_bytes - metadata.len(), 0);
}

/// The start of a stream: the schema with the file's metadata, and the constant dictionaries.
pub fn stream_start(metadata: HashMap<String, String>) -> Result<Vec<u8>, LogError> {
    start(metadata).map_err(|error| LogError::Encode {
        rows: 0,
        reason: error.to_string(),
    })
}

fn start(metadata: HashMap<String, String>) -> Result<Vec<u8>, ArrowError> {
    let schema = record_schema_with(metadata);
    let options = IpcWriteOptions::default();
    let mut tracker = DictionaryTracker::new(true);
    let generator = IpcDataGenerator::default();
    let mut out = Vec::new();
    let head = generator.schema_to_bytes_with_dictionary_tracker(&schema, &mut tracker, &options);
    write_message(&mut out, head, &options)?;

    // A batch without rows makes arrow encode the dictionaries; the batch itself is not needed.
    let columns: Vec<ArrayRef> = schema
        .fields()
        .iter()
        .zip(dictionaries())
        .map(|(field, names)| match (names, field.data_type()) {
            (Some(names), DataType::Dictionary(..)) => {
                let keys = arrow::array::PrimitiveArray::<Int8Type>::from(Vec::<i8>::new());
                DictionaryArray::try_new(keys, names).map(|array| Arc::new(array) as ArrayRef)
            }
            (_, data_type) => Ok(new_empty_array(data_type)),
        })
        .collect::<Result<_, _>>()?;
    let batch = RecordBatch::try_new(schema, columns)?;
    let (dictionaries, _) =
        generator.encode(&batch, &mut tracker, &options, &mut Default::default())?;
    for dictionary in dictionaries {
        write_message(&mut out, dictionary, &options)?;
    }
    Ok(out)
}
