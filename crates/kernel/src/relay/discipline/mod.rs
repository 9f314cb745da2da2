//! What holds the frames that wait for the serialiser, and which of them it drops or marks before the queue is full.
//!
//! Nothing here does I/O or reads a clock. A frame is taken from the queue when the serialiser is free, so its fate is
//! known then and not when it arrives: [`Bottleneck::advance`] goes through what happens up to a time at which all
//! earlier frames are known.

mod codel;
mod congestion_mark;
mod flow;
mod fq_codel;
mod pie;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use self::codel::Codel;
use self::fq_codel::FqCodel;
use self::pie::{Admission, Pie};
use super::serialiser::Serialiser;
use super::shape::Shape;

/// Which frames a queue drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// The newest, when the queue is full.
    #[default]
    DropTail,
    /// Frames that waited longer than a target for an interval (RFC 8289).
    Codel,
    /// CoDel in a queue for each flow, which take turns (RFC 8290).
    FqCodel,
    /// Each arriving frame with a probability that follows the waiting time (RFC 8033).
    Pie,
}

/// A frame that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// When it came, nanoseconds.
    pub arrival_ns: u64,
    /// Its bytes, and those that the shape adds.
    pub size_bytes: u64,
    /// The frame.
    pub bytes: Vec<u8>,
    /// The discipline has marked it.
    pub is_marked: bool,
}

impl Waiting {
    fn mark(&mut self) {
        congestion_mark::mark(&mut self.bytes);
        self.is_marked = true;
    }
}

/// What became of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its last bit has left the serialiser.
    Serialised {
        /// The frame, with the mark of ECN if the discipline has marked it.
        bytes: Vec<u8>,
        /// Nanoseconds.
        at_ns: u64,
        /// It was marked in place of being dropped.
        is_marked: bool,
    },
    /// Dropped, as the queue was full.
    Full {
        /// Its length.
        bytes: u64,
    },
    /// Dropped by the discipline earlier.
    Early {
        /// Its length.
        bytes: u64,
    },
}

/// Frames and bytes that wait.
#[derive(Clone, Copy, Debug, Default)]
struct Backlog {
    packets: usize,
    bytes: u64,
    /// Bytes of the largest frame so far: a queue of one frame is none that could be shorter.
    largest_bytes: u64,
}

impl Backlog {
    fn add(&mut self, frame: &Waiting) {
        self.packets += 1;
        self.bytes += frame.size_bytes;
        self.largest_bytes = self.largest_bytes.max(frame.size_bytes);
    }

    fn remove(&mut self, frame: &Waiting) {
        self.packets -= 1;
        self.bytes -= frame.size_bytes;
    }
}

enum Queue {
    Codel {
        frames: VecDeque<Waiting>,
        codel: Codel,
    },
    FqCodel(Box<FqCodel>),
    Pie {
        frames: VecDeque<Waiting>,
        pie: Pie,
    },
}

/// A queue with a discipline, and the serialiser that takes frames from it.
pub struct Bottleneck {
    queue: Queue,
    backlog: Backlog,
    serialiser: Serialiser,
    rate_bps: u64,
    arrival_ns: u64,
    /// Since when the serialiser could take a frame that waits: when it was free, or the frame came.
    ready_ns: u64,
    serialising_bytes: u64,
    packets_max: usize,
    bytes_max: u64,
    peak_packets: usize,
}

impl Bottleneck {
    /// A queue that starts empty; none for [`Discipline::DropTail`] and without a rate. `seed` is of the random
    /// decisions.
    pub fn new(shape: &Shape, seed: u64) -> Option<Self> {
        let rate_bps = shape.rate_bps?;
        let codel = Codel::new(shape.target_ns, shape.interval_ns, shape.is_ecn);
        let queue = match shape.discipline {
            Discipline::DropTail => return None,
            Discipline::Codel => Queue::Codel {
                frames: VecDeque::new(),
                codel,
            },
            Discipline::FqCodel => Queue::FqCodel(Box::new(FqCodel::new(codel, seed))),
            Discipline::Pie => Queue::Pie {
                frames: VecDeque::new(),
                pie: Pie::new(shape.target_ns, shape.is_ecn, seed),
            },
        };
        Some(Self {
            queue,
            backlog: Backlog::default(),
            serialiser: Serialiser::default(),
            rate_bps,
            arrival_ns: 0,
            ready_ns: 0,
            serialising_bytes: 0,
            packets_max: shape.queue_packets.map_or(usize::MAX, |most| most as usize),
            bytes_max: shape.queue_bytes.unwrap_or(u64::MAX),
            peak_packets: 0,
        })
    }

