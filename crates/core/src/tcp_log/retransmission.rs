//! Why each segment was sent again, and whether that was spurious: a function of a flow's rows.
//!
//! The cause follows from the kernel's state at the retransmission and from how its recovery began. What came
//! back afterwards shows whether it was spurious: DSACKs, and windows that the kernel restored.

use super::columns::NO_VALUE;
use super::columns::{CA_LOSS, CA_RECOVERY};
use super::scale::{dupthresh_of, loss_flag, timer_of};
use crate::abi::{
    EVENT_CONGESTION_STATE, EVENT_DSACK, EVENT_RETRANSMIT, LOSS_STATE_REORDERED, TcpStateRecord,
};
use crate::protocols::{TCP_ACK, TCP_FIN, TCP_SYN};
use rustc_hash::FxHashSet;
use std::collections::HashMap;

/// Names of [`Cause`], in its order.
pub const CAUSE_NAMES: &[&str] = &["tlp", "rto", "fast", "rack", "mtu", "syn", "synack"];
/// Names of [`Evidence`], in its order.
pub const EVIDENCE_NAMES: &[&str] = &["dsack", "undo"];

const TIMER_NONE: u8 = 0;
const TIMER_LOSS_PROBE: u8 = 3;
/// A duplicate threshold that does not count.
const NO_THRESHOLD: u8 = 254;
/// How far back a DSACK is looked up, in retransmissions of the flow.
const DSACK_SEARCH_MAX: usize = 4096;

/// Why a segment was sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// Tail loss probe (RFC 8985).
    Tlp,
    /// The retransmission timer expired: the segment of the timer, and those sent in the recovery after it.
    Rto,
    /// Fast retransmit: as many segments as the duplicate threshold, sent later, have arrived (RFC 6675, 5681).
    Fast,
    /// Too much time has passed since a segment sent later arrived, or the retransmission itself was lost (RFC 8985).
    Rack,
    /// The path MTU shrank, or a probe for a larger one was lost.
    Mtu,
    /// A SYN without an answer.
    Syn,
    /// A SYN-ACK without an answer.
    SynAck,
}

/// What shows that a retransmission was spurious.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Evidence {
    /// The peer reported that it got the bytes twice.
    Dsack,
    /// The kernel restored the window after an ACK of the segment that time stamps attribute to the original
    /// (Eifel, RFC 3522).
    Undo,
}

/// The columns of a row that decide.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Row {
    pub time_ns: i64,
    pub flow: u32,
    pub event: u8,
    pub ca_state: u8,
    pub snd_una: u32,
    pub sacked_out: u32,
    pub min_rtt_us: Option<u32>,
    pub pkt_seq: u32,
    pub pkt_flags: u16,
    pub payload_bytes: u32,
    pub gso_segs: u16,
    /// An index of [`TIMER_NAMES`](super::columns::TIMER_NAMES).
    pub timer: Option<u8>,
    pub dupthresh_segments: Option<u8>,
    pub reordering_seen: Option<bool>,
    pub can_undo: Option<bool>,
    pub original_acked: Option<bool>,
}

impl Row {
    /// The columns of a record, as far as they tell why a segment is sent again.
    pub fn of(record: &TcpStateRecord) -> Self {
        let known = |value: u8| (value != NO_VALUE).then_some(value);
        Self {
            time_ns: record.time_ns as i64,
            flow: record.flow,
            event: record.event,
            ca_state: record.ca_state,
            sacked_out: record.sacked_out,
            pkt_seq: record.pkt_seq,
            pkt_flags: record.pkt_flags,
            payload_bytes: record.payload_bytes,
            gso_segs: record.gso_segs,
            timer: known(timer_of(record)),
            dupthresh_segments: known(dupthresh_of(record)),
            reordering_seen: known(loss_flag(record, LOSS_STATE_REORDERED)).map(|flag| flag != 0),
            ..Self::default()
        }
    }
}

