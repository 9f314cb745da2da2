//! One row of a log, from the columns of a batch.

use crate::tcp_log::columns::{CA_CWR, CA_RECOVERY, column_table};
use arrow::array::{Array, AsArray};
use arrow::datatypes::{
    Int8Type, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::record_batch::RecordBatch;

pub const ESTABLISHED: u8 = 1;
/// Linux's number of `NEW_SYN_RECV`: a handshake without a socket, so without TCP state.
pub const NEW_SYN_RECV: u8 = 12;

macro_rules! value {
    (time) => { i64 };
    (names) => { u8 };
    (names null) => { Option<u8> };
    ($kind:ident) => { $kind };
    ($kind:ident null) => { Option<$kind> };
}

/// Numbers that are never null, as a slice; names are their indices. If a log lacks the column, they are 0.
macro_rules! array {
    (time, $array:expr) => {
        $array.as_primitive::<TimestampNanosecondType>().values()
    };
    (u8, $array:expr) => {
        $array.as_primitive::<UInt8Type>().values()
    };
    (u16, $array:expr) => {
        $array.as_primitive::<UInt16Type>().values()
    };
    (u32, $array:expr) => {
        $array.as_primitive::<UInt32Type>().values()
    };
    (u64, $array:expr) => {
        $array.as_primitive::<UInt64Type>().values()
    };
    (names, $array:expr) => {
        $array.as_dictionary::<Int8Type>().keys().values()
    };
    (bool, $array:expr) => {
        $array.as_boolean()
    };
    (u8 null, $array:expr) => {
        $array.as_primitive::<UInt8Type>()
    };
    (names null, $array:expr) => {
        $array.as_dictionary::<Int8Type>().keys()
    };
    (bool null, $array:expr) => {
        $array.as_boolean()
    };
    (u32 null, $array:expr) => {
        $array.as_primitive::<UInt32Type>()
    };
    (u64 null, $array:expr) => {
        $array.as_primitive::<UInt64Type>()
    };
}

macro_rules! cell {
    (names, $column:expr, $row:expr) => {
        $column[$row] as u8
    };
    (bool, $column:expr, $row:expr) => {
        $column.value($row)
    };
    (names null, $column:expr, $row:expr) => {
        $column.is_valid($row).then(|| $column.value($row) as u8)
    };
    ($kind:ident, $column:expr, $row:expr) => {
        $column[$row]
    };
    ($kind:ident null, $column:expr, $row:expr) => {
        $column.is_valid($row).then(|| $column.value($row))
    };
}

/// Calls a macro with the columns, with `null` behind the type of nullable ones.
macro_rules! with_null {
    ($callback:ident, $kind:ident, never $(, $argument:expr)*) => { $callback!($kind $(, $argument)*) };
    ($callback:ident, $kind:ident, from $(, $argument:expr)*) => { $callback!($kind null $(, $argument)*) };
}

macro_rules! rows {
    (|$record:ident, $scale:ident| $($name:ident: $kind:ident $(($names:ident))?, $null:ident $(($null_from:expr))?,
        $unit:literal => $value:expr;)*) => {
        /// A row, with the names and units of the log's columns.
        #[allow(non_snake_case, missing_docs)]
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct Row { $(pub $name: with_null!(value, $kind, $null),)* }

        /// All rows of a batch.
        #[allow(non_snake_case)]
        pub fn rows(batch: &RecordBatch) -> impl Iterator<Item = Row> + '_ {
            let mut next = batch.columns().iter();
            // The reader has checked that the columns are those of the format, in its order.
            $(let $name = with_null!(array, $kind, $null, next.next().expect(stringify!($name)));)*
            (0..batch.num_rows()).map(move |row| Row {
                $($name: with_null!(cell, $kind, $null, $name, row),)*
            })
        }
    };
}

column_table!(rows);

impl Row {
    pub fn cwnd_bytes(&self) -> u32 {
        self.cwnd_segments.saturating_mul(self.mss_bytes)
    }

    /// The slow start threshold in bytes; at most `infinite_bytes`, which also means that it is not yet set.
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

    pub fn in_flight_bytes(&self) -> u32 {
        self.snd_nxt.wrapping_sub(self.snd_una)
    }

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
