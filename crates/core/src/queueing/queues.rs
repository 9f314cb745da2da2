//! The queues of a network during a run: packets, room and counts.

use std::cell::Cell;
use std::ops::{Index, IndexMut};

use super::dispatch_list::DispatchList;
use super::jobs::{Fifo, Jobs, NONE, NOT_STARTED};
use super::network::{Network, QueuePlan};
use super::scale::{Parts, Scale};
use super::service_time::ServiceTime;
use super::statistics::{Occupancy, VisitTotals};
use crate::distributions::Rng;

/// A service time that is not fixed: see `services`.
const NOT_FIXED: u64 = u64::MAX;

/// The state of a queue. The alignment makes the size a power of two, so that an index becomes a shift.
#[derive(Clone)]
#[repr(align(256))]
pub(super) struct QueueState<'n> {
    pub plan: &'n QueuePlan,
    /// Number of its level among those of all stations.
    pub level: usize,
    pub fifo: Fifo,
    /// Packets and bytes that take room; some may still be upstream, with a reserved place.
    held: u64,
    held_bytes: u64,
    pub interrupted: u32,
    pub blocked: u32,
    /// Whether a packet upstream waits for room here.
    is_awaited: Cell<bool>,
    /// Start tag of its next packet in weighted fair queueing.
    pub tag: f64,
    pub occupancy: Occupancy,
    pub work: u128,
    pub rng: Rng,
}

impl QueueState<'_> {
    /// Whether a packet of this length fits.
    #[inline]
    pub fn has_room(&self, bytes: u32) -> bool {
        self.held < self.plan.capacity_packets
            && self.held_bytes.saturating_add(u64::from(bytes)) <= self.plan.capacity_bytes
    }

    /// Whether a packet of this length fits. If not, upstream stations dispatch again when a place becomes free.
    #[inline]
    pub fn has_room_or_is_awaited(&self, bytes: u32) -> bool {
        let has_room = self.has_room(bytes);
        if !has_room {
            self.is_awaited.set(true);
        }
        has_room
    }

    #[inline]
    pub fn hold(&mut self, bytes: u32) {
        self.held += 1;
        self.held_bytes += u64::from(bytes);
    }

    /// Returns room that a packet did not use.
    pub fn cancel_hold(&mut self, bytes: u32) {
        self.held -= 1;
        self.held_bytes -= u64::from(bytes);
    }
}

/// All queues, and the packets in them and in service.
pub(super) struct Queues<'n, S: Scale> {
    network: &'n Network,
    pub jobs: Jobs,
    queues: S::Few<QueueState<'n>>,
    // of [queue][class]: the service time in ps, or `NOT_FIXED`
    fixed_times: S::Many<u64>,
    // of [queue][class]
    services: Vec<ServiceTime>,
    visits: S::Many<VisitTotals>,
    pub dispatch_list: DispatchList<S>,
    /// Whether a place became free that a packet blocked after service may wait for.
    pub has_freed: bool,
}

impl<'n, S: Scale> Queues<'n, S> {
    /// Empty queues, each with a random number stream of its own.
    pub fn new(network: &'n Network, mut stream: impl FnMut() -> Rng) -> Self {
        let queues = network.queues.iter().map(|plan| QueueState {
            plan,
            level: network.stations[plan.station as usize].first_level + plan.level as usize,
            fifo: Fifo::EMPTY,
            held: 0,
            held_bytes: 0,
            interrupted: 0,
            blocked: 0,
            is_awaited: Cell::new(false),
            tag: 0.0,
            occupancy: Occupancy::default(),
            work: 0,
            rng: stream(),
        });
        let services = network.services.iter();
        let services = services.map(|time| time.clone().unwrap_or(ServiceTime::Fixed(0)));
        let services: Vec<_> = services.collect();
        Self {
            network,
            jobs: Jobs::default(),
            queues: queues.collect::<Vec<_>>().into(),
            fixed_times: services.iter().map(fixed_time).collect::<Vec<_>>().into(),
            services,
            visits: vec![VisitTotals::default(); network.queues.len() * network.classes].into(),
            dispatch_list: DispatchList::new(network.stations.len()),
            has_freed: false,
        }
    }

    /// A packet arrives. Returns whether it is accepted; one with a reserved place always is.
    #[inline(always)]
    pub fn accept(&mut self, job: u32, queue: usize, is_reserved: bool, now: u64) -> bool {
        let slot = &mut self.jobs[job];
        slot.arrived = now;
        let at = queue * self.network.classes + usize::from(slot.class);
        slot.queue_class = at as u32;
        let visits = &mut self.visits[at];
        visits.arrived += 1;
        if is_reserved {
            return true;
        }
        let state = &mut self.queues[queue];
        if !state.has_room(slot.bytes) {
            visits.lost += 1;
            visits.lost_bytes += u64::from(slot.bytes);
            return false;
        }
        state.hold(slot.bytes);
        true
    }

    #[inline(always)]
    pub fn pop(&mut self, queue: usize) -> u32 {
        self.queues[queue].fifo.pop(&self.jobs)
    }

