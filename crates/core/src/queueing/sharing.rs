//! Stations that serve all their packets at once: processor sharing, and delays.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Bits behind the point of attained service.
const FRACTION: u32 = 32;

/// Packets that are served together, each at the same rate.
///
/// What each has got since the station was last empty is the same number, so that whoever needs least
/// more than that is served first (the virtual time of processor sharing; Kleinrock, Queueing
/// Systems 2, 4.4). It is a whole number of 2^-32 ps: runs do not depend on rounding of floats.
#[derive(Clone, Default)]
pub(super) struct Sharing {
    attained: u128,
    since: u64,
    /// Packets that are served at full speed together; None is no limit: a delay.
    servers: Option<usize>,
    order: u64,
    due: BinaryHeap<Reverse<(u128, u64, u32)>>,
}

impl Sharing {
    pub fn new(servers: Option<usize>) -> Self {
        Self {
            servers,
            ..Self::default()
        }
    }

    /// How many packets it has.
    pub fn len(&self) -> usize {
        self.due.len()
    }

    /// How many of its servers work; of a delay, all its packets.
    pub fn working(&self) -> usize {
        self.servers
            .map_or(self.len(), |servers| self.len().min(servers))
    }

    /// Takes in a packet with so much work.
    pub fn add(&mut self, job: u32, work: u64, now: u64) {
        self.advance(now);
        self.order += 1;
        let due = self.attained + (u128::from(work) << FRACTION);
        self.due.push(Reverse((due, self.order, job)));
    }

    /// Lets the packet go that is finished first.
    pub fn remove(&mut self, now: u64) -> Option<u32> {
        self.advance(now);
        let Reverse((due, _, job)) = self.due.pop()?;
        // Shares are rounded down, so the station may seem to be a little behind its own clock.
        self.attained = self.attained.max(due);
        if self.due.is_empty() {
            self.attained = 0;
        }
        Some(job)
    }

    /// When the next packet is finished, rounded up to a picosecond.
    pub fn next(&self) -> Option<u64> {
        let Reverse((due, ..)) = self.due.peek()?;
        let left = due.saturating_sub(self.attained);
        let slowed = (left * self.len() as u128).div_ceil((self.working() as u128) << FRACTION);
        Some(
            self.since
                .saturating_add(u64::try_from(slowed).unwrap_or(u64::MAX)),
        )
    }

    fn advance(&mut self, now: u64) {
        if !self.due.is_empty() {
            let share = (u128::from(now - self.since) << FRACTION) * self.working() as u128;
            self.attained += share / self.len() as u128;
        }
        self.since = now;
    }
}
