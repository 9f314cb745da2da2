//! CoDel, after RFC 8289, section 5: while the smallest waiting time of an interval is above a target, frames are dropped or marked,
//! ever faster, until it is below.

use std::collections::VecDeque;

use super::congestion_mark;
use super::{Backlog, Waiting};

/// Acceptable waiting time of a standing queue, as RFC 8289 recommends.
const TARGET_NS: u64 = 5_000_000;
/// About the longest round-trip time of the flows.
const INTERVAL_NS: u64 = 100_000_000;

/// The state of one queue.
#[derive(Clone, Debug)]
pub struct Codel {
    target_ns: u64,
    interval_ns: u64,
    is_ecn: bool,
    /// When the waiting time will have been above the target for an interval; none while it is below.
    first_above_ns: Option<u64>,
    is_dropping: bool,
    drop_next_ns: u64,
    /// Drops since dropping began.
    count: u64,
    last_count: u64,
}

/// A frame from the head of the queue, and whether it has waited too long for too long.
struct Head {
    frame: Waiting,
    is_late: bool,
}

fn length(head: &Option<Head>) -> Option<u64> {
    head.as_ref().map(|head| head.frame.bytes.len() as u64)
}

impl Codel {
    /// A queue that starts empty, with the values of RFC 8289 where none is given.
    pub fn new(target_ns: Option<u64>, interval_ns: Option<u64>, is_ecn: bool) -> Self {
        Self {
            target_ns: target_ns.unwrap_or(TARGET_NS),
            interval_ns: interval_ns.unwrap_or(INTERVAL_NS),
            is_ecn,
            first_above_ns: None,
            is_dropping: false,
            drop_next_ns: 0,
            count: 0,
            last_count: 0,
        }
    }

    /// Takes the next frame from the queue; `early` gets the lengths of those that are dropped before it.
    pub fn dequeue(
        &mut self,
        now_ns: u64,
        frames: &mut VecDeque<Waiting>,
        backlog: &mut Backlog,
        early: &mut Vec<u64>,
    ) -> Option<Waiting> {
        let mut head = self.head(now_ns, frames, backlog);
        if self.is_dropping {
            self.is_dropping = head.as_ref().is_some_and(|head| head.is_late);
            while self.is_dropping && now_ns >= self.drop_next_ns {
                self.count += 1;
                if self.mark(&mut head) {
                    self.drop_next_ns = self.after(self.drop_next_ns);
                    break;
                }
                early.extend(length(&head));
                head = self.head(now_ns, frames, backlog);
                self.is_dropping = head.as_ref().is_some_and(|head| head.is_late);
                if self.is_dropping {
                    self.drop_next_ns = self.after(self.drop_next_ns);
                }
            }
        } else if head.as_ref().is_some_and(|head| head.is_late) {
            if !self.mark(&mut head) {
                early.extend(length(&head));
                head = self.head(now_ns, frames, backlog);
            }
            self.is_dropping = true;
            // Soon after the last time, the rate that controlled the queue then is a good one to begin with.
            let dropped = self.count - self.last_count;
            let is_soon = now_ns.saturating_sub(self.drop_next_ns) < 16 * self.interval_ns;
            self.count = if dropped > 1 && is_soon { dropped } else { 1 };
            self.last_count = self.count;
            self.drop_next_ns = self.after(now_ns);
        }
        head.map(|head| head.frame)
    }

    /// Takes the head of the queue, and notes for how long waiting times have been above the target.
    fn head(
        &mut self,
        now_ns: u64,
        frames: &mut VecDeque<Waiting>,
        backlog: &mut Backlog,
    ) -> Option<Head> {
        let Some(frame) = frames.pop_front() else {
            self.first_above_ns = None;
            return None;
        };
        backlog.remove(&frame);
        let waited_ns = now_ns - frame.arrival_ns;
        let mut is_late = false;
        if waited_ns < self.target_ns || backlog.bytes <= backlog.largest_bytes {
            self.first_above_ns = None;
        } else {
            match self.first_above_ns {
                None => self.first_above_ns = Some(now_ns + self.interval_ns),
                Some(first_above_ns) => is_late = now_ns >= first_above_ns,
            }
        }
        Some(Head { frame, is_late })
    }

    /// Marks the frame in place of dropping it, where its hosts understand it.
    fn mark(&self, head: &mut Option<Head>) -> bool {
        let Some(head) = head.as_mut().filter(|_| self.is_ecn) else {
            return false;
        };
        if !congestion_mark::can_be_marked(&head.frame.bytes) {
            return false;
        }
        head.frame.mark();
        true
    }

    /// When the next frame is dropped: intervals become shorter with the square root of their number.
    fn after(&self, from_ns: u64) -> u64 {
        from_ns + (self.interval_ns as f64 / (self.count as f64).sqrt()) as u64
    }
}
