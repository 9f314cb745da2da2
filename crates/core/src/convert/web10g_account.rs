//! The counters of Web10G's kernel patch for a connection, accumulated from the rows of a log.

use super::address;
use super::error::ConvertError;
use super::row::{ESTABLISHED, NEW_SYN_RECV, Row, seconds_and_us};
use crate::abi::{DIRECTION_OUT, EVENT_CONGESTION_STATE, EVENT_PACKET, EVENT_RETRANSMIT};
use crate::protocols::{TCP_ECE, TCP_FIN, TCP_RST, TCP_SYN};
use crate::tcp_log::FlowRow;
use crate::tcp_log::columns::{CA_CWR, CA_DISORDER, CA_LOSS, CA_OPEN, CA_RECOVERY};
use std::io::Write;

const COLUMNS: usize = 123;
/// The initial slow start threshold.
const SSTHRESH_INFINITE_BYTES: u32 = 0x7fff_ffff;
/// `TcpEStatsNegotiated` of RFC 4898.
const ENABLED: u64 = 1;
const SELF_DISABLED: u64 = 2;
const PEER_DISABLED: u64 = 3;

/// Options that this host offers in handshakes, from the environment of the log.
#[derive(Clone, Copy, Default)]
pub struct Settings {
    timestamps: Option<u32>,
    sack: Option<u32>,
    ecn: Option<u32>,
}

impl Settings {
    /// Reads the environment of a log; missing options are unknown.
    pub fn of(environment: &str) -> Self {
        let parsed = serde_json::from_str::<serde_json::Value>(environment).unwrap_or_default();
        let value = |name: &str| {
            let text = parsed.get("sysctl")?.get(format!("net.ipv4.tcp_{name}"))?;
            text.as_str()?.trim().parse().ok()
        };
        Self {
            timestamps: value("timestamps"),
            sack: value("sack"),
            ecn: value("ecn"),
        }
    }
}

/// Which host disabled an option: this one if it does not offer the option, or if that is unknown.
fn negotiated(agreed: bool, offered: Option<bool>) -> u64 {
    match (agreed, offered) {
        (true, _) => ENABLED,
        (false, Some(true)) => PEER_DISABLED,
        (false, _) => SELF_DISABLED,
    }
}

/// The reason why a sender does not send.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    Receiver,
    Congestion,
    Sender,
}

/// The fields that distinguish a duplicate acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sent {
    ack: u32,
    window_bytes: u32,
}

#[derive(Clone, Copy, Default)]
struct Traffic {
    segments: u64,
    data_segments: u64,
    data_bytes: u64,
}

#[derive(Clone, Copy)]
struct Range {
    min: u32,
    max: u32,
}

impl Default for Range {
    /// The extremes of an empty set.
    fn default() -> Self {
        Self {
            min: u32::MAX,
            max: 0,
        }
    }
}

impl Range {
    fn take(&mut self, value: u32) {
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    fn min(self) -> u32 {
        if self.min > self.max { 0 } else { self.min }
    }
}

#[derive(Default)]
pub struct Account {
    /// The connection was closed: no later poll sees it.
    pub closed: bool,
    flow: FlowRow,
    settings: Settings,
    established: bool,
    last: Row,
    /// The state of congestion control after the last change.
    ca_state: u8,
    last_packet_ns: i64,
    any: bool,
    sent: Traffic,
    received: Traffic,
    retransmitted_bytes: u64,
    max_pipe_bytes: u64,
    congestion_signals: u32,
    timeouts: u32,
    abrupt_timeouts: u32,
    fast_retransmits: u32,
    ecn_signals: u64,
    ece_sent: u32,
    ece_set: bool,
    pre_congestion_cwnd_sum_bytes: u64,
    window_sent: Range,
    window_received: Range,
    zero_window_sent: u32,
    zero_window_received: u32,
    rto_ms: Range,
    mss_bytes: Range,
    ssthresh_bytes: Range,
    max_slow_start_cwnd_bytes: u32,
    max_avoidance_cwnd_bytes: u32,
    slow_start_increases: u32,
    avoidance_increases: u32,
    duplicate_acks_in: u32,
    last_sent: Option<Sent>,
    duplicate_acks_out: u32,
    duplicate_ack_run: bool,
    duplicate_ack_episodes: u32,
    limit: Option<Limit>,
    limit_transitions: [u32; 3],
    limit_ns: [u64; 3],
    initial_sent: u32,
    initial_received: u32,
    max_retransmit_queue_bytes: u32,
    max_send_queue_bytes: u32,
    max_receive_queue_bytes: u32,
    acked: Option<(u32, u64)>,
    taken: Option<(u32, u64)>,
}

impl Account {
    /// The account of a connection before its first event.
    pub fn new(flow: &FlowRow, settings: &Settings) -> Self {
        Self {
            flow: flow.clone(),
            settings: *settings,
            last_packet_ns: flow.first_time_ns,
            ..Self::default()
        }
    }