    /// Adds a packet at the end of a queue. Returns whether the queue was empty.
    #[inline(always)]
    pub fn push(&mut self, job: u32, queue: usize) -> bool {
        let fifo = &mut self.queues[queue].fifo;
        let was_empty = fifo.is_empty();
        fifo.push(job, &mut self.jobs);
        was_empty
    }

    /// Returns an interrupted packet to the front of its queue. Returns whether the queue was empty.
    pub fn push_interrupted(&mut self, job: u32, queue: usize) -> bool {
        let state = &mut self.queues[queue];
        let was_empty = state.fifo.is_empty();
        state.fifo.push_front(job, &mut self.jobs);
        state.interrupted += 1;
        was_empty
    }

    /// Whether the first packet of a queue can be served.
    #[inline]
    pub fn is_servable(&self, queue: usize) -> bool {
        let state = &self.queues[queue];
        let head = state.fifo.head;
        head != NONE && (!state.plan.blocks_before_service || !self.is_blocked(head))
    }

    /// Whether a packet waits for room downstream before its service.
    pub fn is_blocked(&self, job: u32) -> bool {
        let slot = &self.jobs[job];
        // A packet whose service has started has a reserved place.
        if slot.remaining != NOT_STARTED {
            return false;
        }
        let downstream = &self.network.routes[slot.queue_class as usize].blocking;
        // Every full queue must know that it is awaited.
        let full = downstream
            .iter()
            .filter(|&&queue| !self.queues[queue as usize].has_room_or_is_awaited(slot.bytes));
        full.count() > 0
    }

    /// Draws the service time of a packet of this length; `at` is the index of its queue and class.
    #[inline(always)]
    pub fn draw_service(&mut self, at: usize, bytes: u32, queue: usize) -> u64 {
        match self.fixed_times[at] {
            NOT_FIXED => self.services[at].sample(bytes, &mut self.queues[queue].rng),
            time => time,
        }
    }

    /// Starts the service of a packet: draws its time and reserves its place downstream.
    #[inline(always)]
    pub fn start_service(&mut self, job: u32, queue: usize, now: u64) -> u64 {
        let slot = &mut self.jobs[job];
        slot.started = now;
        let (at, bytes) = (slot.queue_class as usize, slot.bytes);
        let work = self.draw_service(at, bytes, queue);
        let plan = self.queues[queue].plan;
        if plan.blocks_before_service {
            for &next in &self.network.routes[at].blocking {
                self.queues[next as usize].hold(bytes);
            }
        }
        self.free_place(queue, bytes, !plan.frees_at_end);
        work
    }

    /// Ends the service of a packet. Returns the index of its queue and class.
    #[inline(always)]
    pub fn end_service(&mut self, job: u32, queue: usize, frees: bool, now: u64) -> usize {
        let slot = &self.jobs[job];
        let (at, bytes) = (slot.queue_class as usize, slot.bytes);
        self.visits[at].add_served(slot.arrived, slot.started, now);
        self.queues[queue].occupancy.remove(now);
        self.free_place(queue, bytes, frees);
        at
    }

    /// Frees the place of a packet, if `is_freed`. Stations that wait for one dispatch again.
    ///
    /// It multiplies instead of branching: the queue differs from event to event, so that a branch would often be
    /// mispredicted.
    #[inline(always)]
    fn free_place(&mut self, queue: usize, bytes: u32, is_freed: bool) {
        let state = &mut self.queues[queue];
        let freed = u64::from(is_freed);
        state.held -= freed;
        state.held_bytes -= freed * u64::from(bytes);
        if is_freed & state.is_awaited.get() {
            self.wake_upstream(queue);
        }
    }

    #[cold]
    fn wake_upstream(&mut self, queue: usize) {
        let state = &self.queues[queue];
        state.is_awaited.set(false);
        for &station in &state.plan.upstream {
            self.dispatch_list.add(station);
        }
        self.has_freed = true;
    }

    pub fn restart_counting(&mut self, now: u64) {
        for queue in self.queues.all_mut() {
            queue.occupancy.restart(now);
            queue.work = 0;
        }
        self.visits.all_mut().fill(VisitTotals::default());
    }

    /// Totals of [queue][class].
    pub fn visits(&self) -> &[VisitTotals] {
        self.visits.all()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, QueueState<'n>> {
        self.queues.all().iter()
    }
}

impl<'n, S: Scale> Index<usize> for Queues<'n, S> {
    type Output = QueueState<'n>;

    #[inline(always)]
    fn index(&self, queue: usize) -> &QueueState<'n> {
        &self.queues[queue]
    }
}

impl<'n, S: Scale> IndexMut<usize> for Queues<'n, S> {
    #[inline(always)]
    fn index_mut(&mut self, queue: usize) -> &mut QueueState<'n> {
        &mut self.queues[queue]
    }
}

fn fixed_time(service: &ServiceTime) -> u64 {
    match service {
        ServiceTime::Fixed(time) => *time,
        ServiceTime::PerByte { .. } | ServiceTime::Random { .. } => NOT_FIXED,
    }
}
