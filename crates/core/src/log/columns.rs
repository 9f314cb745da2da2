//! The columns of the log: one table from which follow the schema, and how a record is taken apart.
//!
//! Records come as rows of 176 bytes; a log holds columns. Of most words only the changes are kept: in
//! bulk transfers four rows of five are like the row before but for a few restless words, and one
//! comparison of all the others says so. A column is made of its word when it is encoded.

use super::runs::{History, Kept, Runs};
use crate::abi::{NO_SAMPLE, RecordHeader, SSTHRESH_INFINITE, TcpStateRecord, plain_words};
use std::mem::offset_of;

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
/// Where the words of a record begin that go to the log.
const HEADER_WORDS: usize = size_of::<RecordHeader>() / 8;
/// Words of a record that go to the log.
const WORDS: usize = size_of::<TcpStateRecord>() / 8 - HEADER_WORDS;
/// The delivery rate is made of two words; it is kept as if it were a word behind the record.
const DELIVERY_RATE: usize = size_of::<TcpStateRecord>();
/// Words that differ from row to row, wherever bulk data goes.
const RESTLESS: [usize; 5] = [
    word_of(offset_of!(TcpStateRecord, time_ns)),
    word_of(offset_of!(TcpStateRecord, flow_seq)),
    word_of(offset_of!(TcpStateRecord, rcv_nxt)),
    word_of(offset_of!(TcpStateRecord, rcvbuf_used_bytes)),
    word_of(offset_of!(TcpStateRecord, pkt_seq)),
];
/// Fields of these words that mostly stay: they are kept as if each were a word behind the delivery rate.
const STEADY_HALVES: [usize; 3] = [
    offset_of!(TcpStateRecord, snd_wnd_bytes),
    offset_of!(TcpStateRecord, rcvbuf_bytes),
    offset_of!(TcpStateRecord, pkt_ack),
];
/// The first of each two words that stay together.
const STEADY_PAIRS: [usize; 7] = [2, 4, 6, 9, 11, 13, 17];
const _: () = {
    let mut mentions = [0; WORDS];
    let mut next = 0;
    while next < RESTLESS.len() {
        mentions[RESTLESS[next]] += 1;
        next += 1;
    }
    next = 0;
    while next < STEADY_PAIRS.len() {
        mentions[STEADY_PAIRS[next]] += 1;
        mentions[STEADY_PAIRS[next] + 1] += 1;
        next += 1;
    }
    next = 0;
    while next < WORDS {
        assert!(mentions[next] == 1, "a word is either restless or steady");
        next += 1;
    }
};

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

/// The history of a field by its place in the record.
const fn word_of(offset_bytes: usize) -> usize {
    offset_bytes / 8 - HEADER_WORDS
}

/// Where one of [`STEADY_HALVES`] is kept, as if it were its place in the record.
const fn steady_half(index: usize) -> usize {
    DELIVERY_RATE + 8 * (1 + index) + STEADY_HALVES[index] % 8
}

/// The bits of a word that a field of four bytes takes.
const fn bits_of(offset_bytes: usize) -> u64 {
    let mut bytes = [0; 8];
    let mut byte = offset_bytes % 8;
    while byte < offset_bytes % 8 + 4 {
        bytes[byte] = 0xFF;
        byte += 1;
    }
    u64::from_ne_bytes(bytes)
}

