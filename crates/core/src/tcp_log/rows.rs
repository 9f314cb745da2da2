//! Decodes the body of a record batch message into arrays. Every length is compared with the schema before memory is
//! allocated.

use super::columns::{COLUMNS, Column, Kind};
use super::compression::{Codec, PREFIX_BYTES};
use super::message::{BODY_ALIGN_BYTES, buffer_bytes};
use super::schema::{data_type, dictionaries, is_of_events};
use crate::abi::EVENT_PACKET;
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, DictionaryArray, Int8Array, PrimitiveArray,
    TimestampNanosecondArray, new_null_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowPrimitiveType, Int8Type, Schema, SchemaRef, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::ipc::{BodyCompressionMethod, CompressionType, RecordBatch as BatchHead};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use lz4_flex::frame::FrameDecoder;
use std::io::Read;
use std::sync::Arc;
use zstd::bulk::Decompressor;

/// More rows than this in a batch are damage: the writer makes batches of 8,192.
const ROWS_MAX: i64 = 1 << 17;

/// The column of the kind of a row, which is before those of events.
const EVENT: &str = "event";

pub struct RowDecoder {
    schema: SchemaRef,
    /// The [`COLUMNS`] that the file has.
    present: Vec<bool>,
    /// The [`COLUMNS`] that the batches have.
    wanted: Vec<bool>,
    /// Those of them that are null in batches without events.
    of_events: Vec<bool>,
    dictionaries: Vec<Option<ArrayRef>>,
    decompressor: Decompressor<'static>,
}

impl RowDecoder {
    /// For the schemas of the file and of the batches (with the metadata of the file). Both have some of
    /// [`COLUMNS`], in that order.
    pub fn new(file: &Schema, schema: SchemaRef) -> std::io::Result<Self> {
        let among = |schema: &Schema| {
            let is_there = |column: &Column| schema.column_with_name(column.name).is_some();
            COLUMNS.iter().map(is_there).collect()
        };
        let is_of_events = |column: &Column| {
            let found = schema.column_with_name(column.name);
            found.is_some_and(|(_, field)| is_of_events(field))
        };
        Ok(Self {
            present: among(file),
            wanted: among(&schema),
            of_events: COLUMNS.iter().map(is_of_events).collect(),
            schema,
            dictionaries: dictionaries(),
            decompressor: Decompressor::new()?,
        })
    }

