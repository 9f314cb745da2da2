//! The flow table while a log is made: facts as they become known, accounts as records come.
//!
//! A flow leaves the table after its row was written for the last time, so a process that logs for
//! days holds only the flows that are alive.

use super::account::SrttHistogram;
use parshall_core::abi::{
    CLOSING_FIN_RECEIVED, CLOSING_FIN_SENT, CLOSING_RST_RECEIVED, CLOSING_RST_SENT, EVENT_CLOSE,
    EVENT_PACKET, EVENT_RETRANSMIT, FLOW_BEGAN_BEFORE, FLOW_END_DESTROYED, FLOW_PASSIVE,
    TcpFlowEndRecord, TcpFlowRecord, TcpStateRecord,
};
use parshall_core::tcp_log::columns::ending_name;
use parshall_core::tcp_log::retransmission::{CAUSE_NAMES, Causes, Row};
use parshall_core::tcp_log::{FlowRow, Unwritten};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Ticks that an ended flow stays, for records that another CPU wrote but had not committed.
const TICKS_AFTER_END: u32 = 2;

/// Flows for which the table always keeps memory.
const CAPACITY_KEPT: usize = 4096;

#[derive(Debug)]
struct Entry {
    row: FlowRow,
    packets_read: u64,
    events_read: u64,
    retransmits_read: u32,
    highest_seq: u64,
    end: Option<TcpFlowEndRecord>,
    has_closed: bool,
    has_ends: bool,
    has_changed: bool,
    ticks_since_end: u32,
    /// Why its segments are sent again; `None`: none was.
    causes: Option<Box<Causes>>,
    /// The last smoothed round-trip time since the last tick; 0: none.
    srtt_us: u32,
}

/// All flows that are alive or not yet written for the last time.
#[derive(Debug)]
pub struct FlowTable {
    // Boxed: the map's free places, and those of the map it grows out of, would be as large as entries.
    entries: FxHashMap<u32, Box<Entry>>,
    changed: Vec<u32>,
    ended: Vec<u32>,
    monotonic_offset_ns: i64,
    total: u64,
    /// Flows that left the table, by how they ended.
    endings: BTreeMap<&'static str, u64>,
    srtt: SrttHistogram,
    /// Segments that were sent again, by cause, and last those without one.
    sent_again: [u64; CAUSE_NAMES.len() + 1],
}

impl FlowTable {
    /// An empty table; the offset turns the records' clock into that of the log.
    pub fn new(monotonic_offset_ns: i64) -> Self {
        Self {
            entries: FxHashMap::default(),
            changed: Vec::new(),
            ended: Vec::new(),
            monotonic_offset_ns,
            total: 0,
            endings: BTreeMap::new(),
            srtt: SrttHistogram::default(),
            sent_again: Default::default(),
        }
    }

    /// Flows that have not ended.
    pub fn open(&self) -> u64 {
        (self.entries.len() - self.ended.len()) as u64
    }

