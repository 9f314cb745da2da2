//! Transposed columns into the body of a record batch message.

use super::column_coder::{ColumnCoder, Effort};
use super::columns::{COLUMNS, Column, Kind, StateColumns};
use super::error::LogError;
use super::message::{BODY_ALIGN_BYTES, batch_head};
use super::runs::Runs;
use arrow::ipc::{Buffer, FieldNode};
use flatbuffers::FlatBufferBuilder;
use std::io;

/// A tick above this, with the flows of a flood of connections, does not keep its room for the next one.
const TICK_BYTES_KEPT: usize = 1 << 20;

/// Encodes batches; keeps its buffers and compressors between them.
pub struct BatchEncoder {
    coder: ColumnCoder,
    builder: FlatBufferBuilder<'static>,
    nodes: Vec<FieldNode>,
    buffers: Vec<Buffer>,
    head: Vec<u8>,
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
            head: Vec::new(),
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
        // The head says where the columns lie, and lies before them. It is as long as the last one, so
        // that they need not be moved when it is known.
        let head_at = out.len();
        let body_at = head_at + self.head.len();
        out.resize(body_at, 0);
        let mut index = 0;
        let mut runs = std::mem::take(&mut self.runs);
        let result = columns.for_each(&mut runs, |column, runs| {
            self.add_column(index, column, runs, effort, body_at, out)
                .map_err(|error| LogError::Encode {
                    rows,
                    reason: format!("{}: {error}", column.name),
                })?;
            index += 1;
            Ok(())
        });
        self.runs = runs;
        result.inspect_err(|_| out.truncate(head_at))?;
        self.head.clear();
        batch_head(
            &mut self.builder,
            rows,
            &self.nodes,
            &self.buffers,
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
        batch_head(&mut self.builder, 0, &nodes, &buffers, values, &[], out);
        if values.iter().map(|(_, value)| value.len()).sum::<usize>() > TICK_BYTES_KEPT {
            self.builder = FlatBufferBuilder::new();
        }
    }

    fn add_column(
        &mut self,
        index: usize,
        column: &Column,
        runs: &Runs,
        effort: Effort,
        body_at: usize,
        body: &mut Vec<u8>,
    ) -> io::Result<()> {
        let Self {
            coder,
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
        end_buffer(body_at, start, body, buffers);
        let start = body.len();
        if column.kind == Kind::Bool {
            pack(runs, |value| value != 0, bits);
            coder.add_bits(bits, effort, body)?;
        } else {
            coder.add_values(index, runs, effort, body)?;
        }
        end_buffer(body_at, start, body, buffers);
        Ok(())
    }
}

/// Notes the buffer that began at `start` and pads the body, which began at `body_at`.
fn end_buffer(body_at: usize, start: usize, body: &mut Vec<u8>, buffers: &mut Vec<Buffer>) {
    let bytes = body.len() - start;
    buffers.push(Buffer::new((start - body_at) as i64, bytes as i64));
    let body_bytes = (body.len() - body_at).next_multiple_of(BODY_ALIGN_BYTES);
    body.resize(body_at + body_bytes, 0);
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
