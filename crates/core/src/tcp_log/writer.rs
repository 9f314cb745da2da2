//! Writes a log. If the process or the disk fails, the file still opens.

use super::batch::BatchEncoder;
use super::compression::Compression;
use super::error::LogError;
use super::flow::FlowRow;
use super::flow_table::encode_flows;
use super::header::LogHeader;
use super::listener::ListenerRow;
use super::message::{
    END_OF_STREAM, KEY_FINAL, KEY_FLOWS, KEY_LEDGER, KEY_LISTENERS, KEY_THINNING, stream_start,
};
use super::scale::Scale;
use super::state_columns::StateColumns;
use super::thinning::ThinningRow;
use crate::abi::{EVENT_DSACK, EVENT_PACKET, EVENT_RETRANSMIT, TCP_HOOK_COUNT, TcpStateRecord};
use crate::ledger::Ledger;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Rows of a full batch; 8192 rows of 150 bytes stay in an L2 cache of 2 MiB.
const BATCH_ROWS: usize = 8192;
/// Room for a few batches; memory beyond it, after a tick with very many flows, is freed.
const PENDING_BYTES_KEPT: usize = 4 << 20;

/// Rows of one flow that could not be written, by hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unwritten {
    /// In the order of `enum tcp_hook`.
    pub by_hook: [u64; TCP_HOOK_COUNT],
}

impl Unwritten {
    /// Rows that are packets.
    pub fn packets(&self) -> u64 {
        self.by_hook[0] + self.by_hook[1]
    }

    /// Rows that are other events.
    pub fn events(&self) -> u64 {
        self.total() - self.packets()
    }

    /// All rows.
    pub fn total(&self) -> u64 {
        self.by_hook.iter().sum()
    }

    fn add(&mut self, other: &Self) {
        for (sum, rows) in self.by_hook.iter_mut().zip(other.by_hook) {
            *sum += rows;
        }
    }
}

type UnwrittenByFlow = BTreeMap<u32, Unwritten>;

/// Writes a log to any [`Write`]. A message goes to it in one or two writes, so no buffering is needed.
///
/// When the writer underneath fails (disk full), it returns the error, and the log stays usable. A message
/// that was begun is completed as soon as there is room, so the file never has a hole. Meanwhile, rows are
/// dropped batch by batch and counted in [`LogWriter::unwritten`].
pub struct LogWriter<W: Write> {
    inner: W,
    columns: StateColumns,
    encoder: BatchEncoder,
    compression: Compression,
    monotonic_offset_ns: i64,
    /// Encoded bytes; those from `pending_at` on are not yet written.
    pending: Vec<u8>,
    pending_at: usize,
    pending_rows: UnwrittenByFlow,
    /// Flows of ticks that could not be written; the next tick has them.
    held_flows: BTreeMap<u32, FlowRow>,
    /// Listeners for the next tick.
    held_listeners: BTreeMap<u32, ListenerRow>,
    /// Changes of the thinning for the next tick.
    held_thinning: Vec<ThinningRow>,
    unwritten: UnwrittenByFlow,
    written_bytes: u64,
    /// Bytes of the files before the current one.
    former_bytes: u64,
    written_rows: u64,
    /// `written_rows` at the last tick.
    ticked_rows: u64,
}

impl<W: Write> LogWriter<W> {
    /// Starts a log, and writes its head.
    ///
    /// # Errors
    /// [`LogError::Header`] when the header cannot be used, [`LogError::Write`] when `inner` fails.
    pub fn create(inner: W, header: &LogHeader) -> Result<Self, LogError> {
        Self::create_with(inner, header, BATCH_ROWS)
    }

    /// As [`LogWriter::create`], with a number of rows for full batches.
    ///
    /// # Errors
    /// As [`LogWriter::create`].
    pub fn create_with(inner: W, header: &LogHeader, batch_rows: usize) -> Result<Self, LogError> {
        let monotonic_offset_ns = header.monotonic_offset_ns()?;
        let mut writer = Self {
            inner,
            columns: StateColumns::new(
                batch_rows.max(1),
                Scale::new(monotonic_offset_ns, header.hz),
            ),
            encoder: BatchEncoder::new()?,
            compression: Compression::default(),
            monotonic_offset_ns,
            pending: stream_start(header.to_metadata())?,
            pending_at: 0,
            pending_rows: BTreeMap::new(),
            held_flows: BTreeMap::new(),
            held_listeners: BTreeMap::new(),
            held_thinning: Vec::new(),
            unwritten: BTreeMap::new(),
            written_bytes: 0,
            former_bytes: 0,
            written_rows: 0,
            ticked_rows: 0,
        };
        writer.write_pending()?;
        Ok(writer)
    }

