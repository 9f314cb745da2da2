//! Transposed columns into the body of a record batch message.

use super::columns::{COLUMNS, Column, Kind, StateColumns};
use super::error::LogError;
use super::message::{BODY_ALIGN_BYTES, batch_head};
use arrow::ipc::{Buffer, FieldNode};
use flatbuffers::FlatBufferBuilder;
use zstd::bulk::Compressor;
use zstd::zstd_safe::compress_bound;

/// The level at which a log is compressed; chosen by measurement, see `benches/log_encode.rs`.
pub const DEFAULT_ZSTD_LEVEL: i32 = 1;

/// Length prefix of a buffer in a compressed body.
const PREFIX_BYTES: usize = 8;
/// The prefix that says: what follows is not compressed.
const NOT_COMPRESSED: i64 = -1;

/// Encodes batches; keeps its buffers and the compressor between them.
pub struct BatchEncoder {
    compressor: Compressor<'static>,
    builder: FlatBufferBuilder<'static>,
    nodes: Vec<FieldNode>,
    buffers: Vec<Buffer>,
    body: Vec<u8>,
    bits: Vec<u8>,
    constants: Vec<ConstantFrame>,
}

/// The compressed form of a column that had one value only: most batches after it have the same.
#[derive(Clone, Default)]
struct ConstantFrame {
    value: Vec<u8>,
    length_bytes: usize,
    frame: Vec<u8>,
}

impl BatchEncoder {
    /// With a zstd level (negative ones are the fast ones).
    ///
    /// # Errors
    /// [`LogError::Encode`] when zstd refuses the level.
    pub fn new(zstd_level: i32) -> Result<Self, LogError> {
        let compressor = Compressor::new(zstd_level).map_err(|error| LogError::Encode {
            rows: 0,
            reason: format!("zstd level {zstd_level}: {error}"),
        })?;
        Ok(Self {
            compressor,
            builder: FlatBufferBuilder::new(),
            nodes: Vec::with_capacity(COLUMNS.len()),
            buffers: Vec::with_capacity(2 * COLUMNS.len()),
            body: Vec::new(),
            bits: Vec::new(),
            constants: vec![ConstantFrame::default(); COLUMNS.len()],
        })
    }

    /// Appends the message with all rows of `columns` to `out`.
    ///
    /// # Errors
    /// [`LogError::Encode`] when zstd fails.
    pub fn encode(&mut self, columns: &StateColumns, out: &mut Vec<u8>) -> Result<(), LogError> {
        let rows = columns.rows();
        self.nodes.clear();
        self.buffers.clear();
        self.body.clear();
        let mut index = 0;
        columns.for_each(|column, values| {
            self.add_column(index, column, rows, values)
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
    ) -> std::io::Result<()> {
        let mut bits = std::mem::take(&mut self.bits);
        let nulls = column.null_from.map_or(0, |null_from| {
            validity(column.kind, values, null_from, &mut bits)
        });
        self.nodes.push(FieldNode::new(rows as i64, nulls as i64));
        if nulls == 0 {
            self.buffers.push(Buffer::new(self.body.len() as i64, 0));
        } else {
            self.add_buffer(&bits)?;
        }
        if column.kind == Kind::Bool {
            pack(values, &mut bits);
            self.add_buffer(&bits)?;
        } else if is_constant(values, column.kind.width_bytes()) {
            self.add_constant(index, column.kind.width_bytes(), values)?;
        } else {
            self.add_buffer(values)?;
        }
        self.bits = bits;
        Ok(())
    }

    /// Compresses a buffer to the end of the body.
    fn add_buffer(&mut self, raw: &[u8]) -> std::io::Result<()> {
        let start = self.body.len();
        if raw.is_empty() {
            self.buffers.push(Buffer::new(start as i64, 0));
            return Ok(());
        }
        self.body
            .extend_from_slice(&(raw.len() as i64).to_le_bytes());
        let frame_start = start + PREFIX_BYTES;
        self.body.resize(frame_start + compress_bound(raw.len()), 0);
        let frame_bytes = self
            .compressor
            .compress_to_buffer(raw, &mut self.body[frame_start..])?;
        self.body.truncate(frame_start + frame_bytes);
        if frame_bytes >= raw.len() {
            self.body.truncate(start);
            self.body.extend_from_slice(&NOT_COMPRESSED.to_le_bytes());
            self.body.extend_from_slice(raw);
        }
        self.end_buffer(start);
        Ok(())
    }

    fn add_constant(
        &mut self,
        index: usize,
        width_bytes: usize,
        values: &[u8],
    ) -> std::io::Result<()> {
        let start = self.body.len();
        let known = &self.constants[index];
        if known.length_bytes == values.len() && known.value == values[..width_bytes] {
            self.body.extend_from_slice(&known.frame);
            self.end_buffer(start);
            return Ok(());
        }
        self.add_buffer(values)?;
        let length_bytes = self
            .buffers
            .last()
            .map_or(0, |buffer| buffer.length() as usize);
        self.constants[index] = ConstantFrame {
            value: values[..width_bytes].to_vec(),
            length_bytes: values.len(),
            frame: self.body[start..start + length_bytes].to_vec(),
        };
        Ok(())
    }

    /// Notes the buffer that began at `start` and pads the body.
    fn end_buffer(&mut self, start: usize) {
        let length_bytes = self.body.len() - start;
        self.buffers
            .push(Buffer::new(start as i64, length_bytes as i64));
        self.body
            .resize(self.body.len().next_multiple_of(BODY_ALIGN_BYTES), 0);
    }
}

fn is_constant(values: &[u8], width_bytes: usize) -> bool {
    // Equal to itself shifted by one value; ends at the first difference.
    values.len() > width_bytes && values[width_bytes..] == values[..values.len() - width_bytes]
}

/// Writes the validity bits of a column whose values from `null_from` upwards are null; returns the
/// number of nulls.
fn validity(kind: Kind, values: &[u8], null_from: u64, bits: &mut Vec<u8>) -> usize {
    let width_bytes = kind.width_bytes();
    let mut valid = 0;
    bits.clear();
    bits.extend(values.chunks(8 * width_bytes).map(|eight| {
        let mut byte = 0u8;
        for (bit, value) in eight.chunks_exact(width_bytes).enumerate() {
            let mut wide = [0u8; 8];
            wide[..width_bytes].copy_from_slice(value);
            byte |= u8::from(u64::from_le_bytes(wide) < null_from) << bit;
        }
        valid += byte.count_ones() as usize;
        byte
    }));
    values.len() / width_bytes - valid
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
