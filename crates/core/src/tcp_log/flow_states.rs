//! The flows of a log as they are: how much each moved, and its last state.

use super::columns::{DIRECTION_NAMES, STATE_NAMES};
use super::flow::FlowRow;
use super::retransmission::{CAUSE_NAMES, Causes, Row};
use crate::abi::EVENT_RETRANSMIT;
use crate::protocols::{TCP_ACK, TCP_RST};
use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, Int8Array, Int64Array, StringArray,
    UInt32Array, UInt64Array,
};
use arrow::datatypes::{Int8Type, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The columns that [`FlowStates`] reads.
pub const STATE_COLUMNS: [&str; 14] = [
    "time_ns",
    "flow",
    "event",
    "direction",
    "state",
    "cwnd_segments",
    "srtt_us",
    "snd_una",
    "rcv_nxt",
    "total_retrans",
    "pkt_seq",
    "pkt_ack",
    "pkt_flags",
    "payload_bytes",
];
/// Those that it reads of events only.
pub const EVENT_COLUMNS: [&str; 6] = [
    "ca_state",
    "sacked_out",
    "gso_segs",
    "timer",
    "dupthresh_segments",
    "reordering_seen",
];
/// Events that wait for what the flow table says of their flows; of more, SACK is taken to be agreed.
const WAITING_MAX: usize = 1 << 16;

/// The columns of the rows that a batch has all of, as slices.
struct Rows<'a> {
    time_ns: &'a [i64],
    flow: &'a [u32],
    direction: &'a [i8],
    state: &'a [i8],
    cwnd_segments: &'a [u32],
    srtt_us: &'a [u32],
    snd_una: &'a [u32],
    rcv_nxt: &'a [u32],
    total_retrans: &'a [u32],
    pkt_seq: &'a [u32],
    pkt_ack: &'a [u32],
    pkt_flags: &'a [u16],
    payload_bytes: &'a [u32],
}

impl<'a> Rows<'a> {
    /// `None`: a column is missing, or is not the log's.
    fn of(batch: &'a RecordBatch) -> Option<Self> {
        fn values<'a, T: ArrowPrimitiveType>(
            batch: &'a RecordBatch,
            name: &str,
        ) -> Option<&'a [T::Native]> {
            let column = batch.column_by_name(name)?.as_primitive_opt::<T>()?;
            (column.null_count() == 0).then(|| column.values().as_ref())
        }
        fn names<'a>(batch: &'a RecordBatch, name: &str) -> Option<&'a [i8]> {
            let column = batch
                .column_by_name(name)?
                .as_dictionary_opt::<Int8Type>()?;
            let indices: &Int8Array = column.keys();
            (indices.null_count() == 0).then(|| indices.values().as_ref())
        }
        Some(Self {
            time_ns: values::<TimestampNanosecondType>(batch, "time_ns")?,
            flow: values::<UInt32Type>(batch, "flow")?,
            direction: names(batch, "direction")?,
            state: names(batch, "state")?,
            cwnd_segments: values::<UInt32Type>(batch, "cwnd_segments")?,
            srtt_us: values::<UInt32Type>(batch, "srtt_us")?,
            snd_una: values::<UInt32Type>(batch, "snd_una")?,
            rcv_nxt: values::<UInt32Type>(batch, "rcv_nxt")?,
            total_retrans: values::<UInt32Type>(batch, "total_retrans")?,
            pkt_seq: values::<UInt32Type>(batch, "pkt_seq")?,
            pkt_ack: values::<UInt32Type>(batch, "pkt_ack")?,
            pkt_flags: values::<UInt16Type>(batch, "pkt_flags")?,
            payload_bytes: values::<UInt32Type>(batch, "payload_bytes")?,
        })
    }

    /// The events that the causes of retransmissions follow from, with the numbers of their rows; none where the batch has
    /// no events.
    fn of_retransmissions(&self, batch: &RecordBatch) -> Vec<(usize, Row)> {
        self.retransmissions(batch).unwrap_or_default()
    }

    fn retransmissions(&self, batch: &RecordBatch) -> Option<Vec<(usize, Row)>> {
        let column = |name: &str| batch.column_by_name(name);
        let names = |name: &str| Some(column(name)?.as_dictionary_opt::<Int8Type>()?.keys());
        let (events, states, timers) = (names("event")?, names("ca_state")?, names("timer")?);
        let sacked = column("sacked_out")?.as_primitive_opt::<UInt32Type>()?;
        let segments = column("gso_segs")?.as_primitive_opt::<UInt16Type>()?;
        let thresholds = column("dupthresh_segments")?.as_primitive_opt::<UInt8Type>()?;
        let reordering = column("reordering_seen")?.as_boolean_opt()?;
        if states.null_count() > 0 {
            return None;
        }
        let kinds = events.values().iter().enumerate();
        let rows = kinds.filter_map(|(row, &event)| Causes::needs(event as u8).then_some(row));
        let row_of = |row: usize| Row {
            time_ns: self.time_ns[row],
            flow: self.flow[row],
            event: events.value(row) as u8,
            ca_state: states.value(row) as u8,
            sacked_out: sacked.value(row),
            pkt_seq: self.pkt_seq[row],
            pkt_flags: self.pkt_flags[row],
            gso_segs: segments.value(row),
            timer: timers.is_valid(row).then(|| timers.value(row) as u8),
            dupthresh_segments: thresholds.is_valid(row).then(|| thresholds.value(row)),
            reordering_seen: reordering.is_valid(row).then(|| reordering.value(row)),
            ..Row::default()
        };
        Some(rows.map(|row| (row, row_of(row))).collect())
    }

    /// The sequence numbers up to which the row's packet acknowledges, and up to which it brings: a row has the state
    /// without its packet, so what an inbound packet acknowledges and brings is added. The number of a reset is that of
    /// the data that it answers: nothing of it came to the peer's program.
    fn numbers(&self, row: usize) -> (u32, u32) {
        let (mut acked, mut received) = (self.snd_una[row], self.rcv_nxt[row]);
        let flags = self.pkt_flags[row];
        if DIRECTION_NAMES.get(self.direction[row] as usize) == Some(&"in") && flags & TCP_RST == 0
        {
            if flags & TCP_ACK != 0 && ahead(self.pkt_ack[row], acked) > 0 {
                acked = self.pkt_ack[row];
            }
            let overlap = ahead(received, self.pkt_seq[row]);
            if overlap >= 0 && i64::from(self.payload_bytes[row]) > overlap {
                received = self.pkt_seq[row].wrapping_add(self.payload_bytes[row]);
            }
        }
        (acked, received)
    }
}