/// One retransmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retransmission {
    /// When it was sent.
    pub time_ns: i64,
    /// Its flow.
    pub flow: u32,
    /// Its first sequence number.
    pub pkt_seq: u32,
    /// Its payload.
    pub payload_bytes: u32,
    /// Packets on the wire.
    pub segments: u16,
    /// Why; `None`: the state does not show it.
    pub cause: Option<Cause>,
    /// Whether the data had arrived before; `None`: not known.
    pub spurious: Option<bool>,
    /// What shows that it was spurious.
    pub evidence: Option<Evidence>,
}

/// What is known of a flow besides its rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowFacts {
    /// SACK was agreed, without which there is neither RACK nor DSACK.
    pub sack: bool,
    /// The log has what comes in.
    pub is_inbound_logged: bool,
}

/// An uninterrupted time in Recovery or Loss.
#[derive(Clone, Debug)]
struct Episode {
    cause: Option<Cause>,
    /// First sequence numbers of what was sent again.
    sent: FxHashSet<u32>,
}

/// Finds the causes of a flow's retransmissions, from its events [`EVENT_RETRANSMIT`] and [`EVENT_CONGESTION_STATE`] in their
/// order.
#[derive(Clone, Debug, Default)]
pub struct Causes {
    ca_state: u8,
    episode: Option<Episode>,
    /// How many times in Recovery or Loss began.
    episodes: u64,
}

#[derive(Default)]
struct Flow {
    facts: FlowFacts,
    causes: Causes,
    /// The number of the episode, and the index of its first retransmission among those of the flow.
    episode: (u64, usize),
    could_undo: bool,
    sent: Vec<Sent>,
    /// Indices of those that are not acknowledged.
    open: Vec<usize>,
    snd_una: u32,
}

struct Sent {
    retransmission: Retransmission,
    end_seq: u32,
    is_acknowledged: bool,
}

/// Judges the retransmissions of a log, row by row in the order of the file.
pub struct Judge<F: Fn(u32) -> FlowFacts> {
    facts_of: F,
    flows: HashMap<u32, Flow>,
}

impl<F: Fn(u32) -> FlowFacts> Judge<F> {
    /// With what is known of each flow.
    pub fn new(facts_of: F) -> Self {
        Self {
            facts_of,
            flows: HashMap::new(),
        }
    }

    /// Takes in a row.
    pub fn see(&mut self, row: &Row) {
        let flow = match row.event {
            EVENT_RETRANSMIT | EVENT_CONGESTION_STATE => {
                self.flows.entry(row.flow).or_insert_with(|| Flow {
                    facts: (self.facts_of)(row.flow),
                    ..Flow::default()
                })
            }
            _ => match self.flows.get_mut(&row.flow) {
                Some(flow) => flow,
                None => return,
            },
        };
        flow.acknowledge(row.snd_una);
        match row.event {
            EVENT_RETRANSMIT => flow.retransmit(row),
            EVENT_CONGESTION_STATE => flow.change_state(row),
            EVENT_DSACK => flow.report_duplicate(row),
            _ => {}
        }
    }

    /// All retransmissions, in the order of time.
    pub fn finish(self) -> Vec<Retransmission> {
        let mut found: Vec<_> = self.flows.into_values().flat_map(Flow::finish).collect();
        found.sort_by_key(|one| (one.time_ns, one.flow, one.pkt_seq));
        found
    }
}

impl Causes {
    /// Whether an event is needed to find causes.
    pub fn needs(event: u8) -> bool {
        event == EVENT_RETRANSMIT || event == EVENT_CONGESTION_STATE
    }

    /// Takes in such an event. Returns where in [`CAUSE_NAMES`] its cause is, behind them if it is unknown, and how many
    /// segments were sent again.
    pub fn see(&mut self, row: &Row, sack: bool) -> Option<(usize, u64)> {
        if row.event == EVENT_CONGESTION_STATE {
            self.change_state(row, sack);
            return None;
        }
        let cause = self.cause_of(row, sack);
        let at = cause.map_or(CAUSE_NAMES.len(), |cause| cause as usize);
        Some((at, u64::from(row.gso_segs)))
    }

    /// Why the segment of an event [`EVENT_RETRANSMIT`] was sent; `None`: the state does not show it.
    pub fn cause_of(&mut self, row: &Row, sack: bool) -> Option<Cause> {
        let cause = self.found(row, sack);
        if let Some(episode) = &mut self.episode {
            episode.sent.insert(row.pkt_seq);
        }
        cause
    }