    /// Whether the connection was closed, or failed before it had a socket.
    pub fn has_ended(&self, time_ns: i64) -> bool {
        self.closed || self.flow.ended && self.flow.last_time_ns <= time_ns
    }

    /// Whether Web10G has begun to show the connection: when it was established.
    pub fn is_established(&self) -> bool {
        self.established
    }

    pub fn take(&mut self, row: &Row) {
        if row.event == EVENT_PACKET {
            self.take_packet(row);
        } else if row.event == EVENT_RETRANSMIT {
            self.retransmitted_bytes += u64::from(row.payload_bytes);
        }
        // Without a socket, the state fields are 0 and have no meaning.
        if (ESTABLISHED..NEW_SYN_RECV).contains(&row.state) {
            self.established |= matches!(row.state, 1 | 4..=6 | 8 | 9 | 11);
            if !self.any {
                self.ca_state = row.ca_state;
            }
            self.take_state(row);
            self.last = *row;
            self.any = true;
        }
    }

    fn take_packet(&mut self, row: &Row) {
        self.last_packet_ns = self.last_packet_ns.max(row.time_ns);
        let traffic = if row.direction == DIRECTION_OUT {
            &mut self.sent
        } else {
            &mut self.received
        };
        let segments = u64::from(row.gso_segs.max(1));
        traffic.segments += segments;
        if row.payload_bytes > 0 {
            traffic.data_segments += segments;
            traffic.data_bytes += u64::from(row.payload_bytes);
        }
        if row.pkt_flags & TCP_SYN != 0 {
            let initial = if row.direction == DIRECTION_OUT {
                &mut self.initial_sent
            } else {
                &mut self.initial_received
            };
            *initial = row.pkt_seq;
        }
        // In a handshake ECE is part of the negotiation.
        let ece = row.pkt_flags & (TCP_ECE | TCP_SYN) == TCP_ECE;
        let bare_ack = row.payload_bytes == 0 && row.pkt_flags & (TCP_SYN | TCP_FIN | TCP_RST) == 0;
        if row.direction == DIRECTION_OUT {
            self.ece_sent += u32::from(ece && !self.ece_set);
            self.ece_set = ece;
            self.take_sent_ack(row, bare_ack);
        } else {
            self.ecn_signals += if ece && self.flow.ecn { segments } else { 0 };
            let duplicate = bare_ack && row.packets_out > 0 && row.pkt_ack == row.snd_una;
            self.duplicate_acks_in += u32::from(duplicate);
        }
    }

    /// A duplicate acknowledgement has the number and the window of the previous one (RFC 5681).
    fn take_sent_ack(&mut self, row: &Row, bare_ack: bool) {
        let sent = Sent {
            ack: row.pkt_ack,
            window_bytes: row.rcv_wnd_bytes,
        };
        let duplicate = bare_ack && self.last_sent == Some(sent);
        self.duplicate_acks_out += u32::from(duplicate);
        self.duplicate_ack_episodes += u32::from(duplicate && !self.duplicate_ack_run);
        self.duplicate_ack_run = duplicate;
        self.last_sent = Some(sent);
    }

