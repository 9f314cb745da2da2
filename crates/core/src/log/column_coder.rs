//! How the values of a column are compressed. To a reader all of it is plain zstd.

use super::compressor::ColumnCompressor;
use super::repeats::RepeatCoder;
use super::upper_bytes;
use std::io;
use zstd::zstd_safe::compress_bound;

/// The level of the search for repeats; chosen by measurement, see `benches/log_encode.rs`.
const SEARCH_LEVEL: i32 = 1;
/// Length prefix of a buffer in a compressed body.
const PREFIX_BYTES: usize = 8;
/// The prefix that says: what follows is not compressed.
const NOT_COMPRESSED: i64 = -1;

/// How much CPU time compression is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Half the bytes for three times the CPU time: when records are few.
    Thorough,
    /// For a million records a second.
    Fast,
}

impl Effort {
    /// Records a second from which CPU time counts more than bytes.
    const FAST_FROM_PER_S: u64 = 200_000;

    /// What suits `rows` records within `span_ns`.
    pub fn for_rate(rows: usize, span_ns: u64) -> Self {
        let rows = rows as u64;
        if rows.saturating_mul(1_000_000_000) >= span_ns.saturating_mul(Self::FAST_FROM_PER_S) {
            Self::Fast
        } else {
            Self::Thorough
        }
    }
}

/// What is remembered of a column from batch to batch.
#[derive(Clone, Default)]
struct Memory {
    /// The one value that all rows had, and the buffer that came of it: most batches have the same.
    constant: Vec<u8>,
    constant_bytes: usize,
    constant_buffer: Vec<u8>,
}

/// Compresses the columns of batch after batch.
pub struct ColumnCoder {
    search: ColumnCompressor,
    repeats: RepeatCoder,
    frame: Vec<u8>,
    memories: Vec<Memory>,
}

impl ColumnCoder {
    /// For so many columns.
    pub fn new(columns: usize) -> io::Result<Self> {
        Ok(Self {
            search: ColumnCompressor::with_level(SEARCH_LEVEL)?,
            repeats: RepeatCoder::default(),
            frame: Vec::new(),
            memories: vec![Memory::default(); columns],
        })
    }

    /// Appends the buffer of column `index` to a body: length, and frame or values.
    pub fn add_values(
        &mut self,
        index: usize,
        width_bytes: usize,
        values: &[u8],
        effort: Effort,
        body: &mut Vec<u8>,
    ) -> io::Result<()> {
        if is_constant(values, width_bytes) {
            return self.add_constant(index, width_bytes, values, body);
        }
        if effort == Effort::Thorough {
            return self.add_searched(values, body);
        }
        let start = body.len();
        body.extend_from_slice(&(values.len() as i64).to_le_bytes());
        let is_coded = self.repeats.encode(values, width_bytes, body)
            || width_bytes == 8 && upper_bytes::encode(values, body);
        if !is_coded {
            body.truncate(start);
            add_raw(values, body);
        }
        Ok(())
    }

    /// Appends the buffer of anything to a body, after a search for repeats.
    pub fn add_searched(&mut self, raw: &[u8], body: &mut Vec<u8>) -> io::Result<()> {
        add_frame(&mut self.search, raw, &mut self.frame, body)
    }

    fn add_constant(
        &mut self,
        index: usize,
        width_bytes: usize,
        values: &[u8],
        body: &mut Vec<u8>,
    ) -> io::Result<()> {
        let memory = &self.memories[index];
        let is_known =
            memory.constant_bytes == values.len() && memory.constant == values[..width_bytes];
        if !is_known {
            let start = body.len();
            self.add_searched(values, body)?;
            let memory = &mut self.memories[index];
            memory.constant = values[..width_bytes].to_vec();
            memory.constant_bytes = values.len();
            memory.constant_buffer = body[start..].to_vec();
            return Ok(());
        }
        body.extend_from_slice(&memory.constant_buffer);
        Ok(())
    }
}

/// Appends a frame, or the bytes as they are when a frame saves less than one in eight.
fn add_frame(
    compressor: &mut ColumnCompressor,
    raw: &[u8],
    frame: &mut Vec<u8>,
    body: &mut Vec<u8>,
) -> io::Result<()> {
    let bound_bytes = compress_bound(raw.len());
    if frame.len() < bound_bytes {
        frame.resize(bound_bytes, 0);
    }
    let frame_bytes = compressor.compress(raw, frame)?;
    if frame_bytes + raw.len() / 8 >= raw.len() {
        add_raw(raw, body);
        return Ok(());
    }
    body.extend_from_slice(&(raw.len() as i64).to_le_bytes());
    body.extend_from_slice(&frame[..frame_bytes]);
    Ok(())
}

fn add_raw(raw: &[u8], body: &mut Vec<u8>) {
    body.reserve(PREFIX_BYTES + raw.len());
    body.extend_from_slice(&NOT_COMPRESSED.to_le_bytes());
    body.extend_from_slice(raw);
}

fn is_constant(values: &[u8], width_bytes: usize) -> bool {
    // Equal to itself shifted by one value; ends at the first difference.
    values.len() > width_bytes && values[width_bytes..] == values[..values.len() - width_bytes]
}
