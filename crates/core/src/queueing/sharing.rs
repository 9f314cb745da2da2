//! Shared stations, which serve all their packets at once: processor sharing and delay.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::calendar::NEVER;
use super::model::StationKind;
use super::network::StationPlan;
use super::queues::Queues;
use super::scale::Scale;

/// Fraction bits of the attained service.
const FRACTION: u32 = 32;

/// Packets in service together, each at the same rate.
///
/// Attained service, since the station was last empty, is the virtual time of processor sharing (Kleinrock, Queueing
/// Systems 2, 4.4): a packet departs when it reaches the value at its arrival plus its work. It is an integer, of
/// 2^-32 ps, so that runs do not depend on the rounding of floats.
#[derive(Clone, Default)]
struct Sharing {
    attained: u128,
    since: u64,
    /// Maximum number of packets at full rate; None for a delay.
    servers: Option<usize>,
    arrivals: u64,
    due: BinaryHeap<Reverse<(u128, u64, u32)>>,
}

impl Sharing {
    fn new(servers: Option<usize>) -> Self {
        Self {
            servers,
            ..Self::default()
        }
    }

    fn len(&self) -> usize {
        self.due.len()
    }

    /// Number of busy servers; for a delay, of packets.
    fn busy(&self) -> usize {
        self.servers
            .map_or(self.len(), |servers| self.len().min(servers))
    }

    /// Adds a packet; `work` is its service time in ps.
    fn add(&mut self, job: u32, work: u64, now: u64) {
        self.advance(now);
        self.arrivals += 1;
        let due = self.attained + (u128::from(work) << FRACTION);
        self.due.push(Reverse((due, self.arrivals, job)));
    }

    /// Removes the packet that departs next.
    fn remove(&mut self, now: u64) -> Option<u32> {
        self.advance(now);
        let Reverse((due, _, job)) = self.due.pop()?;
        // Attained service is rounded down, so it may be a little behind.
        self.attained = self.attained.max(due);
        if self.due.is_empty() {
            self.attained = 0;
        }
        Some(job)
    }

    /// Time of the next departure, rounded up to a picosecond.
    fn next_departure(&self) -> Option<u64> {
        let Reverse((due, ..)) = self.due.peek()?;
        let remaining = due.saturating_sub(self.attained);
        let slowed = (remaining * self.len() as u128).div_ceil((self.busy() as u128) << FRACTION);
        Some(
            self.since
                .saturating_add(u64::try_from(slowed).unwrap_or(u64::MAX)),
        )
    }

    fn advance(&mut self, now: u64) {
        if !self.due.is_empty() {
            let share = (u128::from(now - self.since) << FRACTION) * self.busy() as u128;
            self.attained += share / self.len() as u128;
        }
        self.since = now;
    }
}

/// A shared station: its packets, and the work that it has done.
#[derive(Clone)]
pub(super) struct Shared<'n> {
    plan: &'n StationPlan,
    packets: Sharing,
    /// Work done since counting began, server x ps.
    pub work: u128,
    settled_at: u64,
}

impl<'n> Shared<'n> {
    pub fn new(plan: &'n StationPlan) -> Self {
        let servers = match plan.kind {
            StationKind::Delay => None,
            _ => Some(plan.servers),
        };
        Self {
            plan,
            packets: Sharing::new(servers),
            work: 0,
            settled_at: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.packets.len() == 0
    }

    /// The time of the next departure; `NEVER` without packets.
    pub fn next_departure(&self) -> u64 {
        self.packets.next_departure().unwrap_or(NEVER)
    }

    /// A packet arrives at one of its queues; its service starts.
    pub fn arrive<S: Scale>(&mut self, job: u32, queue: usize, now: u64, queues: &mut Queues<S>) {
        self.settle(now, queues);
        queues[queue].occupancy.add(now);
        let slot = &mut queues.jobs[job];
        slot.started = now;
        // A job in a shared station is in no list, so this field remembers its queue.
        slot.next = queue as u32;
        let (at, bytes) = (slot.queue_class as usize, slot.bytes);
        let work = queues.draw_service(at, bytes, queue);
        self.packets.add(job, work, now);
    }

    /// The service of a packet ends. Returns the packet and its queue.
    pub fn depart<S: Scale>(&mut self, now: u64, queues: &mut Queues<S>) -> Option<(u32, usize)> {
        self.settle(now, queues);
        let job = self.packets.remove(now)?;
        Some((job, queues.jobs[job].next as usize))
    }

    /// Counts the work up to now, and its part for each queue. Call it before the number of packets in service changes.
    pub fn settle<S: Scale>(&mut self, now: u64, queues: &mut Queues<S>) {
        let (packets, busy) = (self.packets.len() as u128, self.packets.busy() as u128);
        let work = u128::from(now - self.settled_at) * busy;
        self.settled_at = now;
        self.work += work;
        if work == 0 {
            return;
        }
        for &queue in self.plan.levels.iter().flat_map(|level| &level.queues) {
            let state = &mut queues[queue as usize];
            let in_service = state.occupancy.now - u64::from(state.blocked);
            state.work += work * u128::from(in_service) / packets;
        }
    }
}