    fn take_state(&mut self, row: &Row) {
        if self.any {
            self.take_congestion(row);
            self.take_increase(row);
            self.zero_window_sent +=
                u32::from(row.rcv_wnd_bytes == 0 && self.last.rcv_wnd_bytes != 0);
            self.zero_window_received +=
                u32::from(row.snd_wnd_bytes == 0 && self.last.snd_wnd_bytes != 0);
        }
        self.take_limit(row);
        self.max_pipe_bytes = self.max_pipe_bytes.max(pipe_bytes(row));
        self.window_sent.take(row.rcv_wnd_bytes);
        self.window_received.take(row.snd_wnd_bytes);
        self.rto_ms.take(row.rto_us / 1000);
        self.mss_bytes.take(row.mss_bytes);
        if row.ssthresh_segments.is_some() {
            self.ssthresh_bytes
                .take(row.ssthresh_bytes(SSTHRESH_INFINITE_BYTES));
        }
        let max_cwnd = if in_slow_start(row) {
            &mut self.max_slow_start_cwnd_bytes
        } else {
            &mut self.max_avoidance_cwnd_bytes
        };
        *max_cwnd = (*max_cwnd).max(row.cwnd_bytes());
        self.max_retransmit_queue_bytes =
            self.max_retransmit_queue_bytes.max(row.in_flight_bytes());
        self.max_send_queue_bytes = self.max_send_queue_bytes.max(unsent_bytes(row));
        self.max_receive_queue_bytes = self.max_receive_queue_bytes.max(row.rcvbuf_used_bytes);
        if row.state != 2 && row.state != 3 {
            advance(&mut self.acked, row.snd_una);
            advance(&mut self.taken, row.rcv_nxt);
        }
    }

    /// Each change has an event. A row of another CPU may be of the state before and lie behind the event, so other rows
    /// count only where an event may lack.
    fn take_congestion(&mut self, row: &Row) {
        let flow = &self.flow;
        let lost_events = flow.events_dropped + flow.events_overwritten + flow.events_unwritten;
        let before = self.ca_state;
        if row.ca_state == before || (row.event != EVENT_CONGESTION_STATE && lost_events == 0) {
            return;
        }
        self.ca_state = row.ca_state;
        // A timeout reduces the window even after an earlier reduction.
        if row.ca_state == CA_LOSS || row.ca_state >= CA_CWR && before <= CA_DISORDER {
            self.congestion_signals += 1;
            self.pre_congestion_cwnd_sum_bytes += u64::from(self.last.cwnd_bytes());
        }
        match row.ca_state {
            CA_RECOVERY => self.fast_retransmits += 1,
            CA_LOSS => {
                self.timeouts += 1;
                self.abrupt_timeouts += u32::from(before == CA_OPEN);
            }
            _ => {}
        }
    }

    fn take_increase(&mut self, row: &Row) {
        if row.cwnd_segments > self.last.cwnd_segments && row.ca_state == self.last.ca_state {
            if in_slow_start(&self.last) {
                self.slow_start_increases += 1;
            } else {
                self.avoidance_increases += 1;
            }
        }
    }

    fn take_limit(&mut self, row: &Row) {
        let limit = if row.in_flight_bytes().saturating_add(row.mss_bytes) > row.snd_wnd_bytes {
            Limit::Receiver
        } else if row.packets_in_flight() >= u64::from(row.cwnd_segments) {
            Limit::Congestion
        } else {
            Limit::Sender
        };
        if let Some(before) = self.limit {
            self.limit_ns[before as usize] +=
                row.time_ns.saturating_sub(self.last.time_ns).max(0) as u64;
        }
        if self.limit != Some(limit) {
            self.limit_transitions[limit as usize] += 1;
        }
        self.limit = Some(limit);
    }