    fn found(&mut self, row: &Row, sack: bool) -> Option<Cause> {
        if row.pkt_flags & TCP_SYN != 0 {
            return Some(match row.pkt_flags & TCP_ACK {
                0 => Cause::Syn,
                _ => Cause::SynAck,
            });
        }
        let timer = row.timer?;
        if row.ca_state < CA_RECOVERY {
            return (timer == TIMER_LOSS_PROBE).then_some(Cause::Tlp);
        }
        if row.ca_state != self.ca_state || self.episode.is_none() {
            // The log begins here, or lacks how the state began.
            self.begin_episode(row, sack);
        }
        let episode = self.episode.as_ref()?;
        if row.ca_state == CA_LOSS {
            return if timer == TIMER_NONE {
                Some(Cause::Rto)
            } else {
                episode.cause
            };
        }
        if sack && episode.sent.contains(&row.pkt_seq) {
            return Some(Cause::Rack);
        }
        episode.cause
    }

    /// Takes in an event [`EVENT_CONGESTION_STATE`].
    pub fn change_state(&mut self, row: &Row, sack: bool) {
        if row.ca_state >= CA_RECOVERY {
            self.begin_episode(row, sack);
        } else {
            self.episode = None;
            self.ca_state = row.ca_state;
        }
    }

    fn begin_episode(&mut self, row: &Row, sack: bool) {
        let cause = match (row.ca_state, row.timer) {
            (CA_RECOVERY, Some(_)) => Some(recovery_cause(row, sack)),
            (CA_LOSS, Some(TIMER_NONE)) => Some(Cause::Rto),
            (CA_LOSS, Some(_)) if row.event == EVENT_CONGESTION_STATE => Some(Cause::Mtu),
            _ => None,
        };
        self.ca_state = row.ca_state;
        self.episodes += 1;
        self.episode = Some(Episode {
            cause,
            sent: FxHashSet::default(),
        });
    }
}

fn recovery_cause(row: &Row, sack: bool) -> Cause {
    let is_threshold_reached = row.dupthresh_segments.is_some_and(|threshold| {
        threshold < NO_THRESHOLD && row.sacked_out >= u32::from(threshold)
    });
    // Once reordering was seen, the threshold no longer counts, only time.
    if !sack || is_threshold_reached && row.reordering_seen != Some(true) {
        Cause::Fast
    } else {
        Cause::Rack
    }
}

impl Flow {
    fn acknowledge(&mut self, snd_una: u32) {
        if snd_una == self.snd_una {
            return;
        }
        self.snd_una = snd_una;
        let sent = &mut self.sent;
        self.open.retain(|&index| {
            let is_acknowledged = !is_before(snd_una, sent[index].end_seq);
            sent[index].is_acknowledged = is_acknowledged;
            !is_acknowledged
        });
    }

    /// Notes where an episode began.
    fn note_episode(&mut self) {
        if self.causes.episodes != self.episode.0 {
            self.episode = (self.causes.episodes, self.sent.len());
        }
    }

    fn retransmit(&mut self, row: &Row) {
        let cause = self.causes.cause_of(row, self.facts.sack);
        self.note_episode();
        self.could_undo = row.can_undo == Some(true);
        let phantom =
            u32::from(row.pkt_flags & TCP_SYN != 0) + u32::from(row.pkt_flags & TCP_FIN != 0);
        self.open.push(self.sent.len());
        self.sent.push(Sent {
            retransmission: Retransmission {
                time_ns: row.time_ns,
                flow: row.flow,
                pkt_seq: row.pkt_seq,
                payload_bytes: row.payload_bytes,
                segments: row.gso_segs,
                cause,
                spurious: None,
                evidence: None,
            },
            end_seq: row
                .pkt_seq
                .wrapping_add(row.payload_bytes)
                .wrapping_add(phantom),
            is_acknowledged: false,
        });
    }

