//! The packets inside a network: an arena of slots, and first-in-first-out lists through it.

pub const NONE: u32 = u32::MAX;

/// Remaining work of a packet whose service has not started.
pub const NOT_STARTED: u64 = u64::MAX;

/// A packet or a clone of one, in one cache line. Times are in picoseconds.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Job {
    /// When the source sent its packet.
    pub created: u64,
    /// When it arrived at its queue.
    pub arrived: u64,
    /// When its service first started.
    pub started: u64,
    /// Remaining work of an interrupted service; otherwise `NOT_STARTED`.
    pub remaining: u64,
    /// Number of its packet; a clone has the number of its packet.
    pub packet: u64,
    pub bytes: u32,
    /// The next in its queue, or the next free slot.
    pub next: u32,
    /// The next in its batch, while the batch is in service.
    pub next_in_batch: u32,
    /// Index of its queue and class: queue x classes + class.
    pub queue_class: u32,
    pub class: u16,
    pub is_clone: bool,
}

/// The arena. Slots are reused, so it grows to the maximum number of jobs.
pub struct Jobs {
    slots: Vec<Job>,
    // the first free slot, or NONE
    free: u32,
    len: usize,
}

impl Default for Jobs {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: NONE,
            len: 0,
        }
    }
}

impl Jobs {
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn add(&mut self, job: Job) -> u32 {
        self.len += 1;
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

    #[inline]
    pub fn remove(&mut self, job: u32) {
        self.len -= 1;
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

/// A list of jobs, first in, first out. Interrupted jobs return to its front.
#[derive(Clone, Copy, Debug)]
pub struct Fifo {
    /// The first, or `NONE`.
    pub head: u32,
    tail: u32,
}

impl Fifo {
    pub const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
    };

    #[inline]
    pub fn is_empty(self) -> bool {
        self.head == NONE
    }

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

    #[inline]
    pub fn push_front(&mut self, job: u32, jobs: &mut Jobs) {
        jobs[job].next = self.head;
        if self.head == NONE {
            self.tail = job;
        }
        self.head = job;
    }

    /// Removes the first job. The list must not be empty.
    #[inline]
    pub fn pop(&mut self, jobs: &Jobs) -> u32 {
        let job = self.head;
        self.head = jobs[job].next;
        job
    }
}
