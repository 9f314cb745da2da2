//! Draws the plan ahead, and takes account of what was sent.

use super::deal::Deal;
use super::departures::Departures;
use super::share::Turn;
use parshall_core::workload::{Account, Digest, Packet, Packets, Plan, Workload};
use std::collections::VecDeque;

/// Packets that are drawn before the senders are told of them.
const CHUNK: u64 = 1024;

/// The plan on its way through the rings.
pub(super) struct Feeder<'a> {
    workload: &'a Workload,
    plan: Plan<'a>,
    deal: &'a Deal,
    // Due times of the packets in the rings: who sends puts the time of sending in their place.
    due_ns: VecDeque<u64>,
    departures: Departures,
    drawn: u64,
    drawn_turn: Turn,
    // Packets of the plan that are accounted for, be they sent or not.
    retired: u64,
    retired_turn: Turn,
    sent: u64,
    pub account: Account,
    pub digest: Digest,
}

impl<'a> Feeder<'a> {
    pub fn new(
        workload: &'a Workload,
        packets: &'a Packets,
        deal: &'a Deal,
        senders: usize,
    ) -> Self {
        Self {
            workload,
            plan: Plan::new(workload, packets),
            deal,
            due_ns: VecDeque::new(),
            departures: Departures::new(senders),
            drawn: 0,
            drawn_turn: deal.first(),
            retired: 0,
            retired_turn: deal.first(),
            sent: 0,
            account: Account::new(workload),
            digest: Digest::new(packets),
        }
    }

    /// Draws until the rings are full or a chunk is done; true when there was something to do.
    pub fn draw(&mut self) -> bool {
        let room = self.retired + self.deal.places() - self.drawn;
        let left = self.deal.end().saturating_sub(self.drawn);
        let count = room.min(left).min(CHUNK);
        for packet in self.plan.by_ref().take(count as usize) {
            self.deal.plan(self.drawn_turn, &packet);
            if self.deal.is_paced() {
                self.due_ns.push_back(packet.due_ns);
            }
            self.drawn += 1;
            self.drawn_turn.advance();
        }
        self.deal.set_drawn(self.drawn);
        count > 0
    }

    /// Takes account of the packets that all senders are past; true when there were some.
    pub fn retire(&mut self) -> bool {
        self.retire_until(self.deal.sent_by_all(), false)
    }

    /// Takes account of the rest, when no sender runs any more.
    pub fn retire_rest(&mut self) {
        self.retire_until(self.deal.sent_by_any(), true);
    }

    fn retire_until(&mut self, end: u64, is_rest: bool) -> bool {
        let before = self.retired;
        while self.retired < end {
            let due_ns = self.due_ns.pop_front();
            // A sender that failed leaves out what others have sent behind it.
            if !is_rest || self.deal.was_sent(self.retired_turn) {
                let (sent_ns, packet) = self.deal.sent(self.retired_turn);
                let packet = Packet {
                    due_ns: due_ns.unwrap_or(packet.due_ns),
                    ..packet
                };
                self.digest.add(&packet);
                self.account
                    .add(&packet, self.workload.frame_bytes(packet.ip_bytes), sent_ns);
                if let Some(sent_ns) = sent_ns {
                    self.departures.add(self.retired_turn.sender, sent_ns);
                }
                self.sent += 1;
            }
            self.retired += 1;
            self.retired_turn.advance();
        }
        while let Some(sent_ns) = self.departures.next(is_rest) {
            self.account.departed(sent_ns);
        }
        self.retired > before
    }

    /// Packets that were sent and are accounted for.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}
