//! Transposed columns into the body of a record batch message.

use super::column_coder::{ColumnCoder, Effort};
use super::columns::{COLUMNS, Column, Kind, StateColumns};
use super::error::LogError;
use super::message::{BODY_ALIGN_BYTES, batch_head};
use super::runs::Runs;
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
    runs: Runs,
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
            runs: Runs::default(),
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
        let mut runs = std::mem::take(&mut self.runs);
        let result = columns.for_each(&mut runs, |column, runs| {
            self.add_column(index, column, runs, effort)
                .map_err(|error| LogError::Encode {
                    rows,
                    reason: format!("{}: {error}", column.name),
                })?;
            index += 1;
            Ok(())
        });
        self.runs = runs;
        result?;
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
        runs: &Runs,
        effort: Effort,
    ) -> io::Result<()> {
        let Self {
            coder,
            body,
            bits,
            buffers,
            ..
        } = self;
        let nulls = column
            .null_from
            .map_or(0, |null_from| validity(runs, null_from, bits));
        self.nodes
            .push(FieldNode::new(runs.rows() as i64, nulls as i64));
        let start = body.len();
        if nulls > 0 {
            coder.add_bits(bits, effort, body)?;
        }
        end_buffer(start, body, buffers);
        let start = body.len();
        if column.kind == Kind::Bool {
            pack(runs, |value| value != 0, bits);
            coder.add_bits(bits, effort, body)?;
        } else {
            coder.add_values(index, runs, effort, body)?;
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
fn validity(runs: &Runs, null_from: u64, bits: &mut Vec<u8>) -> usize {
    runs.rows() - pack(runs, |value| value < null_from, bits)
}

/// Writes a bit for each row whose value `is_set` accepts; returns how many these are.
fn pack(runs: &Runs, is_set: impl Fn(u64) -> bool, bits: &mut Vec<u8>) -> usize {
    bits.clear();
    bits.resize(runs.rows().div_ceil(8), 0);
    let mut set = 0;
    for ((start, end), value) in runs.bounds().zip(runs.numbers()) {
        if is_set(value) {
            set += (end - start) as usize;
            set_bits(bits, start as usize, end as usize);
        }
    }
    set
}

fn set_bits(bits: &mut [u8], start: usize, end: usize) {
    let (first, last) = (start / 8, (end - 1) / 8);
    let from_start = 0xFFu8 << (start % 8);
    let to_end = 0xFFu8 >> (7 - (end - 1) % 8);
    if first == last {
        bits[first] |= from_start & to_end;
        return;
    }
    bits[first] |= from_start;
    bits[first + 1..last].fill(0xFF);
    bits[last] |= to_end;
}
