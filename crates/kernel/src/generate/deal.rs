//! The plan dealt in turns to the rings of all senders.

use super::plan_ring::PlanRing;
use super::share::{Share, Turn};
use parshall_core::workload::Packet;
use std::sync::Arc;

/// The rings of all senders: one plan.
pub(super) struct Deal {
    rings: Vec<Arc<PlanRing>>,
}

impl Deal {
    /// Over the rings of the senders, in their order.
    pub fn new(rings: Vec<Arc<PlanRing>>) -> Self {
        Self { rings }
    }

    fn shares(&self) -> impl Iterator<Item = (Share, &PlanRing)> {
        self.rings.iter().map(|ring| (ring.share(), ring.as_ref()))
    }

    /// Whose turn the first packet is.
    pub fn first(&self) -> Turn {
        Turn::first(self.rings.len())
    }

    /// Places of all rings.
    pub fn places(&self) -> u64 {
        self.rings.iter().map(|ring| ring.places()).sum()
    }

    /// Whether the times of packets are kept.
    pub fn is_paced(&self) -> bool {
        self.rings[0].is_paced()
    }

    /// Writes a packet; told to the senders by [`Deal::set_drawn`].
    pub fn plan(&self, turn: Turn, packet: &Packet) {
        self.rings[turn.sender].plan(turn.number, packet);
    }

    /// Reads a packet back after it was sent: when, if that was asked, and what.
    pub fn sent(&self, turn: Turn) -> (Option<u64>, Packet) {
        self.rings[turn.sender].sent(turn.number)
    }

    /// Whether a packet was sent; for when no sender runs.
    pub fn was_sent(&self, turn: Turn) -> bool {
        turn.number < self.rings[turn.sender].next()
    }

    /// The plan's packets below this one may be sent.
    pub fn set_drawn(&self, drawn: u64) {
        for (share, ring) in self.shares() {
            ring.set_drawn(share.packets_below(drawn));
        }
    }

    /// Packets in all.
    pub fn set_end(&self, end: u64) {
        for (share, ring) in self.shares() {
            ring.set_end(share.packets_below(end));
        }
    }

    /// Packets in all.
    pub fn end(&self) -> u64 {
        self.rings.iter().map(|ring| ring.end()).sum()
    }

    /// From now on packets are due.
    pub fn start(&self, start_ns: u64) {
        for ring in &self.rings {
            ring.set_start_ns(start_ns);
        }
    }

    /// `CLOCK_MONOTONIC` of the first packet of all; None before it.
    pub fn begun_ns(&self) -> Option<u64> {
        self.rings.iter().filter_map(|ring| ring.begun_ns()).min()
    }

    /// No packet more.
    pub fn stop(&self) {
        for ring in &self.rings {
            ring.set_stopped(true);
        }
    }

    /// Packets again, after [`Deal::stop`].
    pub fn resume(&self) {
        for ring in &self.rings {
            ring.set_stopped(false);
        }
    }

    /// All packets of the plan below this one were sent, as far as the senders have told.
    pub fn sent_by_all(&self) -> u64 {
        let unsent = self
            .shares()
            .map(|(share, ring)| share.sequence(ring.taken()));
        unsent.min().unwrap_or(0).min(self.end())
    }

    /// No packet of the plan from this one on was sent; exact when no sender runs.
    pub fn sent_by_any(&self) -> u64 {
        self.shares()
            .filter_map(|(share, ring)| Some(share.sequence(ring.next().checked_sub(1)?) + 1))
            .max()
            .unwrap_or(0)
    }

    /// Runs that found nothing due, nothing drawn: of all senders.
    pub fn idle(&self) -> (u64, u64) {
        self.rings
            .iter()
            .map(|ring| ring.idle())
            .fold((0, 0), |(waited, starved), ring| {
                (waited + ring.0, starved + ring.1)
            })
    }
}