    /// Sets the compression of the batches; [`Compression::Auto`] by default.
    pub fn with_compression(self, compression: Compression) -> Self {
        Self {
            compression,
            ..self
        }
    }

    /// Adds one record.
    ///
    /// # Errors
    /// As [`LogWriter::push_block`].
    pub fn push(&mut self, record: &TcpStateRecord) -> Result<(), LogError> {
        self.push_block(std::slice::from_ref(record))
    }

    /// Adds records; a few hundred at a time are the fastest.
    ///
    /// # Errors
    /// [`LogError::Write`] when `inner` fails. Every record is still either in a batch or counted in
    /// [`LogWriter::unwritten`].
    pub fn push_block(&mut self, mut records: &[TcpStateRecord]) -> Result<(), LogError> {
        let mut result = Ok(());
        while !records.is_empty() {
            let taken = self.columns.append(records);
            records = &records[taken..];
            if self.columns.is_full()
                && let Err(error) = self.encode_rows()
            {
                result = Err(error);
                if self.columns.is_full() {
                    count(&self.columns, &mut self.unwritten);
                    self.columns.clear();
                }
            }
        }
        result
    }

    /// Encodes the buffered rows, however few, and flushes.
    ///
    /// # Errors
    /// [`LogError::Write`] when `inner` fails; the rows stay buffered.
    pub fn flush(&mut self) -> Result<(), LogError> {
        self.encode_rows()?;
        self.flush_pending()
    }

    fn flush_pending(&mut self) -> Result<(), LogError> {
        self.write_pending()?;
        self.inner
            .flush()
            .map_err(|source| self.write_error(source))
    }

    /// Takes listeners that are new or changed, for the next tick.
    pub fn note_listeners(&mut self, listeners: Vec<ListenerRow>) {
        self.held_listeners
            .extend(listeners.into_iter().map(|row| (row.listener, row)));
    }

    /// Takes a change of the thinning, for the next tick.
    pub fn note_thinning(&mut self, row: ThinningRow) {
        self.held_thinning.push(row);
    }

    /// Whether there is more than an account to write: rows, flows or listeners since the last tick, or what did not fit.
    pub fn has_news(&self) -> bool {
        self.columns.rows() > 0
            || self.written_rows != self.ticked_rows
            || !self.held_flows.is_empty()
            || !self.held_listeners.is_empty()
            || !self.held_thinning.is_empty()
            || self.pending_at < self.pending.len()
    }

    /// Flushes, then writes the flows that are new or changed since the last tick and the ledger so far.
    /// `is_final` marks the last tick of a complete log.
    ///
    /// # Errors
    /// [`LogError::Write`] when `inner` fails; the next tick has the flows then.
    pub fn tick(
        &mut self,
        flows: Vec<FlowRow>,
        ledger: &Ledger,
        is_final: bool,
    ) -> Result<(), LogError> {
        self.held_flows
            .extend(flows.into_iter().map(|row| (row.flow, row)));
        self.encode_rows()?;
        self.write_pending()?;
        let encode_error = |reason: String| LogError::Encode { rows: 0, reason };
        let ledger =
            serde_json::to_string(ledger).map_err(|error| encode_error(error.to_string()))?;
        let listeners: Vec<_> = self.held_listeners.values().collect();
        let listeners =
            serde_json::to_string(&listeners).map_err(|error| encode_error(error.to_string()))?;
        let thinning = serde_json::to_string(&self.held_thinning)
            .map_err(|error| encode_error(error.to_string()))?;
        let mut values = Vec::new();
        let table;
        if !self.held_flows.is_empty() {
            // A flood of connections must not be kept twice.
            let held: Vec<FlowRow> = std::mem::take(&mut self.held_flows).into_values().collect();
            let encoded = encode_flows(&held);
            if encoded.is_err() {
                self.held_flows = held.into_iter().map(|row| (row.flow, row)).collect();
            }
            table = encoded.map_err(|error| encode_error(error.to_string()))?;
            values.push((KEY_FLOWS, table.as_str()));
        }
        if !self.held_listeners.is_empty() {
            values.push((KEY_LISTENERS, listeners.as_str()));
        }
        if !self.held_thinning.is_empty() {
            values.push((KEY_THINNING, thinning.as_str()));
        }
        values.push((KEY_LEDGER, ledger.as_str()));
        if is_final {
            values.push((KEY_FINAL, "true"));
        }
        self.encoder.tick(&values, &mut self.pending);
        // The tables are now in `pending`, which is never dropped.
        self.held_listeners.clear();
        self.held_thinning.clear();
        self.ticked_rows = self.written_rows;
        self.flush_pending()
    }

