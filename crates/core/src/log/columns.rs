//! The columns of the log: one table from which follow the schema, the buffers and the transposition.
//!
//! Records come as rows of 176 bytes; a log holds columns. The transposition goes column by column
//! over blocks of records that stay in the first-level cache, into buffers allocated once.

use crate::abi::{NO_SAMPLE, SSTHRESH_INFINITE, TcpStateRecord};
use arrow::datatypes::ToByteSlice;

/// Names of `enum direction`, in its order.
pub const DIRECTION_NAMES: &[&str] = &["in", "out", "none"];
/// Names of `enum tcp_event`, in its order.
pub const EVENT_NAMES: &[&str] = &["packet", "retransmit", "congestion_state", "close"];
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

/// Records of a block: 128 of them are 22 KiB, which leaves room in a first-level cache of 32 KiB.
const BLOCK_RECORDS: usize = 128;

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
    /// Transposed as one byte, stored as one bit.
    Bool,
    /// An index of 1 byte into constant names.
    Names(&'static [&'static str]),
}

impl Kind {
    /// Bytes of a value in the transposed buffer.
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
    /// Values from here upwards mean "none" and are null in the file.
    pub null_from: Option<u64>,
}

/// What turns kernel units into those of the log.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    monotonic_offset_ns: i64,
    hz: u64,
    us_per_jiffy: Option<u32>,
}

impl Scale {
    /// For a clock offset (`CLOCK_REALTIME - CLOCK_MONOTONIC`) and the kernel's `CONFIG_HZ`.
    pub fn new(monotonic_offset_ns: i64, hz: u32) -> Self {
        let hz = u64::from(hz.max(1));
        let us_per_jiffy = 1_000_000u64
            .is_multiple_of(hz)
            .then(|| (1_000_000 / hz) as u32);
        Self {
            monotonic_offset_ns,
            hz,
            us_per_jiffy,
        }
    }

    fn realtime_ns(&self, monotonic_ns: u64) -> i64 {
        (monotonic_ns as i64).wrapping_add(self.monotonic_offset_ns)
    }

    fn us_of_jiffies(&self, jiffies: u32) -> u32 {
        match self.us_per_jiffy {
            Some(us) => jiffies.saturating_mul(us),
            None => (u64::from(jiffies) * 1_000_000 / self.hz)
                .try_into()
                .unwrap_or(u32::MAX),
        }
    }
}

/// `tcp_compute_delivery_rate` of the kernel, in bytes a second.
fn delivery_rate(record: &TcpStateRecord) -> u64 {
    if record.rate_interval_us == 0 {
        return 0;
    }
    let bytes = u64::from(record.rate_delivered) * u64::from(record.mss_bytes);
    match bytes.checked_mul(1_000_000) {
        Some(scaled) => scaled / u64::from(record.rate_interval_us),
        None => (u128::from(bytes) * 1_000_000 / u128::from(record.rate_interval_us))
            .try_into()
            .unwrap_or(u64::MAX),
    }
}

