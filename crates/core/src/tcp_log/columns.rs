//! The columns of the log: one table. The schema, the writer, the reader, the rows of conversions and the
//! check of `docs/formats/tcp-log.md` follow from it.

use crate::abi::{NO_SAMPLE, SSTHRESH_INFINITE};

/// Names of `enum direction`, in its order.
pub const DIRECTION_NAMES: &[&str] = &["in", "out", "none"];
/// Names of `enum tcp_event`, in its order.
pub const EVENT_NAMES: &[&str] = &["packet", "retransmit", "congestion_state", "close", "dsack"];
/// Names of the timers that `icsk_pending` can have, in the order of [`timer_of`](super::scale::timer_of).
pub const TIMER_NAMES: &[&str] = &[
    "none",
    "retransmit",
    "window_probe",
    "loss_probe",
    "reordering",
];
/// A value of one byte that means "none".
pub const NO_VALUE: u8 = u8::MAX;
/// Names of Linux's `sk_state`, in its order; 0 is no state of Linux.
pub const STATE_NAMES: &[&str] = &[
    "UNKNOWN",
    "ESTABLISHED",
    "SYN_SENT",
    "SYN_RECV",
    "FIN_WAIT1",
    "FIN_WAIT2",
    "TIME_WAIT",
    "CLOSE",
    "CLOSE_WAIT",
    "LAST_ACK",
    "LISTEN",
    "CLOSING",
    "NEW_SYN_RECV",
];
/// Names of Linux's `enum tcp_ca_state`, in its order.
pub const CA_STATE_NAMES: &[&str] = &["Open", "Disorder", "CWR", "Recovery", "Loss"];
/// Names of `enum tcp_ending` from `ENDING_OPEN` on, in its order.
pub const ENDING_NAMES: &[&str] = &[
    "open",
    "fin",
    "fin_sent",
    "reset_received",
    "aborted",
    "timeout",
    "unreachable",
];

/// The name of a number of `enum tcp_ending`; none of one that is unknown.
pub fn ending_name(ending: u8) -> Option<&'static str> {
    ENDING_NAMES
        .get(usize::from(ending.checked_sub(1)?))
        .copied()
}

// Their indices.
pub(crate) const CA_OPEN: u8 = 0;
pub(crate) const CA_DISORDER: u8 = 1;
pub(crate) const CA_CWR: u8 = 2;
pub(crate) const CA_RECOVERY: u8 = 3;
pub(crate) const CA_LOSS: u8 = 4;
const _: () = assert!(CA_STATE_NAMES.len() == CA_LOSS as usize + 1);

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nanoseconds since 1970, UTC; 8 bytes.
    TimestampNs,
    /// Unsigned, 1 byte.
    U8,
    /// Unsigned, 2 bytes.
    U16,
    /// Unsigned, 4 bytes.
    U32,
    /// Unsigned, 8 bytes.
    U64,
    /// One byte before it is encoded, stored as one bit.
    Bool,
    /// An index of 1 byte into constant names.
    Names(&'static [&'static str]),
}

impl Kind {
    /// Bytes of a value before it is encoded.
    pub const fn width_bytes(self) -> usize {
        match self {
            Kind::TimestampNs | Kind::U64 => 8,
            Kind::U32 => 4,
            Kind::U16 => 2,
            Kind::U8 | Kind::Bool | Kind::Names(_) => 1,
        }
    }
}

/// One column of the log.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name in the file.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its unit; empty when it has none.
    pub unit: &'static str,
    /// Values from this one on mean "none" and are null in the file.
    pub null_from: Option<u64>,
}