macro_rules! state_columns {
    (|$scale:ident| $($name:ident: $kind:expr, $null_from:expr, $at:expr => |$value:ident: $type:ty| $storage:ty { $map:expr })*) => {
        /// All columns, in the order of the file.
        pub const COLUMNS: &[Column] = &[
            $(Column { name: stringify!($name), kind: $kind, null_from: $null_from },)*
        ];

        impl StateColumns {
            /// Calls `each` with every column and the runs of its values, in the order of the file.
            /// The runs are written to `runs`.
            ///
            /// # Errors
            /// The first error of `each`.
            pub fn for_each<E>(
                &self,
                runs: &mut Runs,
                mut each: impl FnMut(&'static Column, &Runs) -> Result<(), E>,
            ) -> Result<(), E> {
                let mut columns = COLUMNS.iter();
                let $scale = self.scale;
                $(if let Some(column) = columns.next() {
                    const AT: usize = $at;
                    runs.take(&self.kept[word_of(AT)], self.rows, |word| {
                        // A value lies in its word as it lies in memory.
                        let mut bytes = [0; size_of::<$type>()];
                        bytes.copy_from_slice(&word.to_ne_bytes()[AT % 8..][..size_of::<$type>()]);
                        let $value = <$type>::from_ne_bytes(bytes);
                        let value: $storage = $map;
                        value.to_le_bytes()
                    });
                    each(column, runs)?;
                })*
                Ok(())
            }
        }
    };
}

macro_rules! at {
    ($field:ident) => {
        offset_of!(TcpStateRecord, $field)
    };
}

state_columns! { |scale|
    time_ns: Kind::TimestampNs, None, at!(time_ns) => |value: u64| i64 { scale.realtime_ns(value) }
    flow: Kind::U32, None, at!(flow) => |value: u32| u32 { value }
    direction: Kind::Names(DIRECTION_NAMES), None, at!(direction) => |value: u8| u8 { clamped(value, DIRECTION_NAMES) }
    event: Kind::Names(EVENT_NAMES), None, at!(event) => |value: u8| u8 { clamped(value, EVENT_NAMES) }
    flow_seq: Kind::U64, None, at!(flow_seq) => |value: u64| u64 { value }
    state: Kind::Names(STATE_NAMES), None, at!(state) => |value: u8| u8 { known_state(value) }
    cwnd_segments: Kind::U32, None, at!(cwnd_segments) => |value: u32| u32 { value }
    ssthresh_segments: Kind::U32, Some(SSTHRESH_INFINITE as u64), at!(ssthresh_segments) => |value: u32| u32 { value }
    mss_bytes: Kind::U32, None, at!(mss_bytes) => |value: u32| u32 { value }
    srtt_us: Kind::U32, None, at!(srtt_us_x8) => |value: u32| u32 { value >> 3 }
    rttvar_us: Kind::U32, None, at!(mdev_us_x4) => |value: u32| u32 { value >> 2 }
    min_rtt_us: Kind::U32, Some(NO_SAMPLE as u64), at!(min_rtt_us) => |value: u32| u32 { value }
    rto_us: Kind::U32, None, at!(rto_jiffies) => |value: u32| u32 { scale.us_of_jiffies(value) }
    snd_una: Kind::U32, None, at!(snd_una) => |value: u32| u32 { value }
    snd_nxt: Kind::U32, None, at!(snd_nxt) => |value: u32| u32 { value }
    snd_wnd_bytes: Kind::U32, None, steady_half(0) => |value: u32| u32 { value }
    rcv_nxt: Kind::U32, None, at!(rcv_nxt) => |value: u32| u32 { value }
    rcv_wnd_bytes: Kind::U32, None, at!(rcv_wnd_bytes) => |value: u32| u32 { value }
    packets_out: Kind::U32, None, at!(packets_out) => |value: u32| u32 { value }
    retrans_out: Kind::U32, None, at!(retrans_out) => |value: u32| u32 { value }
    lost_out: Kind::U32, None, at!(lost_out) => |value: u32| u32 { value }
    sacked_out: Kind::U32, None, at!(sacked_out) => |value: u32| u32 { value }
    total_retrans: Kind::U32, None, at!(total_retrans) => |value: u32| u32 { value }
    ca_state: Kind::Names(CA_STATE_NAMES), None, at!(ca_state) => |value: u8| u8 { clamped(value, CA_STATE_NAMES) }
    pacing_rate_Bps: Kind::U64, Some(u64::MAX), at!(pacing_rate_Bps) => |value: u64| u64 { value }
    delivery_rate_Bps: Kind::U64, None, DELIVERY_RATE => |rate: u64| u64 { rate }
    delivered: Kind::U32, None, at!(delivered) => |value: u32| u32 { value }
    delivered_ce: Kind::U32, None, at!(delivered_ce) => |value: u32| u32 { value }
    app_limited: Kind::Bool, None, at!(app_limited) => |value: u8| u8 { u8::from(value != 0) }
    sndbuf_bytes: Kind::U32, None, at!(sndbuf_bytes) => |value: u32| u32 { value }
    sndbuf_used_bytes: Kind::U32, None, at!(sndbuf_used_bytes) => |value: u32| u32 { value }
    rcvbuf_bytes: Kind::U32, None, steady_half(1) => |value: u32| u32 { value }
    rcvbuf_used_bytes: Kind::U32, None, at!(rcvbuf_used_bytes) => |value: u32| u32 { value }
    snd_scale: Kind::U8, None, at!(window_scales) => |value: u8| u8 { value & 15 }
    rcv_scale: Kind::U8, None, at!(window_scales) => |value: u8| u8 { value >> 4 }
    pkt_seq: Kind::U32, None, at!(pkt_seq) => |value: u32| u32 { value }
    pkt_ack: Kind::U32, None, steady_half(2) => |value: u32| u32 { value }
    pkt_flags: Kind::U16, None, at!(pkt_flags) => |value: u16| u16 { value }
    payload_bytes: Kind::U32, None, at!(payload_bytes) => |value: u32| u32 { value }
    gso_segs: Kind::U16, None, at!(gso_segs) => |value: u16| u16 { value }
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

/// The words of a record that go to the log.
type Words = [u64; WORDS];

#[inline]
fn words_of(record: &TcpStateRecord) -> &Words {
    const { assert!(HEADER_WORDS + WORDS == size_of::<TcpStateRecord>() / 8) };
    plain_words(record).last_chunk().unwrap_or(&[0; WORDS])
}

/// Whether two rows differ in a word that mostly stays.
#[inline]
fn differs(row: &Words, before: &Words) -> bool {
    // All of them in any case: mostly comparisons of whole vectors, and no branch.
    let pair = |words: &Words, first: usize| [words[first], words[first + 1]];
    let alike = STEADY_PAIRS.iter().fold(true, |alike, first| {
        alike & (pair(row, *first) == pair(before, *first))
    });
    let halves = STEADY_HALVES.iter().fold(0, |difference, at| {
        difference | ((row[word_of(*at)] ^ before[word_of(*at)]) & bits_of(*at))
    });
    !alike | (halves != 0)
}

/// What `word` makes of the records at some places of a block that begins at a row, and their rows.
#[inline]
fn changes<'a>(
    first_row: usize,
    block: &'a [TcpStateRecord],
    places: &'a [u8],
    word: impl Fn(&TcpStateRecord) -> u64 + 'a,
) -> impl ExactSizeIterator<Item = (u32, u64)> + 'a {
    places.iter().map(move |place| {
        let place = usize::from(*place);
        ((first_row + place) as u32, word(&block[place]))
    })
}