/// How far a sequence number is ahead of another one, modulo 2^32; negative: behind.
fn ahead(number: u32, of: u32) -> i64 {
    i64::from(number.wrapping_sub(of) as i32)
}

/// What a row of a state says of the connection.
enum Kind {
    /// Nothing: the kernel has no full socket there, and what it would tell of one is 0.
    None,
    /// That it begins: the kernel has no socket of its own for it yet. Whether it gets one, these rows do not say.
    Begin,
    /// It has no number of the peer yet.
    SynSent,
    Open,
}

impl Kind {
    fn of(state: &str) -> Self {
        match state {
            "TIME_WAIT" | "LISTEN" | "UNKNOWN" => Self::None,
            "NEW_SYN_RECV" => Self::Begin,
            "SYN_SENT" => Self::SynSent,
            _ => Self::Open,
        }
    }
}

/// From here on a difference of sequence numbers does not say how far one is ahead of another.
const AMBIGUOUS_BYTES: f64 = (1_u64 << 31) as f64;
/// Rates are those of this time or longer, so that what a burst leaves at a time is none.
const RATE_MIN_NS: i64 = 1_000_000;

/// How far a sequence number advanced.
#[derive(Clone, Copy, Debug, Default)]
struct Advance {
    last: Option<u32>,
    at: i64,
    highest: i64,
    /// Its highest rate, bytes per nanosecond.
    fastest: f64,
    /// Where the time of a rate began: time and `highest`.
    mark: (i64, i64),
}

impl Advance {
    /// A step may be negative: rows of two CPUs may be out of order, and a segment may wait while the application
    /// holds the socket.
    fn to(&mut self, number: u32, time_ns: i64) {
        if let Some(last) = self.last {
            self.at += ahead(number, last);
            self.highest = self.highest.max(self.at);
            let (mark_ns, mark) = self.mark;
            if time_ns - mark_ns >= RATE_MIN_NS {
                let rate = (self.highest - mark) as f64 / (time_ns - mark_ns) as f64;
                self.fastest = self.fastest.max(rate);
                self.mark = (time_ns, self.highest);
            }
        } else {
            self.mark = (time_ns, 0);
        }
        self.last = Some(number);
    }

    /// Whether so much may have moved in a time without a row that its sequence numbers do not tell how much: at its
    /// highest rate it would have.
    fn may_lack(&self, without_row_ns: i64) -> bool {
        self.fastest * without_row_ns as f64 >= AMBIGUOUS_BYTES
    }
}

