//! How the values of a column are compressed. To a reader all of it is plain zstd.

use super::repeats::RepeatCoder;
use super::runs::Runs;
use super::upper_bytes;
use std::io;
use zstd::bulk::Compressor;
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
    /// Half to two thirds of the bytes for three to four times the CPU time: when records are few.
    Thorough,
    /// For a million records a second.
    Fast,
}

impl Effort {
    /// Records a second from which CPU time counts more than bytes: thorough ones would take more than
    /// about a hundredth of a CPU for their compression, which the traffic may want.
    const FAST_FROM_PER_S: u64 = 25_000;

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
    constant_rows: usize,
    constant_buffer: Vec<u8>,
}

/// Compresses the columns of batch after batch.
pub struct ColumnCoder {
    search: Compressor<'static>,
    repeats: RepeatCoder,
    room: Vec<u8>,
    frame: Vec<u8>,
    memories: Vec<Memory>,
}

impl ColumnCoder {
    /// For so many columns.
    pub fn new(columns: usize) -> io::Result<Self> {
        Ok(Self {
            search: Compressor::new(SEARCH_LEVEL)?,
            repeats: RepeatCoder::default(),
            room: Vec::new(),
            frame: Vec::new(),
            memories: vec![Memory::default(); columns],
        })
    }

    /// Appends the buffer of column `index` to a body: length, and frame or values.
    pub fn add_values(
        &mut self,
        index: usize,
        runs: &Runs,
        effort: Effort,
        body: &mut Vec<u8>,
    ) -> io::Result<()> {
        if runs.starts().len() == 1 && runs.rows() > 1 {
            return self.add_constant(index, runs, body);
        }
        if effort == Effort::Fast {
            let start = body.len();
            let raw_bytes = runs.rows() * runs.width_bytes();
            body.extend_from_slice(&(raw_bytes as i64).to_le_bytes());
            if self.repeats.encode(runs, body) {
                return Ok(());
            }
            if runs.width_bytes() == 8 && upper_bytes::encode(runs.every_row(&mut self.room), body)
            {
                return Ok(());
            }
            body.truncate(start);
            body.extend_from_slice(&NOT_COMPRESSED.to_le_bytes());
            runs.expand(body);
            return Ok(());
        }
        let values = runs.every_row(&mut self.room);
        add_frame(&mut self.search, values, &mut self.frame, body)
    }

    /// Appends the buffer of bits to a body. One bit a row is little as it is.
    pub fn add_bits(&mut self, bits: &[u8], effort: Effort, body: &mut Vec<u8>) -> io::Result<()> {
        if effort == Effort::Fast {
            add_raw(bits, body);
            return Ok(());
        }
        add_frame(&mut self.search, bits, &mut self.frame, body)
    }

    fn add_constant(&mut self, index: usize, runs: &Runs, body: &mut Vec<u8>) -> io::Result<()> {
        let memory = &self.memories[index];
        if memory.constant_rows == runs.rows() && memory.constant == runs.values() {
            body.extend_from_slice(&memory.constant_buffer);
            return Ok(());
        }
        let start = body.len();
        let values = runs.every_row(&mut self.room);
        add_frame(&mut self.search, values, &mut self.frame, body)?;
        let memory = &mut self.memories[index];
        memory.constant = runs.values().to_vec();
        memory.constant_rows = runs.rows();
        memory.constant_buffer = body[start..].to_vec();
        Ok(())
    }
}

/// Appends a frame, or the bytes as they are when a frame saves less than one in eight.
fn add_frame(
    compressor: &mut Compressor,
    raw: &[u8],
    frame: &mut Vec<u8>,
    body: &mut Vec<u8>,
) -> io::Result<()> {
    let bound_bytes = compress_bound(raw.len());
    if frame.len() < bound_bytes {
        frame.resize(bound_bytes, 0);
    }
    let frame_bytes = compressor.compress_to_buffer(raw, frame.as_mut_slice())?;
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
