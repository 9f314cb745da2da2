//! Encodes columns as the body of a record batch message.

use super::columns::{COLUMNS, Column, Kind};
use super::compression::{BufferCompressor, Codec};
use super::error::LogError;
use super::message::{BODY_ALIGN_BYTES, batch_head};
use super::state_columns::StateColumns;
use arrow::buffer::BooleanBuffer;
use arrow::ipc::{Buffer, FieldNode};
use flatbuffers::FlatBufferBuilder;
use std::io;

/// Maximum bytes that are kept after a tick; a tick with very many flows frees its memory.
const TICK_BYTES_KEPT: usize = 1 << 20;

/// A constant column of a batch, and its buffer, which is the same for most batches.
#[derive(Clone, Default)]
struct Constant {
    value: Vec<u8>,
    rows: usize,
    codec: Option<Codec>,
    buffer: Vec<u8>,
}

/// Encodes batches; keeps its buffers and compressors between them.
pub struct BatchEncoder {
    compressor: BufferCompressor,
    builder: FlatBufferBuilder<'static>,
    nodes: Vec<FieldNode>,
    buffers: Vec<Buffer>,
    head: Vec<u8>,
    constants: Vec<Constant>,
}

impl BatchEncoder {
    /// Allocates the buffers of all batches.
    ///
    /// # Errors
    /// [`LogError::Encode`] when zstd has no memory.
    pub fn new() -> Result<Self, LogError> {
        let compressor = BufferCompressor::new().map_err(|error| LogError::Encode {
            rows: 0,
            reason: error.to_string(),
        })?;
        Ok(Self {
            compressor,
            builder: FlatBufferBuilder::new(),
            nodes: Vec::with_capacity(COLUMNS.len()),
            buffers: Vec::with_capacity(2 * COLUMNS.len()),
            head: Vec::new(),
            constants: vec![Constant::default(); COLUMNS.len()],
        })
    }

    /// Appends the message with all rows of `columns` to `out`.
    ///
    /// # Errors
    /// [`LogError::Encode`] when a library fails to compress.
    pub fn encode(
        &mut self,
        columns: &StateColumns,
        codec: Codec,
        out: &mut Vec<u8>,
    ) -> Result<(), LogError> {
        let rows = columns.rows();
        self.nodes.clear();
        self.buffers.clear();
        // The head precedes the columns and has their positions. It is usually as long as the last one, so
        // that the columns need not move when it is known.
        let head_at = out.len();
        let body_at = head_at + self.head.len();
        out.resize(body_at, 0);
        let mut index = 0;
        let result: Result<(), LogError> = columns.for_each(|column, values| {
            self.add_column(index, column, rows, values, codec, body_at, out)
                .map_err(|error| LogError::Encode {
                    rows,
                    reason: format!("{}: {error}", column.name),
                })?;
            index += 1;
            Ok(())
        });
        result.inspect_err(|_| out.truncate(head_at))?;
        self.head.clear();
        batch_head(
            &mut self.builder,
            rows,
            &self.nodes,
            &self.buffers,
            codec,
            &[],
            &out[body_at..],
            &mut self.head,
        );
        out.splice(head_at..body_at, self.head.iter().copied());
        Ok(())
    }

    /// Appends a message without rows that carries `values` as custom metadata to `out`.
    pub fn tick(&mut self, values: &[(&str, &str)], out: &mut Vec<u8>) {
        let nodes = vec![FieldNode::new(0, 0); COLUMNS.len()];
        let buffers = vec![Buffer::new(0, 0); 2 * COLUMNS.len()];
        batch_head(
            &mut self.builder,
            0,
            &nodes,
            &buffers,
            // Readers such as polars expect something in each compressed buffer.
            Codec::None,
            values,
            &[],
            out,
        );
        if values.iter().map(|(_, value)| value.len()).sum::<usize>() > TICK_BYTES_KEPT {
            self.builder = FlatBufferBuilder::new();
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn add_column(
        &mut self,
        index: usize,
        column: &Column,
        rows: usize,
        values: &[u8],
        codec: Codec,
        body_at: usize,
        body: &mut Vec<u8>,
    ) -> io::Result<()> {
        let valid = match (column.null_from, column.kind) {
            (Some(from), Kind::U32) => Some(bits::<4>(values, rows, |value| {
                u64::from(u32::from_le_bytes(value)) < from
            })),
            (Some(from), Kind::U8 | Kind::Bool | Kind::Names(_)) => {
                Some(bits::<1>(values, rows, |[value]| u64::from(value) < from))
            }
            (Some(from), _) => Some(bits::<8>(values, rows, |value| {
                u64::from_le_bytes(value) < from
            })),
            (None, _) => None,
        };
        let nulls = valid
            .as_ref()
            .map_or(0, |valid| rows - valid.count_set_bits());
        self.nodes.push(FieldNode::new(rows as i64, nulls as i64));
        let start = body.len();
        if let Some(valid) = valid.filter(|_| nulls > 0) {
            let valid = &valid.values()[..rows.div_ceil(8)];
            self.compressor.add(valid, codec, body)?;
        }
        self.end_buffer(body_at, start, body);
        let named: Vec<u8>;
        let values = match (column.null_from, column.kind) {
            (Some(from), Kind::Names(_)) if nulls > 0 => {
                // Readers such as polars look up the name of a null, too.
                let is_name = |value: u8| u64::from(value) < from;
                named = values
                    .iter()
                    .map(|value| if is_name(*value) { *value } else { 0 })
                    .collect();
                &named
            }
            _ => values,
        };
        let start = body.len();
        if column.kind == Kind::Bool {
            let set = bits::<1>(values, rows, |[value]| value != 0);
            let set = &set.values()[..rows.div_ceil(8)];
            self.compressor.add(set, codec, body)?;
        } else if values.len() == column.kind.width_bytes() {
            self.add_constant(index, rows, values, codec, body)?;
        } else {
            self.compressor.add(values, codec, body)?;
        }
        self.end_buffer(body_at, start, body);
        Ok(())
    }

    fn add_constant(
        &mut self,
        index: usize,
        rows: usize,
        value: &[u8],
        codec: Codec,
        body: &mut Vec<u8>,
    ) -> io::Result<()> {
        let last = &mut self.constants[index];
        if last.value != value || last.rows != rows || last.codec != Some(codec) {
            last.buffer.clear();
            self.compressor
                .add(&value.repeat(rows), codec, &mut last.buffer)?;
            (last.value, last.rows, last.codec) = (value.to_vec(), rows, Some(codec));
        }
        body.extend_from_slice(&last.buffer);
        Ok(())
    }

    /// Records the buffer that began at `start` and pads the body, which began at `body_at`.
    fn end_buffer(&mut self, body_at: usize, start: usize, body: &mut Vec<u8>) {
        let bytes = body.len() - start;
        self.buffers
            .push(Buffer::new((start - body_at) as i64, bytes as i64));
        let body_bytes = (body.len() - body_at).next_multiple_of(BODY_ALIGN_BYTES);
        body.resize(body_at + body_bytes, 0);
    }
}

/// A bit for each row, set where `is_set` accepts its value; one value stands for all rows.
fn bits<const WIDTH: usize>(
    values: &[u8],
    rows: usize,
    is_set: impl Fn([u8; WIDTH]) -> bool,
) -> BooleanBuffer {
    match values.as_chunks::<WIDTH>().0 {
        [value] if is_set(*value) => BooleanBuffer::new_set(rows),
        [_] => BooleanBuffer::new_unset(rows),
        values => BooleanBuffer::collect_bool(rows, |row| is_set(values[row])),
    }
}