    /// Writes the line with this timestamp.
    pub fn write(&self, out: &mut impl Write, time_ns: i64) -> Result<(), ConvertError> {
        let (seconds, us) = seconds_and_us(time_ns);
        let flow = &self.flow;
        write!(
            out,
            "{seconds}.{us:06},{},{},{},{},{}",
            flow.flow,
            address::upper(flow.local_address),
            flow.local_port,
            address::upper(flow.remote_address),
            flow.remote_port
        )?;
        for value in &self.values()[6..] {
            write!(out, ",{value}")?;
        }
        out.write_all(b"\n")?;
        Ok(())
    }

    /// The values by their number minus 1; the first six are texts and stay 0 here.
    fn values(&self) -> [i64; COLUMNS] {
        let (row, flow) = (&self.last, &self.flow);
        let mut values = [0i64; COLUMNS];
        let mut put = |number: usize, value: u64| values[number - 1] = value as i64;
        // Counters without HC in their name are 32 bits wide.
        let counter = |value: u64| u64::from(value as u32);
        // Up to the last segment, not up to the poll.
        let start_us = flow.first_time_ns.div_euclid(1000);
        let elapsed_us = (self.last_packet_ns.div_euclid(1000))
            .saturating_sub(start_us)
            .max(0) as u64;

        put(7, counter(self.sent.segments));
        put(8, counter(self.sent.data_segments));
        put(9, counter(self.sent.data_bytes));
        put(10, self.sent.data_bytes);
        put(11, u64::from(row.total_retrans));
        put(12, counter(self.retransmitted_bytes));
        put(13, counter(self.received.segments));
        put(14, counter(self.received.data_segments));
        put(15, counter(self.received.data_bytes));
        put(16, self.received.data_bytes);
        put(17, elapsed_us / 1_000_000);
        put(18, elapsed_us % 1_000_000);
        put(19, start_us as u64);

        put(20, u64::from(row.mss_bytes));
        put(21, pipe_bytes(row));
        put(22, self.max_pipe_bytes);
        put(23, u64::from(row.srtt_us / 1000));
        put(24, u64::from(row.rto_us / 1000));
        put(25, u64::from(self.congestion_signals));
        put(26, u64::from(row.cwnd_bytes()));
        put(27, u64::from(row.ssthresh_bytes(SSTHRESH_INFINITE_BYTES)));
        put(28, u64::from(self.timeouts));

        put(29, u64::from(row.rcv_wnd_bytes));
        put(30, u64::from(self.window_sent.max));
        put(31, u64::from(self.zero_window_sent));
        put(32, u64::from(row.snd_wnd_bytes));
        put(33, u64::from(self.window_received.max));
        put(34, u64::from(self.zero_window_received));
        for (index, number) in [35, 36, 37].into_iter().enumerate() {
            put(number, u64::from(self.limit_transitions[index]));
            put(number + 3, self.limit_ns[index] / 1_000_000);
        }

        put(46, u64::from(row.rttvar_us / 1000));
        put(48, u64::from(row.min_rtt_us.unwrap_or(0) / 1000));
        put(52, u64::from(self.rto_ms.max));
        put(53, u64::from(self.rto_ms.min()));
        put(57, self.pre_congestion_cwnd_sum_bytes);

        put(61, counter(self.ecn_signals));
        put(62, u64::from(self.duplicate_ack_episodes));
        put(64, u64::from(self.duplicate_acks_out));
        put(66, u64::from(self.ece_sent));
        // `TruthValue`: 1 true, 2 false.
        put(67, if flow.passive { 2 } else { 1 });
        put(68, u64::from(flow.advmss_bytes));
        put(69, u64::from(flow.mss_clamp_bytes));
        let scale = |scale: u8| {
            if flow.window_scaling {
                u64::from(scale)
            } else {
                -1i64 as u64
            }
        };
        put(70, scale(row.rcv_scale));
        put(71, scale(row.snd_scale));
        let settings = self.settings;
        let is_on = |value: Option<u32>| value.map(|value| value != 0);
        // With 2 this host offers ECN only to peers that request it.
        let offers_ecn = settings
            .ecn
            .map(|value| value == 1 || value != 0 && flow.passive);
        put(72, negotiated(flow.timestamps, is_on(settings.timestamps)));
        put(73, negotiated(flow.ecn, offers_ecn));
        put(74, negotiated(flow.sack, is_on(settings.sack)));
        put(75, negotiated(flow.sack, is_on(settings.sack)));

        put(76, state(row.state));
        put(78, u64::from(self.max_slow_start_cwnd_bytes));
        put(79, u64::from(self.max_avoidance_cwnd_bytes));
        put(80, u64::from(self.ssthresh_bytes.max));
        put(81, u64::from(self.ssthresh_bytes.min()));
        put(82, in_recovery(row.ca_state));
        put(83, u64::from(self.duplicate_acks_in));
        put(88, u64::from(self.slow_start_increases));
        put(89, u64::from(self.avoidance_increases));
        put(92, u64::from(self.fast_retransmits));
        put(95, u64::from(self.abrupt_timeouts));

        put(100, u64::from(self.mss_bytes.max));
        put(101, u64::from(self.mss_bytes.min()));
        put(102, u64::from(self.initial_sent));
        put(103, u64::from(self.initial_received));
        put(104, u64::from(row.in_flight_bytes()));
        put(105, u64::from(self.max_retransmit_queue_bytes));

        put(108, u64::from(row.snd_una));
        put(109, u64::from(row.snd_nxt));
        put(110, u64::from(row.snd_nxt));
        let acked = self.acked.map_or(0, |(_, bytes)| bytes);
        put(111, counter(acked));
        put(112, acked);
        put(113, u64::from(row.rcv_nxt));
        let taken = self.taken.map_or(0, |(_, bytes)| bytes);
        put(114, counter(taken));
        put(115, taken);
        put(116, u64::from(unsent_bytes(row)));
        put(117, u64::from(self.max_send_queue_bytes));
        put(118, u64::from(row.rcvbuf_used_bytes));
        put(119, u64::from(self.max_receive_queue_bytes));
        put(123, u64::from(flow.mss_clamp_bytes));
        values
    }
}

/// Adds the bytes from the last sequence number to this one; a step back adds none.
fn advance(progress: &mut Option<(u32, u64)>, to: u32) {
    match progress {
        None => *progress = Some((to, 0)),
        Some((from, bytes)) => {
            let step = to.wrapping_sub(*from);
            if step < 1 << 31 {
                *bytes += u64::from(step);
                *from = to;
            }
        }
    }
}

fn in_slow_start(row: &Row) -> bool {
    row.ssthresh_segments
        .is_none_or(|ssthresh| row.cwnd_segments < ssthresh)
}

fn pipe_bytes(row: &Row) -> u64 {
    row.packets_in_flight() * u64::from(row.mss_bytes)
}

/// Bytes not yet sent: the send queue without bytes in flight. The queue counts memory with its overhead, so
/// this overestimates.
fn unsent_bytes(row: &Row) -> u32 {
    row.sndbuf_used_bytes.saturating_sub(row.in_flight_bytes())
}

/// `tcpEStatsStackState` of Linux's `sk_state`.
fn state(linux: u8) -> u64 {
    match linux {
        1 => 5,
        2 => 3,
        3 | 12 => 4,
        4 => 6,
        5 => 7,
        6 => 11,
        8 => 8,
        9 => 9,
        10 => 2,
        11 => 10,
        _ => 1,
    }
}

/// `tcpEStatsStackInRecovery`: dataContiguous, dataUnordered, dataRecovery.
fn in_recovery(ca_state: u8) -> u64 {
    match ca_state {
        CA_DISORDER => 2,
        CA_RECOVERY | CA_LOSS => 3,
        _ => 1,
    }
}
