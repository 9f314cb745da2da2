//! One row of a log, out of the columns of a batch.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{
    Int8Type, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::record_batch::RecordBatch;

/// Index of `packet` in the event names.
pub const PACKET: i8 = 0;
/// Index of `retransmit` in the event names.
pub const RETRANSMIT: i8 = 1;
/// Index of `close` in the event names.
pub const CLOSE: i8 = 3;
/// Index of `in` in the direction names.
pub const IN: i8 = 0;
/// Index of `out` in the direction names.
pub const OUT: i8 = 1;
/// Linux's number of `ESTABLISHED`.
pub const ESTABLISHED: u8 = 1;
/// Linux's number of `NEW_SYN_RECV`: a handshake without a socket, so without TCP state.
pub const NEW_SYN_RECV: u8 = 12;
/// Index of `Disorder` in the names of congestion states.
pub const CA_DISORDER: i8 = 1;
/// Index of `CWR` in the names of congestion states.
pub const CA_CWR: i8 = 2;
/// Index of `Recovery` in the names of congestion states.
pub const CA_RECOVERY: i8 = 3;
/// Index of `Loss` in the names of congestion states.
pub const CA_LOSS: i8 = 4;
/// FIN in `pkt_flags`.
pub const FLAG_FIN: u16 = 0x01;
/// SYN in `pkt_flags`.
pub const FLAG_SYN: u16 = 0x02;
/// RST in `pkt_flags`.
pub const FLAG_RST: u16 = 0x04;
/// ECE in `pkt_flags`.
pub const FLAG_ECE: u16 = 0x40;

macro_rules! rows {
    ($($kind:ident $name:ident: $type:ty,)*) => {
        /// A row. Names and units are those of the log's columns.
        #[allow(non_snake_case, missing_docs)]
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct Row { $(pub $name: $type,)* }

        /// All rows of a batch.
        #[allow(non_snake_case)]
        pub fn rows(batch: &RecordBatch) -> impl Iterator<Item = Row> + '_ {
            #[allow(non_snake_case)]
            struct Columns<'a> { $($name: rows!(@slice $kind 'a),)* }
            let mut next = batch.columns().iter();
            // The reader has checked that the columns are those of the format, in its order.
            $(let $name = rows!(@column $kind next.next().expect(stringify!($name)));)*
            let columns = Columns { $($name,)* };
            (0..batch.num_rows()).map(move |row| Row { $($name: rows!(@value $kind columns.$name, row),)* })
        }
    };
    (@slice time $life:lifetime) => { &$life [i64] };
    (@slice u8 $life:lifetime) => { &$life [u8] };
    (@slice u16 $life:lifetime) => { &$life [u16] };
    (@slice u32 $life:lifetime) => { &$life [u32] };
    (@slice u64 $life:lifetime) => { &$life [u64] };
    (@slice key $life:lifetime) => { &$life [i8] };
    (@slice state $life:lifetime) => { &$life [i8] };
    (@slice bit $life:lifetime) => { &$life arrow::array::BooleanArray };
    (@slice null32 $life:lifetime) => { &$life arrow::array::UInt32Array };
    (@slice null64 $life:lifetime) => { &$life arrow::array::UInt64Array };
    (@column time $array:expr) => { $array.as_primitive::<TimestampNanosecondType>().values().as_ref() };
    (@column u8 $array:expr) => { $array.as_primitive::<UInt8Type>().values().as_ref() };
    (@column u16 $array:expr) => { $array.as_primitive::<UInt16Type>().values().as_ref() };
    (@column u32 $array:expr) => { $array.as_primitive::<UInt32Type>().values().as_ref() };
    (@column u64 $array:expr) => { $array.as_primitive::<UInt64Type>().values().as_ref() };
    (@column key $array:expr) => { $array.as_dictionary::<Int8Type>().keys().values().as_ref() };
    (@column state $array:expr) => { $array.as_dictionary::<Int8Type>().keys().values().as_ref() };
    (@column bit $array:expr) => { $array.as_boolean() };
    (@column null32 $array:expr) => { $array.as_primitive::<UInt32Type>() };
    (@column null64 $array:expr) => { $array.as_primitive::<UInt64Type>() };
    (@value bit $column:expr, $row:expr) => { $column.value($row) };
    (@value state $column:expr, $row:expr) => { $column[$row] as u8 };
    (@value null32 $column:expr, $row:expr) => { $column.is_valid($row).then(|| $column.value($row)) };
    (@value null64 $column:expr, $row:expr) => { $column.is_valid($row).then(|| $column.value($row)) };
    (@value $kind:ident $column:expr, $row:expr) => { $column[$row] };
}