/// Calls a macro with all columns, in the order of the file. A line has
///
/// - the name,
/// - the type: `time`, `u8`, `u16`, `u32`, `u64`, `bool` or `names(NAMES)`,
/// - the nulls: `never`, or `from(VALUE)`, as [`Column::null_from`],
/// - the unit,
/// - the value, made of the record and a [`Scale`](super::scale::Scale).
macro_rules! column_table {
    ($callback:ident) => {
        $callback! { |record, scale|
            time_ns: time, never, "ns" => scale.realtime_ns(record.time_ns);
            flow: u32, never, "" => record.flow;
            direction: names(DIRECTION_NAMES), never, "" => clamped(record.direction, DIRECTION_NAMES);
            event: names(EVENT_NAMES), never, "" => clamped(record.event, EVENT_NAMES);
            flow_seq: u64, never, "packets" => record.flow_seq;
            state: names(STATE_NAMES), never, "" => known_state(record.state);
            cwnd_segments: u32, never, "segments" => record.cwnd_segments;
            ssthresh_segments: u32, from(SSTHRESH_INFINITE), "segments" => record.ssthresh_segments;
            mss_bytes: u32, never, "bytes" => record.mss_bytes;
            srtt_us: u32, never, "µs" => record.srtt_us_x8 >> 3;
            rttvar_us: u32, never, "µs" => record.mdev_us_x4 >> 2;
            min_rtt_us: u32, from(NO_SAMPLE), "µs" => record.min_rtt_us;
            rto_us: u32, never, "µs" => scale.us_of_jiffies(record.rto_jiffies);
            snd_una: u32, never, "sequence" => record.snd_una;
            snd_nxt: u32, never, "sequence" => record.snd_nxt;
            snd_wnd_bytes: u32, never, "bytes" => record.snd_wnd_bytes;
            rcv_nxt: u32, never, "sequence" => record.rcv_nxt;
            rcv_wnd_bytes: u32, never, "bytes" => record.rcv_wnd_bytes;
            packets_out: u32, never, "segments" => record.packets_out;
            retrans_out: u32, never, "segments" => record.retrans_out;
            lost_out: u32, never, "segments" => record.lost_out;
            sacked_out: u32, never, "segments" => record.sacked_out;
            total_retrans: u32, never, "segments" => record.total_retrans;
            ca_state: names(CA_STATE_NAMES), never, "" => clamped(record.ca_state, CA_STATE_NAMES);
            pacing_rate_Bps: u64, from(u64::MAX), "bytes/s" => record.pacing_rate_Bps;
            delivery_rate_Bps: u64, never, "bytes/s" => delivery_rate_Bps(record);
            delivered: u32, never, "segments" => record.delivered;
            delivered_ce: u32, never, "segments" => record.delivered_ce;
            app_limited: bool, never, "" => u8::from(record.app_limited & 15 != 0);
            sndbuf_bytes: u32, never, "bytes" => record.sndbuf_bytes;
            sndbuf_used_bytes: u32, never, "bytes" => record.sndbuf_used_bytes;
            rcvbuf_bytes: u32, never, "bytes" => record.rcvbuf_bytes;
            rcvbuf_used_bytes: u32, never, "bytes" => record.rcvbuf_used_bytes;
            snd_scale: u8, never, "bits" => record.window_scales & 15;
            rcv_scale: u8, never, "bits" => record.window_scales >> 4;
            pkt_seq: u32, never, "sequence" => record.pkt_seq;
            pkt_ack: u32, never, "sequence" => record.pkt_ack;
            pkt_flags: u16, never, "" => record.pkt_flags;
            payload_bytes: u32, never, "bytes" => record.payload_bytes;
            gso_segs: u16, never, "packets" => record.gso_segs;
            timer: names(TIMER_NAMES), from(NO_VALUE), "" => timer_of(record);
            dupthresh_segments: u8, from(NO_VALUE), "segments" => dupthresh_of(record);
            reordering_seen: bool, from(NO_VALUE), "" => loss_flag(record, LOSS_STATE_REORDERED);
            can_undo: bool, from(NO_VALUE), "" => loss_flag(record, LOSS_STATE_CAN_UNDO);
            original_acked: bool, from(NO_VALUE), "" => loss_flag(record, LOSS_STATE_ORIGINAL);
            ending: names(ENDING_NAMES), from(NO_VALUE), "" => ending_of(record);
        }
    };
}
pub(crate) use column_table;

macro_rules! kind {
    (time) => {
        Kind::TimestampNs
    };
    (u8) => {
        Kind::U8
    };
    (u16) => {
        Kind::U16
    };
    (u32) => {
        Kind::U32
    };
    (u64) => {
        Kind::U64
    };
    (bool) => {
        Kind::Bool
    };
    (names $names:ident) => {
        Kind::Names($names)
    };
}

macro_rules! list_columns {
    (|$record:ident, $scale:ident| $($name:ident: $kind:ident $(($names:ident))?, $null:ident $(($null_from:expr))?,
        $unit:literal => $value:expr;)*) => {
        /// All columns, in the order of the file.
        pub const COLUMNS: &[Column] = &[$(Column {
            name: stringify!($name),
            kind: kind!($kind $($names)?),
            unit: $unit,
            null_from: [$(Some($null_from as u64),)? None][0],
        },)*];
    };
}

column_table!(list_columns);

#[cfg(test)]
mod tests {
    use super::{COLUMNS, Column, Kind};
    use std::path::Path;

    fn page(name: &str) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        std::fs::read_to_string(root.join(name)).unwrap()
    }

    /// Name, type and unit of a column, as the format's page shows them.
    fn described(column: &Column) -> (String, String, String) {
        let kind = match column.kind {
            Kind::TimestampNs => "timestamp, UTC",
            Kind::U8 => "u8",
            Kind::U16 => "u16",
            Kind::U32 => "u32",
            Kind::U64 => "u64",
            Kind::Bool => "bool",
            Kind::Names(_) => "names",
        };
        let null = if column.null_from.is_some() {
            ", null"
        } else {
            ""
        };
        (
            column.name.into(),
            format!("{kind}{null}"),
            column.unit.into(),
        )
    }

    #[test]
    fn the_page_of_the_format_lists_the_columns() {
        let page = page("docs/formats/tcp-log.md");
        let rows = page
            .split("\n## ")
            .find(|part| part.starts_with("The rows"));
        let mut listed = Vec::new();
        for line in rows.unwrap().lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            for name in cells[1].split(", ") {
                listed.push((
                    name.trim_matches('`').into(),
                    cells[2].into(),
                    cells[3].into(),
                ));
            }
        }
        let mut expected: Vec<_> = COLUMNS.iter().map(described).collect();
        // The page groups columns that are explained together.
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected);
    }

    #[test]
    fn the_readme_counts_the_columns() {
        let count = format!("a table of {} columns", COLUMNS.len());
        assert!(page("README.md").contains(&count), "{count}");
    }
}