    /// Flows that ended some ticks ago, by how.
    pub fn endings(&self) -> &BTreeMap<&'static str, u64> {
        &self.endings
    }

    /// Segments that were sent again, by cause; `unknown`: the state did not show it.
    pub fn sent_again(&self) -> BTreeMap<&'static str, u64> {
        let names = CAUSE_NAMES.iter().copied().chain(["unknown"]);
        names.zip(self.sent_again).collect()
    }

    /// Round-trip times of flows, once a tick each.
    pub fn srtt(&self) -> &SrttHistogram {
        &self.srtt
    }

    /// Flows seen since the log began.
    pub fn total(&self) -> u64 {
        self.total
    }

    fn entry(&mut self, flow: u32) -> &mut Entry {
        let offset = self.monotonic_offset_ns;
        let total = &mut self.total;
        let entry = self.entries.entry(flow).or_insert_with(|| {
            *total += 1;
            // Facts that were lost with an overwritten record stay unspecified addresses.
            let facts = TcpFlowRecord {
                flow,
                ..TcpFlowRecord::default()
            };
            let mut row = FlowRow::new(&facts, offset);
            row.first_time_ns = i64::MAX;
            row.last_time_ns = i64::MIN;
            Box::new(Entry {
                row,
                packets_read: 0,
                events_read: 0,
                retransmits_read: 0,
                highest_seq: 0,
                end: None,
                has_closed: false,
                has_ends: false,
                has_changed: false,
                ticks_since_end: 0,
                causes: None,
                srtt_us: 0,
            })
        });
        if !entry.has_changed {
            entry.has_changed = true;
            self.changed.push(flow);
        }
        entry
    }

    /// Counts state records that went to the log.
    pub fn note_states(&mut self, records: &[TcpStateRecord]) {
        let offset = self.monotonic_offset_ns;
        for run in records.chunk_by(|left, right| left.flow == right.flow) {
            let (mut events, mut has_closed, mut highest_seq, mut retransmits) = (0, false, 0, 0);
            let mut has_causes = false;
            let mut srtt_us = 0;
            for record in run {
                if record.event == EVENT_RETRANSMIT {
                    retransmits += u32::from(record.gso_segs);
                }
                has_causes |= Causes::needs(record.event);
                events += u64::from(record.event != EVENT_PACKET);
                has_closed |= record.event == EVENT_CLOSE;
                highest_seq = record.flow_seq.max(highest_seq);
                srtt_us = record.srtt_us_x8 >> 3;
            }
            let entry = self.entry(run[0].flow);
            entry.packets_read += run.len() as u64 - events;
            entry.events_read += events;
            entry.retransmits_read = entry.retransmits_read.wrapping_add(retransmits);
            entry.has_closed |= has_closed;
            if srtt_us > 0 {
                entry.srtt_us = srtt_us;
            }
            entry.highest_seq = entry.highest_seq.max(highest_seq);
            entry.see(run[0].time_ns, offset);
            entry.see(run[run.len() - 1].time_ns, offset);
            if has_causes {
                let sack = entry.row.sack;
                let causes = entry.causes.get_or_insert_default();
                let mut sent = [0; CAUSE_NAMES.len() + 1];
                for record in run.iter().filter(|record| Causes::needs(record.event)) {
                    if let Some((at, segments)) = causes.see(&Row::of(record), sack) {
                        sent[at] += segments;
                    }
                }
                for (sum, segments) in self.sent_again.iter_mut().zip(sent) {
                    *sum += segments;
                }
            }
        }
    }

    /// Takes in facts; what was known before and is not in the record stays. The ends of a connection
    /// do not change, but the kernel takes them from a socket that closes.
    pub fn note_facts(&mut self, record: &TcpFlowRecord) {
        let offset = self.monotonic_offset_ns;
        let entry = self.entry(record.flow);
        let mut new = FlowRow::new(record, offset);
        let old = &entry.row;
        if entry.has_ends {
            new.local_address = old.local_address;
            new.local_port = old.local_port;
            new.remote_address = old.remote_address;
            new.remote_port = old.remote_port;
        }
        let cookie = if new.socket_cookie == 0 {
            old.socket_cookie
        } else {
            new.socket_cookie
        };
        entry.row = FlowRow {
            passive: old.passive || record.flags & FLOW_PASSIVE != 0,
            began_before: old.began_before || record.flags & FLOW_BEGAN_BEFORE != 0,
            command: new.command.clone().or_else(|| old.command.clone()),
            pid: new.pid.or(old.pid),
            mptcp_token: new.mptcp_token.or(old.mptcp_token),
            cgroup: old.cgroup.clone(),
            socket_cookie: cookie,
            first_time_ns: old.first_time_ns,
            last_time_ns: old.last_time_ns,
            ended: old.ended,
            ..new
        };
        entry.has_ends |= record.local_port != 0 && record.remote_port != 0;
        entry.see(record.time_ns, offset);
    }

    /// Takes in a flow's account. It may come more than once, from several CPUs: counts only grow.
    pub fn note_end(&mut self, record: &TcpFlowEndRecord) {
        let offset = self.monotonic_offset_ns;
        let is_destroyed = record.flags & FLOW_END_DESTROYED != 0;
        let entry = self.entry(record.flow);
        let end = entry.end.get_or_insert_default();
        for (known, new) in [
            (&mut end.packets_seen, record.packets_seen),
            (&mut end.packets_filtered, record.packets_filtered),
            (&mut end.packets_thinned, record.packets_thinned),
            (&mut end.packets_dropped, record.packets_dropped),
            (&mut end.events_seen, record.events_seen),
            (&mut end.events_dropped, record.events_dropped),
            (&mut end.bytes_acked, record.bytes_acked),
            (&mut end.bytes_received, record.bytes_received),
        ] {
            *known = new.max(*known);
        }
        for (known, new) in [
            (&mut end.retransmits_total, record.retransmits_total),
            (&mut end.retransmits_seen, record.retransmits_seen),
            (&mut end.retransmits_failed, record.retransmits_failed),
            (&mut end.retransmits_refused, record.retransmits_refused),
        ] {
            *known = new.max(*known);
        }
        // A reset that is sent later changes how the flow ended.
        if record.time_ns >= end.time_ns {
            (end.time_ns, end.ending, end.closing) =
                (record.time_ns, record.ending, record.closing);
        }
        // The account of a living flow is a report and no packet, but it may be all that is known of the flow.
        if is_destroyed || (entry.is_unseen() && record.time_ns != 0) {
            entry.see(record.time_ns, offset);
        }
        if is_destroyed {
            let is_known = std::mem::replace(&mut entry.row.ended, true);
            // A flow that is listed twice would leave the table in half the time.
            if !is_known {
                self.ended.push(record.flow);
            }
        }
    }

    /// Marks flows without an account as ended, once all living flows have given theirs. Returns
    /// how many of them had a socket whose close was not seen.
    pub fn end_missing(&mut self) -> u64 {
        let mut unseen_closes = 0;
        for entry in self
            .entries
            .values_mut()
            .filter(|entry| entry.end.is_none())
        {
            entry.row.ended = true;
            // Before the handshake is done there is no socket, and its cookie is 0.
            unseen_closes += u64::from(entry.row.socket_cookie != 0 && !entry.has_closed);
        }
        unseen_closes
    }

    /// Rows of the flows that are new or changed since the last call. Flows that ended a while ago
    /// leave the table.
    pub fn take_changed(
        &mut self,
        unwritten: &BTreeMap<u32, Unwritten>,
        cgroup_path: &mut dyn FnMut(u64) -> Option<String>,
    ) -> Vec<FlowRow> {
        let mut rows = Vec::with_capacity(self.changed.len());
        for flow in self.changed.drain(..) {
            let Some(entry) = self.entries.get_mut(&flow) else {
                continue;
            };
            entry.has_changed = false;
            if entry.srtt_us > 0 {
                self.srtt.add(std::mem::take(&mut entry.srtt_us));
            }
            if entry.row.cgroup.is_none() {
                entry.row.cgroup = cgroup_path(entry.row.cgroup_id);
            }
            rows.push(entry.account(unwritten.get(&flow).copied().unwrap_or_default()));
        }
        self.ended.retain(|flow| {
            let Some(entry) = self.entries.get_mut(flow) else {
                return false;
            };
            entry.ticks_since_end += 1;
            let stays = entry.ticks_since_end <= TICKS_AFTER_END || entry.has_changed;
            if !stays && let Some(entry) = self.entries.remove(flow) {
                let how = entry.end.and_then(|end| ending_name(end.ending));
                *self.endings.entry(how.unwrap_or("unknown")).or_default() += 1;
            }
            stays
        });
        self.shrink();
        rows
    }

    /// Frees the memory that a flood of connections took.
    fn shrink(&mut self) {
        if self.entries.capacity() > CAPACITY_KEPT.max(4 * self.entries.len()) {
            self.entries.shrink_to(2 * self.entries.len());
            self.changed.shrink_to(2 * self.entries.len());
            self.ended.shrink_to(2 * self.entries.len());
            crate::heap::trim();
        }
    }

    /// Marks every flow as changed, so that the last call of [`FlowTable::take_changed`] gives all.
    pub fn touch_all(&mut self) {
        self.changed = self.entries.keys().copied().collect();
        self.changed.sort_unstable();
        for entry in self.entries.values_mut() {
            entry.has_changed = true;
        }
    }
}