#[derive(Clone, Copy, Debug)]
struct FlowState {
    records: u64,
    begin_ns: i64,
    end_ns: i64,
    /// The longest time without a row.
    without_row_ns: i64,
    acked: Advance,
    received: Advance,
    retransmitted_first: u32,
    retransmitted_last: u32,
    state: i8,
    cwnd_segments: u32,
    /// 0: none was measured.
    srtt_us: u32,
    /// A row had its socket; a flow without one is in no table.
    has_socket: bool,
}

/// Why segments of a flow were sent again: their numbers, by [`Cause`](super::retransmission::Cause) and last those that
/// have none.
#[derive(Clone, Debug, Default)]
struct SentAgain {
    causes: Causes,
    segments: [u64; CAUSE_NAMES.len() + 1],
}

impl SentAgain {
    fn see(&mut self, row: &Row, sack: bool) {
        if let Some((at, segments)) = self.causes.see(row, sack) {
            self.segments[at] += segments;
        }
    }

    /// Numbers and causes, the largest first: `12 fast, 1 rto`; `None` without any.
    fn text(&self) -> Option<String> {
        let names = CAUSE_NAMES.iter().copied().chain(["unknown"]);
        let mut found: Vec<_> = (self.segments.iter().zip(names))
            .filter(|(segments, _)| **segments > 0)
            .collect();
        found.sort_by_key(|(segments, _)| std::cmp::Reverse(**segments));
        let texts: Vec<_> = found
            .iter()
            .map(|(segments, name)| format!("{segments} {name}"))
            .collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    }
}

/// What the rows of a log say of each flow so far.
#[derive(Clone, Debug, Default)]
pub struct FlowStates {
    flows: FxHashMap<u32, FlowState>,
    sent_again: FxHashMap<u32, SentAgain>,
    /// Whether SACK was agreed, as the flow table says.
    sack: FxHashMap<u32, bool>,
    /// Events of flows that are not in the flow table yet.
    waiting: Vec<Row>,
    records: u64,
    until_ns: i64,
}

impl FlowStates {
    /// Rows so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The newest row's time; 0: there is none.
    pub fn until_ns(&self) -> i64 {
        self.until_ns
    }

