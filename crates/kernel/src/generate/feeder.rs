//! Draws the plan ahead, and takes account of what was sent.

use super::plan_ring::PlanRing;
use parshall_core::workload::{Account, Digest, Packet, Packets, Plan, Workload};
use std::collections::VecDeque;

/// Packets that are drawn before the program is told of them.
const CHUNK: u64 = 1024;

/// The plan on its way through the ring.
pub(super) struct Feeder<'a> {
    workload: &'a Workload,
    plan: Plan<'a>,
    ring: &'a PlanRing,
    // Due times of the packets in the ring: the program puts the time of sending in their place.
    due_ns: VecDeque<u64>,
    drawn: u64,
    retired: u64,
    pub account: Account,
    pub digest: Digest,
    pub last_sent_ns: u64,
}

impl<'a> Feeder<'a> {
    pub fn new(workload: &'a Workload, packets: &'a Packets, ring: &'a PlanRing) -> Self {
        Self {
            workload,
            plan: Plan::new(workload, packets),
            ring,
            due_ns: VecDeque::new(),
            drawn: 0,
            retired: 0,
            account: Account::new(workload),
            digest: Digest::new(packets),
            last_sent_ns: 0,
        }
    }

    /// Draws until the ring is full or a chunk is done; true when there was something to do.
    pub fn draw(&mut self) -> bool {
        let room = self.retired + self.ring.places() - self.drawn;
        let left = self.ring.end() - self.drawn;
        let count = room.min(left).min(CHUNK);
        for packet in self.plan.by_ref().take(count as usize) {
            self.ring.plan(self.drawn, &packet);
            if self.ring.is_paced() {
                self.due_ns.push_back(packet.due_ns);
            }
            self.drawn += 1;
        }
        self.ring.set_drawn(self.drawn);
        count > 0
    }

    /// Takes account of the packets below `sent`.
    pub fn retire(&mut self, sent: u64) -> bool {
        let before = self.retired;
        while self.retired < sent {
            let (sent_ns, packet) = self.ring.sent(self.retired);
            let packet = Packet {
                due_ns: self.due_ns.pop_front().unwrap_or(packet.due_ns),
                ..packet
            };
            self.digest.add(&packet);
            self.account
                .add(&packet, self.workload.frame_bytes(packet.ip_bytes), sent_ns);
            if let Some(sent_ns) = sent_ns {
                self.last_sent_ns = sent_ns;
            }
            self.retired += 1;
        }
        self.retired > before
    }

    pub fn retired(&self) -> u64 {
        self.retired
    }
}