    /// Frames that wait.
    pub fn packets(&self) -> usize {
        self.backlog.packets
    }

    /// Most frames that waited or were in the serialiser at once.
    pub fn peak_packets(&self) -> usize {
        self.peak_packets
    }

    /// When the serialiser takes the next frame; none when none waits.
    pub fn next_ns(&self) -> Option<u64> {
        (self.backlog.packets > 0).then(|| self.ready_ns.max(self.serialiser.free_ns()))
    }

    /// A frame arrives; all that came before it are known, and times that run backwards count as equal to the latest.
    /// `done` gets what became of frames up to its arrival, and of itself if it was dropped.
    pub fn offer(&mut self, mut frame: Waiting, mut done: impl FnMut(Outcome)) {
        frame.arrival_ns = frame.arrival_ns.max(self.arrival_ns);
        self.arrival_ns = frame.arrival_ns;
        let (now_ns, length) = (frame.arrival_ns, frame.bytes.len() as u64);
        self.advance(now_ns, &mut done);
        // The frame in the serialiser is in the queue until its last bit has left.
        let is_serialising = self.serialiser.free_ns() > now_ns;
        let serialising_bytes = if is_serialising {
            self.serialising_bytes
        } else {
            0
        };
        let (packets_max, bytes_max) = (self.packets_max, self.bytes_max);
        let has_room = |backlog: &Backlog, packets: usize, bytes: u64| {
            backlog.packets + usize::from(is_serialising) + packets <= packets_max
                && backlog.bytes + serialising_bytes + bytes <= bytes_max
        };
        let is_full = !has_room(&self.backlog, 1, frame.size_bytes);
        let was_empty = self.backlog.packets == 0;
        match &mut self.queue {
            Queue::FqCodel(queue) => {
                queue.push(frame, &mut self.backlog);
                // Of the flow with the most bytes, not of the one that came last.
                while !has_room(&self.backlog, 0, 0)
                    && let Some(bytes) = queue.drop_longest(&mut self.backlog)
                {
                    done(Outcome::Full { bytes });
                }
            }
            _ if is_full => return done(Outcome::Full { bytes: length }),
            Queue::Codel { frames, .. } => {
                self.backlog.add(&frame);
                frames.push_back(frame);
            }
            Queue::Pie { frames, pie } => {
                match pie.admit(self.backlog.bytes, &frame.bytes) {
                    Admission::Drop => return done(Outcome::Early { bytes: length }),
                    Admission::Mark => frame.mark(),
                    Admission::Take => {}
                }
                self.backlog.add(&frame);
                frames.push_back(frame);
            }
        }
        self.peak_packets = self
            .peak_packets
            .max(self.backlog.packets + usize::from(is_serialising));
        if was_empty {
            self.ready_ns = now_ns;
        }
        // An idle serialiser takes it at once.
        self.advance(now_ns, &mut done);
    }

    /// Goes through what happens up to a time; every frame that came before is known.
    pub fn advance(&mut self, to_ns: u64, mut done: impl FnMut(Outcome)) {
        loop {
            let next_ns = self.next_ns().filter(|next_ns| *next_ns <= to_ns);
            if let Queue::Pie { pie, .. } = &mut self.queue {
                // Between two frames, the waiting time only falls: the probability is updated before each is taken.
                let waiting_ns = (u128::from(self.backlog.bytes) * 8_000_000_000
                    / u128::from(self.rate_bps)) as u64;
                pie.update_until(next_ns.unwrap_or(to_ns), waiting_ns);
            }
            let Some(now_ns) = next_ns else {
                return;
            };
            let mut early = Vec::new();
            let taken = match &mut self.queue {
                Queue::Codel { frames, codel } => {
                    codel.dequeue(now_ns, frames, &mut self.backlog, &mut early)
                }
                Queue::FqCodel(queue) => queue.dequeue(now_ns, &mut self.backlog, &mut early),
                Queue::Pie { frames, .. } => {
                    let frame = frames.pop_front();
                    frame.iter().for_each(|frame| self.backlog.remove(frame));
                    frame
                }
            };
            for bytes in early {
                done(Outcome::Early { bytes });
            }
            if let Some(frame) = taken {
                self.serialising_bytes = frame.size_bytes;
                // From its arrival, not from now, which is rounded: it begins when the serialiser is free.
                let at_ns =
                    self.serialiser
                        .serialise(frame.arrival_ns, frame.size_bytes, self.rate_bps);
                done(Outcome::Serialised {
                    at_ns,
                    bytes: frame.bytes,
                    is_marked: frame.is_marked,
                });
            }
        }
    }
}