rows! {
    time time_ns: i64,
    u32 flow: u32,
    key direction: i8,
    key event: i8,
    u64 flow_seq: u64,
    state state: u8,
    u32 cwnd_segments: u32,
    null32 ssthresh_segments: Option<u32>,
    u32 mss_bytes: u32,
    u32 srtt_us: u32,
    u32 rttvar_us: u32,
    null32 min_rtt_us: Option<u32>,
    u32 rto_us: u32,
    u32 snd_una: u32,
    u32 snd_nxt: u32,
    u32 snd_wnd_bytes: u32,
    u32 rcv_nxt: u32,
    u32 rcv_wnd_bytes: u32,
    u32 packets_out: u32,
    u32 retrans_out: u32,
    u32 lost_out: u32,
    u32 sacked_out: u32,
    u32 total_retrans: u32,
    key ca_state: i8,
    null64 pacing_rate_Bps: Option<u64>,
    u64 delivery_rate_Bps: u64,
    u32 delivered: u32,
    u32 delivered_ce: u32,
    bit app_limited: bool,
    u32 sndbuf_bytes: u32,
    u32 sndbuf_used_bytes: u32,
    u32 rcvbuf_bytes: u32,
    u32 rcvbuf_used_bytes: u32,
    u8 snd_scale: u8,
    u8 rcv_scale: u8,
    u32 pkt_seq: u32,
    u32 pkt_ack: u32,
    u16 pkt_flags: u16,
    u32 payload_bytes: u32,
    u16 gso_segs: u16,
}

impl Row {
    /// The congestion window in bytes.
    pub fn cwnd_bytes(&self) -> u32 {
        self.cwnd_segments.saturating_mul(self.mss_bytes)
    }

    /// The slow start threshold in bytes; `infinite_bytes` when it is not yet set or beyond that.
    pub fn ssthresh_bytes(&self, infinite_bytes: u32) -> u32 {
        self.ssthresh_segments.map_or(infinite_bytes, |segments| {
            segments.saturating_mul(self.mss_bytes).min(infinite_bytes)
        })
    }

    /// The current slow start threshold, as `tcp_current_ssthresh` of the kernel: outside of CWR and
    /// Recovery at least three quarters of the window. `None` when it is not yet set.
    pub fn current_ssthresh_segments(&self) -> Option<u32> {
        let set = self.ssthresh_segments?;
        if matches!(self.ca_state, CA_CWR | CA_RECOVERY) {
            return Some(set);
        }
        Some(set.max((self.cwnd_segments >> 1) + (self.cwnd_segments >> 2)))
    }

    /// `tcp_packets_in_flight` of the kernel.
    pub fn packets_in_flight(&self) -> u64 {
        (u64::from(self.packets_out) + u64::from(self.retrans_out))
            .saturating_sub(u64::from(self.sacked_out) + u64::from(self.lost_out))
    }

    /// Bytes sent and not acknowledged.
    pub fn in_flight_bytes(&self) -> u32 {
        self.snd_nxt.wrapping_sub(self.snd_una)
    }

    /// Seconds and microseconds since 1970.
    pub fn seconds_and_us(&self) -> (i64, i64) {
        seconds_and_us(self.time_ns)
    }
}

/// Splits nanoseconds since 1970 into seconds and microseconds.
pub fn seconds_and_us(time_ns: i64) -> (i64, i64) {
    (
        time_ns.div_euclid(1_000_000_000),
        time_ns.rem_euclid(1_000_000_000) / 1000,
    )
}