impl Entry {
    fn is_unseen(&self) -> bool {
        self.row.first_time_ns > self.row.last_time_ns
    }

    fn see(&mut self, time_ns: u64, offset_ns: i64) {
        let time_ns = (time_ns as i64).wrapping_add(offset_ns);
        self.row.first_time_ns = self.row.first_time_ns.min(time_ns);
        self.row.last_time_ns = self.row.last_time_ns.max(time_ns);
    }

    /// The row with its account. Until the kernel's account has come, what was seen is the highest
    /// sequence number in the log, and losses are not reported.
    fn account(&self, unwritten: Unwritten) -> FlowRow {
        let mut row = self.row.clone();
        if self.is_unseen() {
            (row.first_time_ns, row.last_time_ns) = (0, 0);
        }
        row.packets_unwritten = unwritten.packets();
        row.packets_logged = self.packets_read - unwritten.packets().min(self.packets_read);
        row.events_unwritten = unwritten.events();
        row.events_logged = self.events_read - unwritten.events().min(self.events_read);
        let Some(end) = &self.end else {
            row.packets_seen = self.highest_seq.max(self.packets_read);
            row.events_seen = self.events_read;
            return row;
        };
        row.packets_seen = end.packets_seen;
        row.packets_filtered = end.packets_filtered;
        row.packets_thinned = end.packets_thinned;
        row.packets_dropped = end.packets_dropped;
        row.packets_overwritten = end
            .packets_seen
            .saturating_sub(end.packets_filtered + end.packets_thinned + end.packets_dropped)
            .saturating_sub(self.packets_read);
        row.events_seen = end.events_seen;
        row.events_dropped = end.events_dropped;
        row.events_overwritten = end
            .events_seen
            .saturating_sub(end.events_dropped + self.events_read);
        row.retransmits_total = Some(end.retransmits_total);
        row.retransmits_logged = Some(self.retransmits_read);
        row.retransmits_failed = Some(end.retransmits_failed);
        row.retransmits_lost = Some(end.retransmits_seen.saturating_sub(self.retransmits_read));
        row.retransmits_refused = Some(end.retransmits_refused);
        row.bytes_acked = Some(end.bytes_acked);
        row.bytes_received = Some(end.bytes_received);
        row.ending = ending_name(end.ending);
        if row.ending.is_some() {
            let has = |segment| Some(end.closing & segment != 0);
            row.fin_sent = has(CLOSING_FIN_SENT);
            row.fin_received = has(CLOSING_FIN_RECEIVED);
            row.rst_sent = has(CLOSING_RST_SENT);
            row.rst_received = has(CLOSING_RST_RECEIVED);
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_flows_leave_the_table_and_free_their_memory() {
        let mut table = FlowTable::new(0);
        for flow in 1..=100_000 {
            table.note_facts(&TcpFlowRecord {
                flow,
                ..TcpFlowRecord::default()
            });
            if flow > 10 {
                table.note_end(&TcpFlowEndRecord {
                    flow,
                    flags: FLOW_END_DESTROYED,
                    ..TcpFlowEndRecord::default()
                });
            }
        }
        for _ in 0..=TICKS_AFTER_END {
            table.take_changed(&BTreeMap::new(), &mut |_| None);
        }
        assert_eq!(table.entries.len(), 10);
        assert!(table.entries.capacity() <= CAPACITY_KEPT);
        assert_eq!(table.total(), 100_000);
    }

    #[test]
    fn known_addresses_are_kept_when_a_socket_closes() {
        let mut table = FlowTable::new(0);
        let first = TcpFlowRecord {
            flow: 1,
            local_port: 80,
            remote_port: 4000,
            local_address: [1; 16],
            remote_address: [2; 16],
            ..TcpFlowRecord::default()
        };
        table.note_facts(&first);
        table.note_facts(&TcpFlowRecord {
            local_port: 0,
            local_address: [0; 16],
            pid: 9,
            ..first
        });
        let rows = table.take_changed(&BTreeMap::new(), &mut |_| None);
        assert_eq!(rows[0].local_port, 80);
        assert_eq!(rows[0].local_address, FlowRow::new(&first, 0).local_address);
        assert_eq!(rows[0].pid, Some(9));
    }

    #[test]
    fn an_account_that_comes_again_does_not_shorten_the_wait_for_late_records() {
        let mut table = FlowTable::new(0);
        let end = TcpFlowEndRecord {
            flow: 1,
            flags: FLOW_END_DESTROYED,
            ..TcpFlowEndRecord::default()
        };
        table.note_end(&end);
        table.note_end(&end);
        for tick in 0..=TICKS_AFTER_END {
            assert_eq!(table.entries.len(), 1, "at tick {tick}");
            table.take_changed(&BTreeMap::new(), &mut |_| None);
        }
        assert_eq!(table.entries.len(), 0);
    }

    #[test]
    fn a_flow_with_only_an_account_has_a_time() {
        let mut table = FlowTable::new(1_000);
        for (flow, time_ns) in [(1, 5), (2, 0)] {
            table.note_end(&TcpFlowEndRecord {
                flow,
                time_ns,
                ..TcpFlowEndRecord::default()
            });
        }
        let rows = table.take_changed(&BTreeMap::new(), &mut |_| None);
        let times: Vec<_> = rows
            .iter()
            .map(|row| (row.first_time_ns, row.last_time_ns))
            .collect();
        assert_eq!(times, [(1_005, 1_005), (0, 0)]);
    }

    #[test]
    fn a_flow_without_an_account_has_ended_and_counts_an_unseen_close() {
        let mut table = FlowTable::new(0);
        // 1 gave its account, 2 and 3 did not; of 3 the close was seen; 4 never had a socket.
        for (flow, socket_cookie) in [(1, 7), (2, 8), (3, 9), (4, 0)] {
            table.note_facts(&TcpFlowRecord {
                flow,
                socket_cookie,
                ..TcpFlowRecord::default()
            });
        }
        table.note_end(&TcpFlowEndRecord {
            flow: 1,
            ..TcpFlowEndRecord::default()
        });
        table.note_states(&[TcpStateRecord {
            flow: 3,
            event: EVENT_CLOSE,
            ..TcpStateRecord::default()
        }]);
        assert_eq!(table.end_missing(), 1);
        let rows = table.take_changed(&BTreeMap::new(), &mut |_| None);
        let ended: Vec<_> = rows.iter().map(|row| (row.flow, row.ended)).collect();
        assert_eq!(ended, [(1, false), (2, true), (3, true), (4, true)]);
    }

    #[test]
    fn the_latest_account_says_how_a_flow_ended_and_none_that_it_is_unknown() {
        const RESET_RECEIVED: u8 = 4;
        const ABORTED: u8 = 5;
        let mut table = FlowTable::new(0);
        let account = |flow, time_ns, ending, closing| TcpFlowEndRecord {
            flow,
            time_ns,
            flags: FLOW_END_DESTROYED,
            ending,
            closing,
            ..TcpFlowEndRecord::default()
        };
        let (sent, received) = (CLOSING_RST_SENT, CLOSING_RST_RECEIVED);
        // Data after close: at first, it looks as if a reset had come. The accounts of two CPUs may change places.
        for end in [
            account(1, 5, RESET_RECEIVED, CLOSING_FIN_SENT | received),
            account(1, 6, ABORTED, CLOSING_FIN_SENT | sent),
            account(2, 6, ABORTED, CLOSING_FIN_SENT | sent),
            account(2, 5, RESET_RECEIVED, CLOSING_FIN_SENT | received),
            account(3, 5, 0, sent),
        ] {
            table.note_end(&end);
        }
        table.note_facts(&TcpFlowRecord {
            flow: 4,
            ..TcpFlowRecord::default()
        });
        let rows = table.take_changed(&BTreeMap::new(), &mut |_| None);
        for row in &rows[..2] {
            assert_eq!(row.ending, Some("aborted"));
            let fins = (row.fin_sent, row.fin_received);
            assert_eq!(fins, (Some(true), Some(false)));
            let resets = (row.rst_sent, row.rst_received);
            assert_eq!(resets, (Some(true), Some(false)));
        }
        // An ending that no program has seen, and an account that has not come.
        for row in &rows[2..] {
            assert_eq!((row.ending, row.rst_sent, row.fin_sent), (None, None, None));
        }
    }
}
