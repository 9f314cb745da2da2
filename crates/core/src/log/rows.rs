//! The body of a record batch message back into arrays. Nothing in it is believed: every length is
//! held against what the schema demands before memory is taken.

use super::columns::{COLUMNS, Column, Kind};
use super::schema::dictionaries;
use arrow::array::{
    Array, ArrayRef, BooleanArray, DictionaryArray, Int8Array, PrimitiveArray,
    TimestampNanosecondArray,
};
use arrow::buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowPrimitiveType, SchemaRef, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::ipc::{BodyCompressionMethod, CompressionType, RecordBatch as BatchHead};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use std::sync::Arc;
use zstd::bulk::Decompressor;

/// More rows than this in a batch are damage: the writer makes batches of 8,192.
const ROWS_MAX: i64 = 1 << 17;
const PREFIX_BYTES: usize = 8;

/// Decodes batches of one log.
pub struct RowDecoder {
    schema: SchemaRef,
    /// Which of [`COLUMNS`] are decoded.
    wanted: Vec<bool>,
    dictionaries: Vec<Option<ArrayRef>>,
    decompressor: Decompressor<'static>,
}

impl RowDecoder {
    /// For the schema of the batches: that of the file (with its metadata), or some columns of it in
    /// the order of the file.
    pub fn new(schema: SchemaRef) -> std::io::Result<Self> {
        let is_wanted = |column: &Column| schema.column_with_name(column.name).is_some();
        Ok(Self {
            wanted: COLUMNS.iter().map(is_wanted).collect(),
            schema,
            dictionaries: dictionaries(),
            decompressor: Decompressor::new()?,
        })
    }

    /// The rows of a message; the error says what is wrong with it.
    pub fn decode(&mut self, head: BatchHead<'_>, body: &[u8]) -> Result<RecordBatch, String> {
        let rows = row_count(head)?;
        let compression = head.compression().ok_or("its rows are not compressed")?;
        if compression.codec() != CompressionType::ZSTD
            || compression.method() != BodyCompressionMethod::BUFFER
        {
            return Err("its rows are compressed by something else than zstd".into());
        }
        let (Some(nodes), Some(buffers)) = (head.nodes(), head.buffers()) else {
            return Err("it lists no columns".into());
        };
        if nodes.len() != COLUMNS.len() || buffers.len() != 2 * COLUMNS.len() {
            return Err(format!(
                "it has {} columns, expected {}",
                nodes.len(),
                COLUMNS.len()
            ));
        }
        let mut arrays = Vec::with_capacity(self.schema.fields().len());
        for (index, column) in COLUMNS.iter().enumerate() {
            if !self.wanted[index] {
                continue;
            }
            let in_column = |reason: String| format!("column {}: {reason}", column.name);
            if nodes.get(index).length() != rows as i64 {
                return Err(in_column(format!(
                    "{} rows, expected {rows}",
                    nodes.get(index).length()
                )));
            }
            let slice = |buffer: &arrow::ipc::Buffer| {
                let start =
                    usize::try_from(buffer.offset()).map_err(|_| "negative offset".to_string())?;
                let length =
                    usize::try_from(buffer.length()).map_err(|_| "negative length".to_string())?;
                start
                    .checked_add(length)
                    .and_then(|end| body.get(start..end))
                    .ok_or_else(|| "a buffer reaches beyond the body".to_string())
            };
            let validity = slice(buffers.get(2 * index)).map_err(in_column)?;
            let values = slice(buffers.get(2 * index + 1)).map_err(in_column)?;
            let nulls = if validity.is_empty() {
                None
            } else {
                let bits = self
                    .decompress(validity, rows.div_ceil(8))
                    .map_err(in_column)?;
                Some(NullBuffer::new(BooleanBuffer::new(bits, 0, rows)))
            };
            if nulls.is_some() && column.null_from.is_none() {
                return Err(in_column("nulls, where none can be".into()));
            }
            arrays.push(
                self.array(index, column, rows, values, nulls)
                    .map_err(in_column)?,
            );
        }
        // The number of rows is given, for there may be no column that says it.
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.schema.clone(), arrays, &options)
            .map_err(|error| error.to_string())
    }

    fn array(
        &mut self,
        index: usize,
        column: &Column,
        rows: usize,
        values: &[u8],
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef, String> {
        let bytes = if column.kind == Kind::Bool {
            rows.div_ceil(8)
        } else {
            rows * column.kind.width_bytes()
        };
        let values = self.decompress(values, bytes)?;
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
                let names = self.dictionaries[index].clone().ok_or("no names")?;
                let keys = Int8Array::new(ScalarBuffer::new(values, 0, rows), nulls);
                Arc::new(DictionaryArray::try_new(keys, names).map_err(|error| error.to_string())?)
            }
        })
    }

    /// A buffer of the body, which must hold exactly `bytes` bytes.
    fn decompress(&mut self, buffer: &[u8], bytes: usize) -> Result<Buffer, String> {
        let (prefix, data) = buffer
            .split_at_checked(PREFIX_BYTES)
            .ok_or("a buffer without its length")?;
        let claimed = i64::from_le_bytes(
            prefix
                .try_into()
                .map_err(|_| "a buffer without its length")?,
        );
        if claimed == -1 {
            if data.len() != bytes {
                return Err(format!("{} bytes, expected {bytes}", data.len()));
            }
            return Ok(Buffer::from(data));
        }
        if claimed != bytes as i64 {
            return Err(format!("{claimed} bytes, expected {bytes}"));
        }
        let mut raw = MutableBuffer::from_len_zeroed(bytes);
        match self
            .decompressor
            .decompress_to_buffer(data, raw.as_slice_mut())
        {
            Ok(found) if found == bytes => Ok(raw.into()),
            Ok(found) => Err(format!("{found} bytes, expected {bytes}")),
            Err(error) => Err(format!("zstd: {error}")),
        }
    }
}

/// Rows of a batch, when the number is possible.
pub fn row_count(head: BatchHead<'_>) -> Result<usize, String> {
    if (0..=ROWS_MAX).contains(&head.length()) {
        Ok(head.length() as usize)
    } else {
        Err(format!("{} rows", head.length()))
    }
}

/// Compares a dictionary message with the names that the format prescribes.
pub fn check_dictionary(id: i64, head: BatchHead<'_>, body: &[u8]) -> Result<(), String> {
    let expected = usize::try_from(id)
        .ok()
        .and_then(|id| dictionaries().into_iter().flatten().nth(id))
        .ok_or_else(|| format!("a dictionary with the unknown number {id}"))?;
    let same = head.buffers().is_some_and(|buffers| {
        let slice = |index: usize| {
            (index < buffers.len())
                .then(|| buffers.get(index))
                .and_then(|buffer| {
                    let start = usize::try_from(buffer.offset()).ok()?;
                    body.get(start..start.checked_add(usize::try_from(buffer.length()).ok()?)?)
                })
        };
        let data = expected.to_data();
        slice(1).is_some_and(|offsets| offsets.starts_with(data.buffers()[0].as_slice()))
            && slice(2).is_some_and(|text| text.starts_with(data.buffers()[1].as_slice()))
    });
    if same {
        Ok(())
    } else {
        Err(format!(
            "dictionary {id} does not hold the names of the format"
        ))
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