    /// Ends the stream, after the final tick. Without that tick, readers report the log as truncated.
    ///
    /// # Errors
    /// [`LogError::Write`] when `inner` fails. Buffered rows are then counted in [`LogWriter::unwritten`].
    pub fn finish(&mut self) -> Result<(), LogError> {
        let result = self.flush().and_then(|()| {
            self.pending.extend_from_slice(&END_OF_STREAM);
            self.flush_pending()
        });
        if result.is_err() {
            count(&self.columns, &mut self.unwritten);
            self.columns.clear();
            for (flow, rows) in std::mem::take(&mut self.pending_rows) {
                let total = self.unwritten.entry(flow).or_default();
                total.add(&rows);
            }
        }
        result
    }

    /// Goes on in another file, after [`LogWriter::finish`]; counts of rows and bytes go on, too. Returns the former
    /// file.
    ///
    /// # Errors
    /// As [`LogWriter::create`]. The other file is the current one then.
    pub fn begin_file(&mut self, inner: W, header: &LogHeader) -> Result<W, LogError> {
        let start = stream_start(header.to_metadata())?;
        let former = std::mem::replace(&mut self.inner, inner);
        self.former_bytes = self.written_bytes;
        self.pending.extend_from_slice(&start);
        self.write_pending()?;
        Ok(former)
    }

    /// Nanoseconds to add to the records' clock for that of the log, for [`FlowRow::new`].
    pub fn monotonic_offset_ns(&self) -> i64 {
        self.monotonic_offset_ns
    }

    /// Rows dropped because they could not be written, by flow; cumulative.
    pub fn unwritten(&self) -> &BTreeMap<u32, Unwritten> {
        &self.unwritten
    }

    /// Rows dropped, by hook; cumulative.
    pub fn unwritten_by_hook(&self) -> [u64; TCP_HOOK_COUNT] {
        let mut total = Unwritten::default();
        for rows in self.unwritten.values() {
            total.add(rows);
        }
        total.by_hook
    }

    /// Bytes written, to all files.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Bytes written to the current file.
    pub fn file_bytes(&self) -> u64 {
        self.written_bytes - self.former_bytes
    }

    /// Rows written, to all files.
    pub fn written_rows(&self) -> u64 {
        self.written_rows
    }

    /// The output.
    pub fn get_ref(&self) -> &W {
        &self.inner
    }

    #[cfg(test)]
    pub(super) fn inner_mut_for_tests(&mut self) -> &mut W {
        &mut self.inner
    }

    /// The output; buffered rows are lost.
    pub fn into_inner(self) -> W {
        self.inner
    }

    fn encode_rows(&mut self) -> Result<(), LogError> {
        self.write_pending()?;
        let rows = self.columns.rows();
        if rows == 0 {
            return Ok(());
        }
        let codec = self.compression.codec(rows, self.columns.span_ns());
        self.encoder
            .encode(&self.columns, codec, &mut self.pending)?;
        let written = self.write_pending();
        if written.is_err() {
            count(&self.columns, &mut self.pending_rows);
        } else {
            self.written_rows += rows as u64;
        }
        self.columns.clear();
        written
    }

    /// Writes the pending bytes, from where the last attempt stopped.
    fn write_pending(&mut self) -> Result<(), LogError> {
        while self.pending_at < self.pending.len() {
            match self.inner.write(&self.pending[self.pending_at..]) {
                Ok(0) => return Err(self.write_error(io::ErrorKind::WriteZero.into())),
                Ok(taken_bytes) => {
                    self.pending_at += taken_bytes;
                    self.written_bytes += taken_bytes as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.write_error(error)),
            }
        }
        self.pending.clear();
        self.pending.shrink_to(PENDING_BYTES_KEPT);
        self.pending_at = 0;
        self.written_rows += self
            .pending_rows
            .values()
            .map(Unwritten::total)
            .sum::<u64>();
        self.pending_rows.clear();
        Ok(())
    }

    fn write_error(&self, source: io::Error) -> LogError {
        LogError::Write {
            written_bytes: self.written_bytes,
            source,
        }
    }
}

/// Adds the rows of `columns` to counts by flow.
fn count(columns: &StateColumns, by_flow: &mut UnwrittenByFlow) {
    for (flow, event, direction) in columns.flows_and_events() {
        // The event and the direction of a row give its hook; see `enum tcp_hook` of bpf/abi.h.
        let hook = match event {
            EVENT_PACKET => usize::from(direction).min(1),
            EVENT_DSACK => usize::from(EVENT_RETRANSMIT) + 1,
            other => usize::from(other) + 1,
        };
        by_flow.entry(flow).or_default().by_hook[hook.min(TCP_HOOK_COUNT - 1)] += 1;
    }
}