macro_rules! state_columns {
    (|$record:ident, $scale:ident| $($name:ident: $storage:ty, $kind:expr, $null_from:expr, $value:expr;)*) => {
        /// All columns, in the order of the file.
        pub const COLUMNS: &[Column] = &[
            $(Column { name: stringify!($name), kind: $kind, null_from: $null_from },)*
        ];

        /// Transposed records, waiting to be encoded.
        #[allow(non_snake_case)]
        pub struct StateColumns {
            rows: usize,
            capacity: usize,
            scale: Scale,
            $($name: Vec<$storage>,)*
        }

        impl StateColumns {
            /// Room for `capacity` rows, allocated at once.
            pub fn new(capacity: usize, scale: Scale) -> Self {
                Self { rows: 0, capacity, scale, $($name: vec![0; capacity],)* }
            }

            /// Appends as many records as there is room for; returns how many that were.
            pub fn append(&mut self, records: &[TcpStateRecord]) -> usize {
                let taken = records.len().min(self.capacity - self.rows);
                for block in records[..taken].chunks(BLOCK_RECORDS) {
                    let rows = self.rows..self.rows + block.len();
                    let $scale = self.scale;
                    $(for (slot, $record) in self.$name[rows.clone()].iter_mut().zip(block) {
                        *slot = $value;
                    })*
                    self.rows = rows.end;
                }
                taken
            }

            /// Calls `each` with every column and the bytes of its values, in the order of the file.
            pub fn for_each<E>(&self, mut each: impl FnMut(&'static Column, &[u8]) -> Result<(), E>) -> Result<(), E> {
                let mut columns = COLUMNS.iter();
                $(if let Some(column) = columns.next() {
                    each(column, self.$name[..self.rows].to_byte_slice())?;
                })*
                Ok(())
            }
        }
    };
}

state_columns! { |record, scale|
    time_ns: i64, Kind::TimestampNs, None, scale.realtime_ns(record.time_ns);
    flow: u32, Kind::U32, None, record.flow;
    direction: u8, Kind::Names(DIRECTION_NAMES), None, clamped(record.direction, DIRECTION_NAMES);
    event: u8, Kind::Names(EVENT_NAMES), None, clamped(record.event, EVENT_NAMES);
    flow_seq: u64, Kind::U64, None, record.flow_seq;
    state: u8, Kind::Names(STATE_NAMES), None, known_state(record.state);
    cwnd_segments: u32, Kind::U32, None, record.cwnd_segments;
    ssthresh_segments: u32, Kind::U32, Some(SSTHRESH_INFINITE as u64), record.ssthresh_segments;
    mss_bytes: u32, Kind::U32, None, record.mss_bytes;
    srtt_us: u32, Kind::U32, None, record.srtt_us_x8 >> 3;
    rttvar_us: u32, Kind::U32, None, record.mdev_us_x4 >> 2;
    min_rtt_us: u32, Kind::U32, Some(NO_SAMPLE as u64), record.min_rtt_us;
    rto_us: u32, Kind::U32, None, scale.us_of_jiffies(record.rto_jiffies);
    snd_una: u32, Kind::U32, None, record.snd_una;
    snd_nxt: u32, Kind::U32, None, record.snd_nxt;
    snd_wnd_bytes: u32, Kind::U32, None, record.snd_wnd_bytes;
    rcv_nxt: u32, Kind::U32, None, record.rcv_nxt;
    rcv_wnd_bytes: u32, Kind::U32, None, record.rcv_wnd_bytes;
    packets_out: u32, Kind::U32, None, record.packets_out;
    retrans_out: u32, Kind::U32, None, record.retrans_out;
    lost_out: u32, Kind::U32, None, record.lost_out;
    sacked_out: u32, Kind::U32, None, record.sacked_out;
    total_retrans: u32, Kind::U32, None, record.total_retrans;
    ca_state: u8, Kind::Names(CA_STATE_NAMES), None, clamped(record.ca_state, CA_STATE_NAMES);
    pacing_rate_Bps: u64, Kind::U64, Some(u64::MAX), record.pacing_rate_Bps;
    delivery_rate_Bps: u64, Kind::U64, None, delivery_rate(record);
    delivered: u32, Kind::U32, None, record.delivered;
    delivered_ce: u32, Kind::U32, None, record.delivered_ce;
    app_limited: u8, Kind::Bool, None, u8::from(record.app_limited != 0);
    sndbuf_bytes: u32, Kind::U32, None, record.sndbuf_bytes;
    sndbuf_used_bytes: u32, Kind::U32, None, record.sndbuf_used_bytes;
    rcvbuf_bytes: u32, Kind::U32, None, record.rcvbuf_bytes;
    rcvbuf_used_bytes: u32, Kind::U32, None, record.rcvbuf_used_bytes;
    snd_scale: u8, Kind::U8, None, record.window_scales & 15;
    rcv_scale: u8, Kind::U8, None, record.window_scales >> 4;
    pkt_seq: u32, Kind::U32, None, record.pkt_seq;
    pkt_ack: u32, Kind::U32, None, record.pkt_ack;
    pkt_flags: u16, Kind::U16, None, record.pkt_flags;
    payload_bytes: u32, Kind::U32, None, record.payload_bytes;
    gso_segs: u16, Kind::U16, None, record.gso_segs;
}

/// An index into names; what the kernel side never writes becomes the last name, so that no index
/// of a log points nowhere.
fn clamped(index: u8, names: &[&str]) -> u8 {
    index.min(names.len() as u8 - 1)
}

fn known_state(state: u8) -> u8 {
    if usize::from(state) < STATE_NAMES.len() {
        state
    } else {
        0
    }
}

impl StateColumns {
    /// Rows that wait.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// True when [`StateColumns::append`] would take nothing.
    pub fn is_full(&self) -> bool {
        self.rows == self.capacity
    }

    /// Forgets the rows; the buffers stay.
    pub fn clear(&mut self) {
        self.rows = 0;
    }

    /// Nanoseconds from the first row that waits to the last.
    pub fn span_ns(&self) -> u64 {
        let times = &self.time_ns[..self.rows];
        times
            .first()
            .zip(times.last())
            .map_or(0, |(first, last)| last.abs_diff(*first))
    }

    /// Flow and event (an index of [`EVENT_NAMES`]) of every row that waits.
    pub fn flows_and_events(&self) -> impl Iterator<Item = (u32, u8, u8)> + '_ {
        (0..self.rows).map(|row| (self.flow[row], self.event[row], self.direction[row]))
    }
}