    /// The rows of a message; the error describes the fault.
    pub fn decode(&mut self, head: BatchHead<'_>, body: &[u8]) -> Result<RecordBatch, String> {
        let rows = row_count(head)?;
        let codec = codec_of(head)?;
        let (Some(nodes), Some(buffers)) = (head.nodes(), head.buffers()) else {
            return Err("it lists no columns".into());
        };
        let present = self.present.iter().filter(|is_there| **is_there).count();
        if nodes.len() != present || buffers.len() != 2 * present {
            return Err(format!(
                "it has {} columns, expected {present}",
                nodes.len()
            ));
        }
        // Two compressed buffers may have the same length, so that a damaged offset finds the values of another column.
        if !are_adjacent(buffers.iter(), body) {
            return Err("its buffers do not follow each other".into());
        }
        let mut places = 0..present;
        // Where the kind of the rows is not read, they are taken to be of any.
        let mut has_events = true;
        let mut arrays = Vec::with_capacity(self.schema.fields().len());
        for (index, column) in COLUMNS.iter().enumerate() {
            let place = if self.present[index] {
                places.next()
            } else {
                None
            };
            if !self.wanted[index] {
                continue;
            }
            let Some(place) = place.filter(|_| has_events || !self.of_events[index]) else {
                arrays.push(self.nulls(index, column, rows)?);
                continue;
            };
            let in_column = |reason: String| format!("column {}: {reason}", column.name);
            if nodes.get(place).length() != rows as i64 {
                return Err(in_column(format!(
                    "{} rows, expected {rows}",
                    nodes.get(place).length()
                )));
            }
            let slice = |buffer: &arrow::ipc::Buffer| {
                buffer_bytes(body, buffer)
                    .ok_or_else(|| "a buffer reaches beyond the body".to_string())
            };
            let validity = slice(buffers.get(2 * place)).map_err(in_column)?;
            let values = slice(buffers.get(2 * place + 1)).map_err(in_column)?;
            let nulls = if validity.is_empty() {
                None
            } else {
                let bits = self
                    .decompress(validity, codec, rows.div_ceil(8))
                    .map_err(in_column)?;
                Some(NullBuffer::new(BooleanBuffer::new(bits, 0, rows)))
            };
            if nulls.is_some() && column.null_from.is_none() {
                return Err(in_column("nulls, where none can be".into()));
            }
            let array =
                (self.array(index, column, rows, values, codec, nulls)).map_err(in_column)?;
            if column.name == EVENT {
                has_events = are_there_events(&array);
            }
            arrays.push(array);
        }
        // Without columns, the number of rows must be set.
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.schema.clone(), arrays, &options)
            .map_err(|error| error.to_string())
    }

    /// A column that the file lacks.
    fn nulls(&self, index: usize, column: &Column, rows: usize) -> Result<ArrayRef, String> {
        match &self.dictionaries[index] {
            Some(names) => names_array(Int8Array::new_null(rows), names),
            None => Ok(new_null_array(&data_type(column.kind), rows)),
        }
    }

    fn array(
        &mut self,
        index: usize,
        column: &Column,
        rows: usize,
        values: &[u8],
        codec: Codec,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef, String> {
        let bytes = if column.kind == Kind::Bool {
            rows.div_ceil(8)
        } else {
            rows * column.kind.width_bytes()
        };
        let values = self.decompress(values, codec, bytes)?;
        Ok(match column.kind {
            Kind::TimestampNs => Arc::new(
                TimestampNanosecondArray::new(ScalarBuffer::new(values, 0, rows), nulls)
                    .with_timezone("UTC"),
            ),
            Kind::U8 => numbers::<UInt8Type>(values, rows, nulls),
            Kind::U16 => numbers::<UInt16Type>(values, rows, nulls),
            Kind::U32 => numbers::<UInt32Type>(values, rows, nulls),
            Kind::U64 => numbers::<UInt64Type>(values, rows, nulls),
            Kind::Bool => Arc::new(BooleanArray::new(
                BooleanBuffer::new(values, 0, rows),
                nulls,
            )),
            Kind::Names(_) => {
                let names = self.dictionaries[index].as_ref().ok_or("no names")?;
                names_array(
                    Int8Array::new(ScalarBuffer::new(values, 0, rows), nulls),
                    names,
                )?
            }
        })
    }

    /// A buffer of the body, which must hold exactly `bytes` bytes.
    pub(super) fn decompress(
        &mut self,
        buffer: &[u8],
        codec: Codec,
        bytes: usize,
    ) -> Result<Buffer, String> {
        let exactly = |found: usize| match found == bytes {
            true => Ok(()),
            false => Err(format!("{found} bytes, expected {bytes}")),
        };
        if codec == Codec::None {
            exactly(buffer.len())?;
            return Ok(Buffer::from(buffer));
        }
        let (prefix, data) = buffer
            .split_first_chunk::<PREFIX_BYTES>()
            .ok_or("a buffer without its length")?;
        let claimed = i64::from_le_bytes(*prefix);
        if claimed == -1 {
            exactly(data.len())?;
            return Ok(Buffer::from(data));
        }
        if claimed != bytes as i64 {
            return Err(format!("{claimed} bytes, expected {bytes}"));
        }
        let mut raw = MutableBuffer::from_len_zeroed(bytes);
        if codec == Codec::Lz4 {
            let mut decoder = FrameDecoder::new(data);
            decoder
                .read_exact(raw.as_slice_mut())
                .map_err(|error| format!("lz4: {error}"))?;
            if !matches!(decoder.read(&mut [0]), Ok(0)) {
                return Err(format!("more than {bytes} bytes"));
            }
        } else {
            let found = self
                .decompressor
                .decompress_to_buffer(data, raw.as_slice_mut())
                .map_err(|error| format!("zstd: {error}"))?;
            exactly(found)?;
        }
        Ok(raw.into())
    }

    /// Compares a dictionary message with the names that the format prescribes.
    pub fn check_dictionary(
        &self,
        id: i64,
        head: BatchHead<'_>,
        body: &[u8],
    ) -> Result<(), String> {
        let of_file = self.dictionaries.iter().zip(&self.present);
        let mut names = of_file.filter_map(|(names, present)| names.as_ref().filter(|_| *present));
        let expected = usize::try_from(id)
            .ok()
            .and_then(|id| names.nth(id))
            .ok_or_else(|| format!("a dictionary with the unknown number {id}"))?;
        // An older log may lack the last names.
        let known = usize::try_from(head.length())
            .ok()
            .filter(|known| (1..=expected.len()).contains(known))
            .ok_or_else(|| format!("dictionary {id} has {} names", head.length()))?;
        let expected = expected.slice(0, known).to_data();
        let end = expected.buffer::<i32>(0)[known] as usize;
        let offsets = &expected.buffers()[0].as_slice()[..(known + 1) * size_of::<i32>()];
        let same = head.buffers().is_some_and(|buffers| {
            let slice = |index: usize| {
                let buffer = (index < buffers.len()).then(|| buffers.get(index))?;
                buffer_bytes(body, buffer)
            };
            slice(1).is_some_and(|found| found.starts_with(offsets))
                && slice(2)
                    .is_some_and(|text| text.starts_with(&expected.buffers()[1].as_slice()[..end]))
        });
        same.then_some(())
            .ok_or_else(|| format!("dictionary {id} does not hold the names of the format"))
    }
}