/// Records taken apart, waiting to be encoded.
pub struct StateColumns {
    rows: usize,
    capacity: usize,
    scale: Scale,
    /// Each word, the delivery rate, and the halves of restless words that mostly stay.
    kept: Vec<Kept>,
    /// The last row that waits.
    last: Words,
}

impl StateColumns {
    /// Room for `capacity` rows, allocated at once.
    pub fn new(capacity: usize, scale: Scale) -> Self {
        let keeper = |index: usize| match RESTLESS.contains(&index) {
            true => Kept::Rows(Vec::with_capacity(capacity)),
            false => Kept::Changes(History::new(capacity)),
        };
        Self {
            rows: 0,
            capacity,
            scale,
            kept: (0..WORDS + 1 + STEADY_HALVES.len()).map(keeper).collect(),
            last: [0; WORDS],
        }
    }

    /// Appends as many records as there is room for; returns how many that were.
    pub fn append(&mut self, records: &[TcpStateRecord]) -> usize {
        let taken = records.len().min(self.capacity - self.rows);
        for block in records[..taken].chunks(BLOCK_RECORDS) {
            let mut places = [0; BLOCK_RECORDS];
            let changed = self.changed_rows(block, &mut places);
            let first_row = self.rows;
            let (words, others) = self.kept.split_at_mut(WORDS);
            let [Kept::Changes(rates), halves @ ..] = others else {
                return 0;
            };
            for (index, kept) in words.iter_mut().enumerate() {
                match kept {
                    Kept::Rows(kept) => {
                        kept.extend(block.iter().map(|record| words_of(record)[index]));
                    }
                    Kept::Changes(history) => {
                        let word = |record: &TcpStateRecord| words_of(record)[index];
                        history.extend(changes(first_row, block, changed, word));
                    }
                }
            }
            // What the rate is made of mostly stays, too.
            rates.extend(changes(first_row, block, changed, delivery_rate));
            for (kept, at) in halves.iter_mut().zip(STEADY_HALVES) {
                if let Kept::Changes(history) = kept {
                    let word =
                        |record: &TcpStateRecord| words_of(record)[word_of(at)] & bits_of(at);
                    history.extend(changes(first_row, block, changed, word));
                }
            }
            self.rows += block.len();
        }
        taken
    }

    /// Notes which records of a block differ from the one before in a word that mostly stays.
    fn changed_rows<'a>(
        &mut self,
        block: &[TcpStateRecord],
        places: &'a mut [u8; BLOCK_RECORDS],
    ) -> &'a [u8] {
        let mut before = &self.last;
        // Of the first row of all there is none before.
        let mut first = self.rows == 0;
        let mut count = 0;
        for (place, record) in block.iter().enumerate() {
            let words = words_of(record);
            // Written in any case, kept when it differs: there is nothing to predict.
            places[count] = place as u8;
            count += usize::from(differs(words, before) | first);
            before = words;
            first = false;
        }
        self.last = *before;
        &places[..count]
    }

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
        for kept in &mut self.kept {
            kept.clear();
        }
    }

    /// Nanoseconds from the first row that waits to the last.
    pub fn span_ns(&self) -> u64 {
        let times = self.kept[word_of(at!(time_ns))].words();
        times
            .first()
            .zip(times.last())
            .map_or(0, |(first, last)| last.abs_diff(*first))
    }

    /// Flow, event (an index of [`EVENT_NAMES`]) and direction of every row that waits.
    pub fn flows_and_events(&self) -> Vec<(u32, u8, u8)> {
        let mut rows = vec![(0, 0, 0); self.rows];
        let (mut runs, mut room) = (Runs::default(), Vec::new());
        let _ = self.for_each(&mut runs, |column, runs| {
            let values = runs
                .every_row(&mut room)
                .chunks_exact(column.kind.width_bytes());
            for (row, value) in rows.iter_mut().zip(values) {
                match (column.name, value) {
                    ("flow", value) => {
                        row.0 = value
                            .iter()
                            .rev()
                            .fold(0, |flow, byte| flow << 8 | u32::from(*byte))
                    }
                    ("event", [event]) => row.1 = *event,
                    ("direction", [direction]) => row.2 = *direction,
                    _ => {}
                }
            }
            Ok::<(), ()>(())
        });
        rows
    }
}
