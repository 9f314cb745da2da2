//! Transposed columns into the body of a record batch message.

use super::column_coder::{ColumnCoder, Effort};
use super::columns::{COLUMNS, Column, Kind, StateColumns};
use super::error::LogError;
use super::message::{BODY_ALIGN_BYTES, batch_head};
use arrow::ipc::{Buffer, FieldNode};
use flatbuffers::FlatBufferBuilder;
use std::io;

/// Encodes batches; keeps its buffers and compressors between them.
pub struct BatchEncoder {
    coder: ColumnCoder,
    builder: FlatBufferBuilder<'static>,
    nodes: Vec<FieldNode>,
    buffers: Vec<Buffer>,
    body: Vec<u8>,
    bits: Vec<u8>,
}

impl BatchEncoder {
    /// Allocates what all batches need.
    ///
    /// # Errors
    /// [`LogError::Encode`] when zstd has no memory.
    pub fn new() -> Result<Self, LogError> {
        let coder = ColumnCoder::new(COLUMNS.len()).map_err(|error| LogError::Encode {
            rows: 0,
            reason: error.to_string(),
        })?;
        Ok(Self {
            coder,
            builder: FlatBufferBuilder::new(),
            nodes: Vec::with_capacity(COLUMNS.len()),
            buffers: Vec::with_capacity(2 * COLUMNS.len()),
            body: Vec::new(),
            bits: Vec::new(),
        })
    }

    /// Appends the message with all rows of `columns` to `out`.
    ///
    /// # Errors
    /// [`LogError::Encode`] when zstd fails.
    pub fn encode(
        &mut self,
        columns: &StateColumns,
        effort: Effort,
        out: &mut Vec<u8>,
    ) -> Result<(), LogError> {
        let rows = columns.rows();
        self.nodes.clear();
        self.buffers.clear();
        self.body.clear();
        let mut index = 0;
        columns.for_each(|column, values| {
            self.add_column(index, column, rows, values, effort)
                .map_err(|error| LogError::Encode {
                    rows,
                    reason: format!("{}: {error}", column.name),
                })?;
            index += 1;
            Ok(())
        })?;
        batch_head(
            &mut self.builder,
            rows,
            &self.nodes,
            &self.buffers,
            &[],
            &self.body,
            out,
        );
        out.extend_from_slice(&self.body);
        Ok(())
    }

    /// Appends a message without rows that carries `values` as custom metadata to `out`.
    pub fn tick(&mut self, values: &[(&str, &str)], out: &mut Vec<u8>) {
        let nodes = vec![FieldNode::new(0, 0); COLUMNS.len()];
        let buffers = vec![Buffer::new(0, 0); 2 * COLUMNS.len()];
        batch_head(&mut self.builder, 0, &nodes, &buffers, values, &[], out);
    }

    fn add_column(
        &mut self,
        index: usize,
        column: &Column,
        rows: usize,
        values: &[u8],
        effort: Effort,
    ) -> io::Result<()> {
        let Self {
            coder,
            body,
            bits,
            buffers,
            ..
        } = self;
        let nulls = column.null_from.map_or(0, |null_from| {
            validity(column.kind, values, null_from, bits)
        });
        self.nodes.push(FieldNode::new(rows as i64, nulls as i64));
        let start = body.len();
        if nulls > 0 {
            coder.add_searched(bits, body)?;
        }
        end_buffer(start, body, buffers);
        let start = body.len();
        if column.kind == Kind::Bool {
            pack(values, bits);
            coder.add_searched(bits, body)?;
        } else {
            coder.add_values(index, column.kind.width_bytes(), values, effort, body)?;
        }
        end_buffer(start, body, buffers);
        Ok(())
    }
}

/// Notes the buffer that began at `start` and pads the body.
fn end_buffer(start: usize, body: &mut Vec<u8>, buffers: &mut Vec<Buffer>) {
    buffers.push(Buffer::new(start as i64, (body.len() - start) as i64));
    body.resize(body.len().next_multiple_of(BODY_ALIGN_BYTES), 0);
}

/// Writes the validity bits of a column whose values from `null_from` upwards are null; returns the
/// number of nulls.
fn validity(kind: Kind, values: &[u8], null_from: u64, bits: &mut Vec<u8>) -> usize {
    fn written<const WIDTH: usize>(
        values: &[u8],
        bits: &mut Vec<u8>,
        is_valid: impl Fn([u8; WIDTH]) -> bool,
    ) -> usize {
        let (values, _) = values.as_chunks::<WIDTH>();
        let mut valid = 0;
        bits.clear();
        bits.extend(values.chunks(8).map(|eight| {
            let byte = eight.iter().enumerate().fold(0u8, |byte, (bit, value)| {
                byte | u8::from(is_valid(*value)) << bit
            });
            valid += byte.count_ones() as usize;
            byte
        }));
        values.len() - valid
    }
    match kind.width_bytes() {
        4 => written(values, bits, |value| {
            u64::from(u32::from_le_bytes(value)) < null_from
        }),
        8 => written(values, bits, |value| u64::from_le_bytes(value) < null_from),
        _ => 0,
    }
}

fn pack(flags: &[u8], bits: &mut Vec<u8>) {
    bits.clear();
    bits.extend(flags.chunks(8).map(|eight| {
        eight
            .iter()
            .enumerate()
            .fold(0u8, |byte, (bit, flag)| byte | (flag & 1) << bit)
    }));
}