    fn change_state(&mut self, row: &Row) {
        // F-RTO (RFC 5682) also restores the window after a timeout, when any data arrived that was sent once: that
        // shows that the timeout was spurious, and not that its segment was.
        let is_shown = self.causes.ca_state == CA_RECOVERY || row.original_acked == Some(true);
        let was_in_episode = self.causes.episode.is_some();
        self.causes.change_state(row, self.facts.sack);
        self.note_episode();
        if row.ca_state >= CA_RECOVERY {
            return;
        }
        if was_in_episode && self.could_undo && row.can_undo == Some(false) && is_shown {
            let in_episode = self.sent[self.episode.1..].iter_mut();
            for sent in in_episode.filter(|sent| sent.is_acknowledged) {
                let one = &mut sent.retransmission;
                one.spurious = Some(true);
                one.evidence.get_or_insert(Evidence::Undo);
            }
        }
        self.could_undo = false;
    }

    /// Of several transmissions of the same bytes the last one that can have come back is meant: one that is at
    /// least the minimum round-trip time old, else the first. What was sent whole may have been sent again in pieces;
    /// a packet that came twice is reported by its own ends, so where only a younger one has them, it is meant: the
    /// round trips until then were late, and so is their minimum.
    fn report_duplicate(&mut self, row: &Row) {
        let right = row.pkt_seq.wrapping_add(row.payload_bytes);
        let min_rtt_ns = i64::from(row.min_rtt_us.unwrap_or(0)) * 1000;
        let first = self.sent.len().saturating_sub(DSACK_SEARCH_MAX);
        let overlapping = (first..self.sent.len()).filter(|&index| {
            let (sent, one) = (&self.sent[index], &self.sent[index].retransmission);
            is_before(one.pkt_seq, right)
                && is_before(row.pkt_seq, sent.end_seq)
                && one.evidence != Some(Evidence::Dsack)
        });
        let (old, young): (Vec<usize>, Vec<usize>) = overlapping.partition(|&index| {
            row.time_ns - self.sent[index].retransmission.time_ns >= min_rtt_ns
        });
        let offset = |seq: u32| (seq.wrapping_sub(row.pkt_seq) as i32).max(0) as u32;
        let mut unassigned = vec![(0, row.payload_bytes)];
        let has_its_ends = |index: &usize| {
            let one = &self.sent[*index].retransmission;
            (one.pkt_seq, one.payload_bytes) == (row.pkt_seq, row.payload_bytes)
        };
        let can_be_old =
            |index| has_its_ends(index) || self.sent[*index].retransmission.segments > 1;
        let shown = young.iter().copied().find(has_its_ends);
        let shown = shown.filter(|_| !old.iter().any(can_be_old));
        for index in shown.into_iter().chain(old.into_iter().rev()).chain(young) {
            let sent = &mut self.sent[index];
            let (begin, end) = (offset(sent.retransmission.pkt_seq), offset(sent.end_seq));
            if is_cut_from(&mut unassigned, begin, end) {
                sent.retransmission.spurious = Some(true);
                sent.retransmission.evidence = Some(Evidence::Dsack);
            }
        }
    }

    fn finish(self) -> impl Iterator<Item = Retransmission> {
        let reports = self.facts.sack && self.facts.is_inbound_logged;
        self.sent.into_iter().map(move |sent| {
            let mut one = sent.retransmission;
            let is_handshake = matches!(one.cause, Some(Cause::Syn | Cause::SynAck));
            if one.spurious.is_none() && reports && sent.is_acknowledged && !is_handshake {
                one.spurious = Some(false);
            }
            one
        })
    }
}

/// Takes the bytes from `begin` to `end` out of the ranges; whether they had any of them.
fn is_cut_from(ranges: &mut Vec<(u32, u32)>, begin: u32, end: u32) -> bool {
    let length = |ranges: &[(u32, u32)]| ranges.iter().map(|one| one.1 - one.0).sum::<u32>();
    let before = length(ranges);
    *ranges = (ranges.iter())
        .flat_map(|&(from, to)| [(from, to.min(begin)), (from.max(end), to)])
        .filter(|one| one.0 < one.1)
        .collect();
    length(ranges) < before
}

/// Whether a sequence number is before another one, modulo 2^32.
fn is_before(left: u32, right: u32) -> bool {
    (left.wrapping_sub(right) as i32) < 0
}

#[cfg(test)]
#[path = "retransmission_tests.rs"]
mod tests;
