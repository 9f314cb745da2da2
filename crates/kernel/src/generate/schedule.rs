//! Which sender sends which packet of the plan, and the times of all senders put into one order.

use super::plan_ring::PlanRing;
use parshall_core::workload::Packet;
use std::collections::VecDeque;
use std::sync::Arc;

/// The rings of all senders: one plan.
pub(super) struct Schedule {
    rings: Vec<Arc<PlanRing>>,
}

impl Schedule {
    /// Over the rings of the senders, in their order.
    pub fn new(rings: Vec<Arc<PlanRing>>) -> Self {
        Self { rings }
    }

    /// Position of the plan's first packet.
    pub fn first(&self) -> Position {
        Position::first(self.rings.len())
    }

    /// Capacity of all rings, packets.
    pub fn capacity(&self) -> u64 {
        self.rings.iter().map(|ring| ring.capacity()).sum()
    }

    /// Whether the times of packets are kept.
    pub fn is_paced(&self) -> bool {
        self.rings[0].is_paced()
    }

    /// Writes a packet; it may be sent after [`Schedule::set_drawn`].
    pub fn plan(&self, position: Position, packet: &Packet) {
        self.rings[position.sender].plan(position.number, packet);
    }

    /// Reads a packet back after it was sent: when, if that was asked, and what.
    pub fn sent(&self, position: Position) -> (Option<u64>, Packet) {
        self.rings[position.sender].sent(position.number)
    }

    /// Whether a packet was sent; for when no sender runs.
    pub fn was_sent(&self, position: Position) -> bool {
        position.number < self.rings[position.sender].next()
    }

    /// The plan's packets below this one may be sent.
    pub fn set_drawn(&self, drawn: u64) {
        for ring in &self.rings {
            ring.set_drawn(ring.shape.packets_below(drawn));
        }
    }

    /// Packets in all.
    pub fn set_end(&self, end: u64) {
        for ring in &self.rings {
            ring.set_end(ring.shape.packets_below(end));
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

    /// Stops the senders, or lets them resume.
    pub fn set_stopped(&self, is_stopped: bool) {
        for ring in &self.rings {
            ring.set_stopped(is_stopped);
        }
    }

    /// All packets of the plan below this one were sent, as far as the senders have reported.
    pub fn sent_by_all(&self) -> u64 {
        let unsent = self
            .rings
            .iter()
            .map(|ring| ring.shape.sequence(ring.taken()));
        unsent.min().unwrap_or(0).min(self.end())
    }

    /// No packet of the plan from this one on was sent; exact when no sender runs.
    pub fn sent_by_any(&self) -> u64 {
        self.rings
            .iter()
            .filter_map(|ring| Some(ring.shape.sequence(ring.next().checked_sub(1)?) + 1))
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

/// Where a packet of the plan is: a sender, and the number that the packet has there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    pub sender: usize,
    pub number: u64,
    senders: usize,
}

impl Position {
    /// That of the plan's first packet.
    pub fn first(senders: usize) -> Self {
        Self {
            sender: 0,
            number: 0,
            senders,
        }
    }

    /// That of the plan's next packet.
    pub fn advance(&mut self) {
        self.sender += 1;
        if self.sender == self.senders {
            self.sender = 0;
            self.number += 1;
        }
    }
}

/// Times of each sender, in its order, until it is known that none before them is still to come.
pub(super) struct Departures {
    waiting: Vec<VecDeque<u64>>,
}

impl Departures {
    pub fn new(senders: usize) -> Self {
        Self {
            waiting: vec![VecDeque::new(); senders],
        }
    }

    /// A sender sent its next packet.
    pub fn add(&mut self, sender: usize, sent_ns: u64) {
        self.waiting[sender].push_back(sent_ns);
    }

    /// The earliest time, once every sender has a later one; None before. Of the rest, when no more is to come, the earliest.
    pub fn next(&mut self, is_rest: bool) -> Option<u64> {
        if !is_rest && self.waiting.iter().any(VecDeque::is_empty) {
            return None;
        }
        self.waiting
            .iter_mut()
            .filter(|times| !times.is_empty())
            .min_by_key(|times| times[0])?
            .pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan_ring::Shape;
    use super::*;

    #[test]
    fn every_packet_has_one_sender() {
        for senders in 1..5 {
            let shapes: Vec<Shape> = (0..senders)
                .map(|sender| Shape {
                    sender,
                    senders,
                    capacity: 1,
                    is_paced: false,
                })
                .collect();
            let mut position = Position::first(senders as usize);
            for end in 0..40 {
                let below: Vec<u64> = shapes
                    .iter()
                    .map(|shape| shape.packets_below(end))
                    .collect();
                assert_eq!(below.iter().sum::<u64>(), end);
                // The packet behind them is the next of its sender.
                assert_eq!(position.number, below[position.sender]);
                assert_eq!(shapes[position.sender].sequence(position.number), end);
                position.advance();
            }
        }
    }

    #[test]
    fn times_of_all_senders_come_in_order() {
        let mut departures = Departures::new(2);
        departures.add(0, 1);
        assert_eq!(departures.next(false), None);
        departures.add(0, 5);
        departures.add(1, 3);
        departures.add(1, 4);
        let settled: Vec<u64> = std::iter::from_fn(|| departures.next(false)).collect();
        assert_eq!(settled, [1, 3, 4]);
        departures.add(1, 9);
        let rest: Vec<u64> = std::iter::from_fn(|| departures.next(true)).collect();
        assert_eq!(rest, [5, 9]);
    }
}
