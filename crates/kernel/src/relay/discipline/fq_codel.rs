//! FQ-CoDel, after RFC 8290: a queue with CoDel for each flow, by deficit round robin; flows that are new go first.

use std::collections::VecDeque;

use super::codel::Codel;
use super::flow::number_of;
use super::{Backlog, Waiting};

/// Queues, as many as Linux has by default; flows of one number share one.
const QUEUES: usize = 1024;
/// Bytes that a queue may send in its turn: a full frame of Ethernet.
const QUANTUM_BYTES: i64 = 1514;

struct FlowQueue {
    frames: VecDeque<Waiting>,
    bytes: u64,
    codel: Codel,
    credits_bytes: i64,
    is_listed: bool,
}

/// All flows.
pub struct FqCodel {
    queues: Vec<FlowQueue>,
    /// Queues that were empty, and those that had their first turn, in the order of their turns.
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    seed: u64,
}

impl FqCodel {
    /// Queues that start empty, each with the parameters of `codel`. Flows are spread by `seed`.
    pub fn new(codel: Codel, seed: u64) -> Self {
        let queue = || FlowQueue {
            frames: VecDeque::new(),
            bytes: 0,
            codel: codel.clone(),
            credits_bytes: 0,
            is_listed: false,
        };
        Self {
            queues: (0..QUEUES).map(|_| queue()).collect(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            seed,
        }
    }

    /// Puts a frame into the queue of its flow.
    pub fn push(&mut self, frame: Waiting, backlog: &mut Backlog) {
        let number = (number_of(&frame.bytes, self.seed) % QUEUES as u64) as usize;
        let queue = &mut self.queues[number];
        backlog.add(&frame);
        queue.bytes += frame.size_bytes;
        queue.frames.push_back(frame);
        if !queue.is_listed {
            queue.is_listed = true;
            queue.credits_bytes = QUANTUM_BYTES;
            self.new.push_back(number);
        }
    }

    /// Drops the oldest frame of the queue with the most bytes, and returns its length; none when no frame waits.
    pub fn drop_longest(&mut self, backlog: &mut Backlog) -> Option<u64> {
        let longest = self.queues.iter_mut().max_by_key(|queue| queue.bytes)?;
        let frame = longest.frames.pop_front()?;
        longest.bytes -= frame.size_bytes;
        backlog.remove(&frame);
        Some(frame.bytes.len() as u64)
    }

    /// Takes the next frame; `early` gets the lengths of those that are dropped before it.
    pub fn dequeue(
        &mut self,
        now_ns: u64,
        backlog: &mut Backlog,
        early: &mut Vec<u64>,
    ) -> Option<Waiting> {
        loop {
            let is_new = !self.new.is_empty();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let number = *list.front()?;
            let queue = &mut self.queues[number];
            if queue.credits_bytes <= 0 {
                queue.credits_bytes += QUANTUM_BYTES;
                list.pop_front();
                self.old.push_back(number);
                continue;
            }
            let before_bytes = backlog.bytes;
            let taken = queue
                .codel
                .dequeue(now_ns, &mut queue.frames, backlog, early);
            queue.bytes -= before_bytes - backlog.bytes;
            match taken {
                Some(frame) => {
                    queue.credits_bytes -= frame.size_bytes as i64;
                    return Some(frame);
                }
                None => {
                    list.pop_front();
                    // A new queue that is empty waits its turn, so that it cannot be new again at once and starve others.
                    queue.is_listed = is_new;
                    if is_new {
                        self.old.push_back(number);
                    }
                }
            }
        }
    }
}
