//! The packets inside a network: an arena of fixed slots, and lists through it.

/// No job.
pub const NONE: u32 = u32::MAX;

/// Service that has not begun.
pub const FRESH: u64 = u64::MAX;

/// A packet, or a clone of one; a line of the processor's cache.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Job {
    /// When its packet came out of the source.
    pub born: u64,
    /// When it came into the queue.
    pub arrived: u64,
    /// When its service first started.
    pub started: u64,
    /// Work that is left of a service that was interrupted, otherwise `FRESH`.
    pub left: u64,
    /// Number of its packet; clones have the same.
    pub packet: u64,
    /// Length of its packet.
    pub bytes: u32,
    /// The next in its queue, or the next free slot.
    pub next: u32,
    /// The next in its batch, while that is served.
    pub together: u32,
    /// Where its queue and class are counted: queue x classes + class.
    pub at: u32,
    /// Its class.
    pub class: u16,
    /// Whether it is a clone.
    pub clone: bool,
}

/// Slots that are used again; it grows to the most jobs there ever were, and never shrinks.
pub struct Jobs {
    slots: Vec<Job>,
    // the first free slot, or NONE
    free: u32,
    inside: usize,
}

impl Default for Jobs {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: NONE,
            inside: 0,
        }
    }
}

impl Jobs {
    /// How many there are.
    pub fn inside(&self) -> usize {
        self.inside
    }

    /// Takes in a job.
    #[inline]
    pub fn add(&mut self, job: Job) -> u32 {
        self.inside += 1;
        let slot = self.free;
        if slot == NONE {
            self.slots.push(job);
            return (self.slots.len() - 1) as u32;
        }
        let place = &mut self.slots[slot as usize];
        self.free = place.next;
        *place = job;
        slot
    }

    /// Lets a job go.
    #[inline]
    pub fn remove(&mut self, job: u32) {
        self.inside -= 1;
        self.slots[job as usize].next = self.free;
        self.free = job;
    }
}

impl std::ops::Index<u32> for Jobs {
    type Output = Job;

    #[inline]
    fn index(&self, job: u32) -> &Job {
        &self.slots[job as usize]
    }
}

impl std::ops::IndexMut<u32> for Jobs {
    #[inline]
    fn index_mut(&mut self, job: u32) -> &mut Job {
        &mut self.slots[job as usize]
    }
}

/// A list of jobs, first in first out; what was interrupted comes back to its front.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// The first, or `NONE`.
    pub head: u32,
    tail: u32,
}

impl Line {
    /// Nobody in it.
    pub const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
    };

    /// Whether nobody is in it.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.head == NONE
    }

    /// Adds a job at the end.
    #[inline]
    pub fn push(&mut self, job: u32, jobs: &mut Jobs) {
        jobs[job].next = NONE;
        if self.head == NONE {
            self.head = job;
        } else {
            jobs[self.tail].next = job;
        }
        self.tail = job;
    }

    /// Gives a job its place at the front back.
    #[inline]
    pub fn push_front(&mut self, job: u32, jobs: &mut Jobs) {
        jobs[job].next = self.head;
        if self.head == NONE {
            self.tail = job;
        }
        self.head = job;
    }

    /// Takes the first one out; there must be one.
    #[inline]
    pub fn pop(&mut self, jobs: &Jobs) -> u32 {
        let job = self.head;
        self.head = jobs[job].next;
        job
    }
}