    /// Takes in rows of the flow table: whether a flow has SACK decides why its segments are sent again.
    pub fn note_flows<'a>(&mut self, flows: impl IntoIterator<Item = &'a FlowRow>) {
        self.sack
            .extend(flows.into_iter().map(|row| (row.flow, row.sack)));
        for row in std::mem::take(&mut self.waiting) {
            self.see(row);
        }
    }

    fn see(&mut self, row: Row) {
        let known = self.sack.get(&row.flow).copied();
        if known.is_none() && self.waiting.len() < WAITING_MAX {
            self.waiting.push(row);
            return;
        }
        let sent_again = self.sent_again.entry(row.flow).or_default();
        sent_again.see(&row, known.unwrap_or(true));
    }

    /// Adds rows with the columns of [`STATE_COLUMNS`] and [`EVENT_COLUMNS`], in the order of the file; `flow_base` is
    /// added to the numbers of their flows.
    pub fn add(&mut self, batch: &RecordBatch, flow_base: u32) {
        self.records += batch.num_rows() as u64;
        let Some(rows) = Rows::of(batch) else {
            return;
        };
        let mut retransmissions = Vec::new();
        for (at, mut row) in rows.of_retransmissions(batch) {
            row.flow = row.flow.wrapping_add(flow_base);
            if row.event == EVENT_RETRANSMIT {
                retransmissions.push((row.flow, rows.total_retrans[at], row.gso_segs));
            }
            self.see(row);
        }
        // By number, since a name is compared for each row otherwise.
        let kinds: Vec<Kind> = STATE_NAMES.iter().map(|name| Kind::of(name)).collect();
        for row in 0..batch.num_rows() {
            let Some(kind @ (Kind::Begin | Kind::SynSent | Kind::Open)) =
                kinds.get(rows.state[row] as usize)
            else {
                continue;
            };
            let time_ns = rows.time_ns[row];
            let retransmitted = rows.total_retrans[row];
            let flow = (self.flows)
                .entry(rows.flow[row].wrapping_add(flow_base))
                .or_insert(FlowState {
                    records: 0,
                    begin_ns: time_ns,
                    end_ns: time_ns,
                    without_row_ns: 0,
                    acked: Advance::default(),
                    received: Advance::default(),
                    retransmitted_first: retransmitted,
                    retransmitted_last: retransmitted,
                    state: 0,
                    cwnd_segments: 0,
                    srtt_us: 0,
                    has_socket: false,
                });
            flow.without_row_ns = flow.without_row_ns.max(time_ns - flow.end_ns);
            flow.begin_ns = flow.begin_ns.min(time_ns);
            flow.end_ns = flow.end_ns.max(time_ns);
            self.until_ns = self.until_ns.max(time_ns);
            if matches!(kind, Kind::Begin) {
                continue;
            }
            flow.records += 1;
            if !flow.has_socket {
                flow.has_socket = true;
                flow.retransmitted_first = retransmitted;
                flow.retransmitted_last = retransmitted;
            }
            flow.retransmitted_first = flow.retransmitted_first.min(retransmitted);
            flow.retransmitted_last = flow.retransmitted_last.max(retransmitted);
            flow.state = rows.state[row];
            flow.cwnd_segments = rows.cwnd_segments[row];
            if rows.srtt_us[row] > 0 {
                flow.srtt_us = rows.srtt_us[row];
            }
            // Before the peer's SYN there is no number to advance from.
            if matches!(kind, Kind::Open) {
                let (acked, received) = rows.numbers(row);
                if flow.acked.last.is_none() {
                    // What the first packet acknowledges and brings counts, too.
                    flow.acked.to(rows.snd_una[row], time_ns);
                    flow.received.to(rows.rcv_nxt[row], time_ns);
                }
                flow.acked.to(acked, time_ns);
                flow.received.to(received, time_ns);
            }
        }
        // The kernel counts what it sends again before it does, and the event comes behind the packet: a log that begins
        // between the two has the event of what its first row counts already.
        for (flow, counted, segments) in retransmissions {
            if let Some(flow) = self.flows.get_mut(&flow) {
                let before = counted.saturating_sub(segments.into());
                flow.retransmitted_first = flow.retransmitted_first.min(before);
            }
        }
    }

    /// Forgets flows; a later row of one is of a new flow.
    pub fn forget(&mut self, flows: &[u32]) {
        for flow in flows {
            self.flows.remove(flow);
            self.sent_again.remove(flow);
            self.sack.remove(flow);
        }
    }

    /// The flows, one a row, by their numbers.
    ///
    /// # Errors
    /// As [`RecordBatch::try_from_iter_with_nullable`].
    pub fn table(&self) -> Result<RecordBatch, ArrowError> {
        fn column<A: FromIterator<T> + Array + 'static, T>(
            flows: &[(&u32, &FlowState)],
            value: impl Fn(&FlowState) -> T,
        ) -> ArrayRef {
            Arc::new(flows.iter().map(|(_, flow)| value(flow)).collect::<A>())
        }
        let mut all: Vec<_> = (self.flows.iter())
            .filter(|(_, flow)| flow.has_socket)
            .collect();
        all.sort_unstable_by_key(|(number, _)| **number);
        let all = &all[..];
        let numbers = all
            .iter()
            .map(|(number, _)| **number)
            .collect::<UInt32Array>();
        let state = |flow: &FlowState| STATE_NAMES.get(flow.state as usize).copied();
        let srtt_us = |flow: &FlowState| (flow.srtt_us > 0).then_some(flow.srtt_us);
        let causes: StringArray = (all.iter())
            .map(|(number, _)| self.sent_again.get(number)?.text())
            .collect();
        let u32s = |value: fn(&FlowState) -> u32| column::<UInt32Array, _>(all, value);
        let i64s = |value: fn(&FlowState) -> i64| column::<Int64Array, _>(all, value);
        RecordBatch::try_from_iter_with_nullable([
            ("flow", Arc::new(numbers) as ArrayRef, false),
            (
                "records",
                column::<UInt64Array, _>(all, |flow| flow.records),
                false,
            ),
            ("begin_ns", i64s(|flow| flow.begin_ns), false),
            ("end_ns", i64s(|flow| flow.end_ns), false),
            ("acked_bytes", i64s(|flow| flow.acked.highest), false),
            ("received_bytes", i64s(|flow| flow.received.highest), false),
            (
                "acked_may_lack",
                column::<BooleanArray, _>(all, |flow| {
                    Some(flow.acked.may_lack(flow.without_row_ns))
                }),
                false,
            ),
            (
                "received_may_lack",
                column::<BooleanArray, _>(all, |flow| {
                    Some(flow.received.may_lack(flow.without_row_ns))
                }),
                false,
            ),
            (
                "retransmitted_first",
                u32s(|flow| flow.retransmitted_first),
                false,
            ),
            (
                "retransmitted_last",
                u32s(|flow| flow.retransmitted_last),
                false,
            ),
            ("cwnd_segments", u32s(|flow| flow.cwnd_segments), false),
            ("srtt_us", column::<UInt32Array, _>(all, srtt_us), true),
            ("state", column::<StringArray, _>(all, state), true),
            ("retransmitted_for", Arc::new(causes), true),
        ])
    }
}

#[cfg(test)]
#[path = "flow_states_tests.rs"]
mod tests;