fn codec_of(head: BatchHead<'_>) -> Result<Codec, String> {
    let Some(compression) = head.compression() else {
        return Ok(Codec::None);
    };
    match (compression.method(), compression.codec()) {
        (BodyCompressionMethod::BUFFER, CompressionType::LZ4_FRAME) => Ok(Codec::Lz4),
        (BodyCompressionMethod::BUFFER, CompressionType::ZSTD) => Ok(Codec::Zstd),
        _ => Err("its rows are compressed by something else than lz4 or zstd".into()),
    }
}

/// Whether buffers fill a body one after another. Without a codec, nothing else shows that a position is damaged: the
/// checksum does not cover it, and no length precedes the values.
fn are_adjacent<'b>(buffers: impl Iterator<Item = &'b arrow::ipc::Buffer>, body: &[u8]) -> bool {
    let mut end_bytes = Some(0_u64);
    for buffer in buffers {
        end_bytes = end_bytes
            .filter(|end| *end == buffer.offset() as u64)
            .and_then(|end| end.checked_add(buffer.length() as u64))
            .and_then(|end| end.checked_next_multiple_of(BODY_ALIGN_BYTES as u64));
    }
    end_bytes == Some(body.len() as u64)
}

/// Whether a column of the kinds of rows has others than packets.
fn are_there_events(kinds: &ArrayRef) -> bool {
    let kinds = kinds.as_dictionary_opt::<Int8Type>();
    kinds.is_none_or(|kinds| {
        let packet = EVENT_PACKET as i8;
        kinds.keys().values().iter().any(|&kind| kind != packet)
    })
}

fn names_array(keys: Int8Array, names: &ArrayRef) -> Result<ArrayRef, String> {
    match DictionaryArray::try_new(keys, names.clone()) {
        Ok(array) => Ok(Arc::new(array)),
        Err(error) => Err(error.to_string()),
    }
}

/// Rows of a batch, if the number is valid.
pub fn row_count(head: BatchHead<'_>) -> Result<usize, String> {
    if (0..=ROWS_MAX).contains(&head.length()) {
        Ok(head.length() as usize)
    } else {
        Err(format!("{} rows", head.length()))
    }
}

fn numbers<T: ArrowPrimitiveType>(
    values: Buffer,
    rows: usize,
    nulls: Option<NullBuffer>,
) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::new(
        ScalarBuffer::new(values, 0, rows),
        nulls,
    ))
}

#[cfg(test)]
mod tests {
    use super::super::compression::{BufferCompressor, Codec};
    use super::super::message_reader::{MessageReader, Step};
    use super::super::schema::record_schema;
    use super::super::testing::{begins_with, log_compressed, some_records};
    use super::super::{Compression, LogReader};
    use super::RowDecoder;
    use arrow::record_batch::RecordBatch;
    use std::sync::Arc;

    /// A hostile log has valid checksums, so the decompressor gets damaged frames. It returns an error or values
    /// of the right length.
    #[test]
    fn damaged_frames_are_refused() {
        for codec in [Codec::Lz4, Codec::Zstd] {
            let values: Vec<u8> = (0..600u32)
                .flat_map(|value| (value / 7).to_le_bytes())
                .collect();
            let mut buffer = Vec::new();
            BufferCompressor::new()
                .unwrap()
                .add(&values, codec, &mut buffer)
                .unwrap();
            assert!(buffer.len() < values.len());
            let mut decoder = RowDecoder::new(&record_schema(), Arc::new(record_schema())).unwrap();
            assert_eq!(
                decoder
                    .decompress(&buffer, codec, values.len())
                    .unwrap()
                    .as_slice(),
                values
            );
            for at in 0..buffer.len() {
                for mask in [0x01, 0x10, 0x80, 0xff] {
                    let mut bytes = buffer.clone();
                    bytes[at] ^= mask;
                    if let Ok(found) = decoder.decompress(&bytes, codec, values.len()) {
                        assert_eq!(found.len(), values.len());
                    }
                    // An LZ4 frame may lack its end mark.
                    if let Ok(found) = decoder.decompress(&bytes[..at], codec, values.len()) {
                        assert_eq!(found.as_slice(), values);
                    }
                }
            }
        }
    }

    fn rows_of(log: &[u8]) -> Option<Vec<RecordBatch>> {
        let reader = LogReader::new(log, "test".into()).ok()?;
        reader.collect::<Result<_, _>>().ok()
    }

    /// The checksum of a message covers its values, not the places where its head says that they are.
    #[test]
    fn a_damaged_head_never_gives_a_wrong_row() {
        let good = log_compressed(&some_records(64), 64, 100, Compression::Zstd);
        let whole = rows_of(&good).unwrap();
        let mut messages = MessageReader::new(&good[..], "test".into());
        let head = loop {
            let start = messages.at_byte() as usize;
            if let Step::Message(raw) = messages.next_message().unwrap()
                && raw.message().unwrap().header_as_record_batch().is_some()
            {
                break start..messages.at_byte() as usize - raw.body.len();
            }
        };
        for at in head {
            for damage in [0x01, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[at] ^= damage;
                if let Some(batches) = rows_of(&bytes) {
                    assert!(begins_with(&whole, &batches), "byte {at} ^ {damage:#x}");
                }
            }
        }
    }
}
