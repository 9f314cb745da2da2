//! Draws the plan ahead, and takes account of what was sent.

use super::departure_log::DepartureLog;
use super::schedule::{Departures, Position, Schedule};
use parshall_core::workload::{Account, Digest, Packet, Packets, Plan, Workload};
use std::collections::VecDeque;
use std::iter::Peekable;

/// Packets that are drawn before the senders may send them.
const CHUNK: u64 = 1024;

/// Packets that are counted though none of them will be sent: some tenths of a second.
const COUNTED_MAX: u64 = 5_000_000;

/// The plan on its way through the rings.
pub(super) struct Feeder<'a> {
    workload: &'a Workload,
    plan: Peekable<Plan<'a>>,
    // Packets are due before it.
    until_ns: u64,
    schedule: &'a Schedule,
    // Due times of the packets in the rings, where senders replace them by send times.
    due_ns: VecDeque<u64>,
    departures: Departures,
    drawn: u64,
    drawn_position: Position,
    // Packets of the plan that are accounted for, be they sent or not.
    retired: u64,
    retired_position: Position,
    /// Packets that were sent and are accounted for.
    pub sent: u64,
    pub account: Account,
    pub digest: Digest,
    /// What was sent when, if that is kept.
    departure_log: Option<DepartureLog>,
}

impl<'a> Feeder<'a> {
    /// A feeder of the packets that are due before `until_ns`.
    pub fn new(
        workload: &'a Workload,
        packets: &'a Packets,
        schedule: &'a Schedule,
        senders: usize,
        until_ns: u64,
    ) -> Self {
        Self {
            workload,
            plan: Plan::new(workload, packets).peekable(),
            until_ns,
            schedule,
            // All of it at once: the queue must not grow under a load that starves the feeder.
            due_ns: VecDeque::with_capacity(if schedule.is_paced() {
                schedule.capacity() as usize
            } else {
                0
            }),
            departures: Departures::new(senders),
            drawn: 0,
            drawn_position: schedule.first(),
            retired: 0,
            retired_position: schedule.first(),
            sent: 0,
            account: Account::new(workload),
            digest: Digest::new(packets),
            departure_log: None,
        }
    }

    /// Keeps what is sent when.
    pub fn with_departure_log(mut self, log: Option<DepartureLog>) -> Self {
        self.departure_log = log;
        self
    }

    /// What was sent when, if that was kept.
    pub fn take_departure_log(&mut self) -> Option<DepartureLog> {
        self.departure_log.take()
    }

    /// Draws until the rings are full or a chunk is done; true when there was something to do.
    pub fn draw(&mut self) -> bool {
        let room = self.retired + self.schedule.capacity() - self.drawn;
        let left = self.schedule.end().saturating_sub(self.drawn);
        let count = room.min(left).min(CHUNK);
        let until_ns = self.until_ns;
        let is_in_time = |packet: &Packet| packet.due_ns < until_ns;
        for _ in 0..count {
            let Some(packet) = self.plan.next_if(is_in_time) else {
                break;
            };
            self.schedule.plan(self.drawn_position, &packet);
            if self.schedule.is_paced() {
                self.due_ns.push_back(packet.due_ns);
            }
            self.drawn += 1;
            self.drawn_position.advance();
        }
        if count > 0 && !self.plan.peek().is_some_and(is_in_time) {
            // Before the last of them may be sent, so that the senders know that it is the last.
            self.schedule.set_end(self.drawn);
        }
        self.schedule.set_drawn(self.drawn);
        count > 0
    }

    /// The packets that are due before `until_ns`, drawn or not. Where millions were not, theirs is the number that the
    /// mean gap gives.
    pub fn due(&mut self) -> u64 {
        let (until_ns, mut last_ns) = (self.until_ns, 0);
        let mut counted = 0;
        while counted < COUNTED_MAX {
            let Some(packet) = self.plan.next_if(|packet| packet.due_ns < until_ns) else {
                return self.drawn + counted;
            };
            last_ns = packet.due_ns;
            counted += 1;
        }
        let rest = (until_ns - last_ns) as f64 / self.workload.gaps.mean_gap_ns();
        self.drawn + counted + rest as u64
    }

    /// Whether nothing is left to draw.
    pub fn is_drawn(&self) -> bool {
        self.drawn >= self.schedule.end()
    }

    /// Takes account of the packets that all senders are past; true when there were some.
    pub fn retire(&mut self) -> bool {
        self.retire_until(self.schedule.sent_by_all(), false)
    }

    /// Takes account of the rest, when no sender runs any more.
    pub fn retire_rest(&mut self) {
        self.retire_until(self.schedule.sent_by_any(), true);
    }

    fn retire_until(&mut self, end: u64, is_rest: bool) -> bool {
        let before = self.retired;
        while self.retired < end {
            let due_ns = self.due_ns.pop_front();
            // A sender that failed leaves out what others have sent behind it.
            if !is_rest || self.schedule.was_sent(self.retired_position) {
                let (sent_ns, packet) = self.schedule.sent(self.retired_position);
                let packet = Packet {
                    due_ns: due_ns.unwrap_or(packet.due_ns),
                    ..packet
                };
                self.digest.add(&packet);
                self.account
                    .add(&packet, self.workload.frame_bytes(packet.ip_bytes), sent_ns);
                if let (Some(log), Some(sent_ns)) = (&mut self.departure_log, sent_ns) {
                    log.add(&packet, sent_ns);
                }
                if let Some(sent_ns) = sent_ns {
                    self.departures.add(self.retired_position.sender, sent_ns);
                }
                self.sent += 1;
            }
            self.retired += 1;
            self.retired_position.advance();
            self.settle_departures(false);
        }
        self.settle_departures(is_rest);
        self.retired > before
    }

    /// Takes account of the times that no earlier one can follow, before many wait.
    fn settle_departures(&mut self, is_rest: bool) {
        while let Some(sent_ns) = self.departures.next(is_rest) {
            self.account.departed(sent_ns);
        }
    }
}
