//! The event loop: packets come from sources, pass the stations and leave by sinks.
//!
//! Events at the same time occur in the order of their numbers: servers in the order of their stations, then polling
//! levels, then sources. So a packet that departs makes room for one that arrives at the same time. After each event,
//! the stations whose queues or servers it changed dispatch, in the order in which they changed.

use super::blocked::{BlockedPacket, find_deadlock};
use super::calendar::{Calendar, NEVER};
use super::error::ModelError;
use super::jobs::{Job, NONE, NOT_STARTED};
use super::network::Network;
use super::queues::QueueState;
use super::routes::Route;
use super::run_options::RunOptions;
use super::sampler::Sampler;
use super::scale::Scale;
use super::stations::{Completion, Stations};
use super::statistics::{Balance, Counts, QueueTotals, SinkTotals, VisitTotals};
use super::time::{picoseconds, seconds, whole};
use super::trace::{Fate, Trace};
use super::watchdog::{Exceeded, Watchdog};
use crate::distributions::Rng;

/// A source during a run, with a random number stream for each thing that it draws.
struct SourceState {
    gap: Sampler,
    size: Sampler,
    packets_left: u64,
    gap_rng: Rng,
    size_rng: Rng,
    route_rng: Rng,
}

/// A network during a run.
pub(super) struct Engine<'n, S: Scale> {
    network: &'n Network,
    stations: Stations<'n, S>,
    sources: Vec<SourceState>,
    /// Packets blocked after service, the longest wait first.
    blocked: Vec<BlockedPacket>,
    /// The queues of a deadlock.
    deadlock: Option<Vec<String>>,
    /// Packets that sources have sent.
    packets: u64,
    // of [sink][class]
    sinks: Vec<SinkTotals>,
    balance: Balance,
    trace: Option<Trace>,
    /// When counting began.
    counted_since: u64,
    /// Events since counting began.
    events: u64,
    events_at_check: u64,
    next_check: u64,
    watchdog: Watchdog,
}

impl<'n, S: Scale> Engine<'n, S> {
    /// An empty network; the first arrival of every source is scheduled. Each replication has random number streams of
    /// its own.
    pub fn new(
        network: &'n Network,
        options: &RunOptions,
        replication: u64,
        has_trace: bool,
    ) -> Self {
        let mut streams = 0_u64..;
        let mut stream = || {
            let number = streams.next().expect("there are 2^64 streams");
            Rng::new(options.seed, replication << 32 | number)
        };
        let sources = network.sources.iter().map(|plan| {
            let mut state = SourceState {
                gap: plan.gap.clone(),
                size: plan.size.clone(),
                packets_left: plan.packets,
                gap_rng: stream(),
                size_rng: stream(),
                route_rng: stream(),
            };
            state.gap.start(&mut state.gap_rng);
            state
        });
        let sources: Vec<_> = sources.collect();
        let watchdog = Watchdog::new(options.jobs_max, options.events_max);
        let mut engine = Self {
            network,
            stations: Stations::new(network, stream),
            sources,
            blocked: Vec::new(),
            deadlock: None,
            packets: 0,
            sinks: vec![SinkTotals::default(); network.model.sinks.len() * network.classes],
            balance: Balance::default(),
            trace: has_trace.then(Trace::default),
            counted_since: 0,
            events: 0,
            events_at_check: 0,
            next_check: watchdog.events_per_check(),
            watchdog,
        };
        for source in 0..engine.sources.len() {
            engine.schedule_arrival(source);
        }
        engine
    }

    /// Runs until a time in ps, or until no event is scheduled.
    pub fn run(&mut self, until: u64, is_stopped: impl Fn() -> bool) -> Result<(), ModelError> {
        loop {
            let (event, time) = self.stations.calendar.next();
            if time == NEVER || time > until {
                break;
            }
            self.stations.now = time;
            self.events += 1;
            self.handle(event);
            if self.events >= self.next_check {
                self.check(&is_stopped)?;
            }
        }
        self.refuse_deadlock()?;
        if until != NEVER {
            self.stations.now = until;
        }
        Ok(())
    }

    #[inline]
    fn handle(&mut self, event: usize) {
        let network = self.network;
        let polling_events = &network.polling_events;
        // The station of a server whose service has ended dispatches first.
        let mut first = None;
        if event < polling_events.start {
            let (station, completion) = self.stations.end_service(event);
            first = Some(station);
            if let Some(completion) = completion {
                self.complete(completion);
            }
        } else if event < polling_events.end {
            self.stations.end_closure(event);
        } else {
            self.emit(event - polling_events.end);
        }
        loop {
            if S::special(self.stations.queues.has_freed) {
                self.release();
            }
            let station = match first.take() {
                Some(station) => {
                    self.stations.queues.dispatch_list.take(station);
                    station
                }
                None => match self.stations.queues.dispatch_list.pop() {
                    Some(station) => station,
                    None => return,
                },
            };
            self.stations.dispatch(station as usize);
        }
    }

    fn schedule_arrival(&mut self, source: usize) {
        let state = &mut self.sources[source];
        let gap_ns = if state.packets_left == 0 || state.size.is_exhausted() {
            None
        } else {
            state.gap.sample(0, &mut state.gap_rng)
        };
        let stretch = self.network.sources[source].stretch;
        let time = gap_ns.map_or(NEVER, |gap_ns| {
            let gap = picoseconds(gap_ns * stretch);
            self.stations.now.saturating_add(gap)
        });
        let event = self.network.polling_events.end + source;
        self.stations.calendar.schedule(event, time);
    }

    /// A source sends a packet.
    fn emit(&mut self, source: usize) {
        let class = self.network.sources[source].class;
        let state = &mut self.sources[source];
        state.packets_left -= 1;
        let bytes = match state.size.constant_bytes() {
            Some(bytes) => bytes,
            None => state
                .size
                .sample(0, &mut state.size_rng)
                .map_or(0, |bytes| whole(bytes) as u32),
        };
        let now = self.stations.now;
        let job = self.stations.queues.jobs.add(Job {
            created: now,
            arrived: now,
            started: now,
            remaining: NOT_STARTED,
            packet: self.packets,
            bytes,
            next: NONE,
            next_in_batch: NONE,
            queue_class: 0,
            class,
            is_clone: false,
        });
        self.packets += 1;
        self.balance.entered += 1;
        let origin = self.network.queues.len() + source;
        self.send(job, origin * self.network.classes + usize::from(class));
        self.schedule_arrival(source);
    }

    /// The service of a packet and its batch ends.
    #[inline(always)]
    fn complete(&mut self, completion: Completion) {
        let Completion { job, queue, server } = completion;
        let plan = self.stations.queues[queue].plan;
        if S::special(plan.blocks_after_service) {
            self.complete_or_block(completion);
        } else if S::special(plan.batch_packets > 1) {
            self.complete_batch(job, queue, plan.frees_at_end);
        } else {
            let frees = plan.frees_at_end || S::special(server.is_none());
            let from = self.end_visit(job, queue, frees);
            self.send(job, from);
        }
    }

    #[inline(never)]
    fn complete_batch(&mut self, first: u32, queue: usize, frees: bool) {
        let mut job = first;
        while job != NONE {
            if self.check_soon_if_too_many() {
                return;
            }
            let slot = &mut self.stations.queues.jobs[job];
            let next = std::mem::replace(&mut slot.next_in_batch, NONE);
            let from = self.end_visit(job, queue, frees);
            self.send(job, from);
            job = next;
        }
    }

    /// Counts a packet that leaves a queue. Returns the index of its queue and class.
    #[inline(always)]
    fn end_visit(&mut self, job: u32, queue: usize, frees: bool) -> usize {
        if self.trace.is_some() {
            self.trace_visit(job, queue, Fate::Served);
        }
        let now = self.stations.now;
        self.stations.queues.end_service(job, queue, frees, now)
    }

    /// Records that a packet leaves a queue. Apart, so that runs without a trace are not slower.
    #[cold]
    #[inline(never)]
    fn trace_visit(&mut self, job: u32, queue: usize, fate: Fate) {
        if let Some(trace) = &mut self.trace {
            let slot = &self.stations.queues.jobs[job];
            trace.record_visit(slot, queue, fate, self.stations.now);
        }
    }

    /// Records that a packet leaves the network.
    #[cold]
    #[inline(never)]
    fn trace_packet(&mut self, job: u32, place: u32, fate: Fate) {
        if let Some(trace) = &mut self.trace {
            let slot = &self.stations.queues.jobs[job];
            trace.record_packet(slot, place, fate, self.stations.now);
        }
    }

    /// Sends a packet and its clones on the routes with the index `from`, of [origin][class].
    #[inline(always)]
    fn send(&mut self, job: u32, from: usize) {
        let network = self.network;
        let routes = &network.routes[from];
        match routes.direct {
            Some(route) => self.arrive(job, route.place, route.blocks),
            None => self.send_copies(job, from / network.classes, &routes.all),
        }
    }

    #[inline(never)]
    fn send_copies(&mut self, job: u32, origin: usize, routes: &[Route]) {
        // The packet itself may leave the network before its clones are made.
        let original = self.stations.queues.jobs[job].clone();
        for (number, route) in routes.iter().enumerate() {
            let place = route.choose(|| self.uniform(origin));
            let copy = self.copy(number, job, &original);
            self.change_class(copy, route.becomes);
            self.arrive(copy, place, route.blocks);
        }
        if routes.len() > 1 {
            self.check_soon_if_too_many();
        }
    }

    /// The packet itself as number 0, otherwise a clone.
    fn copy(&mut self, number: usize, job: u32, original: &Job) -> u32 {
        if number == 0 {
            return job;
        }
        self.balance.cloned += 1;
        self.stations.queues.jobs.add(Job {
            is_clone: true,
            remaining: NOT_STARTED,
            next_in_batch: NONE,
            ..*original
        })
    }

    fn change_class(&mut self, job: u32, becomes: Option<u16>) {
        if let Some(class) = becomes {
            self.stations.queues.jobs[job].class = class;
        }
    }

    /// A uniform number in [0, 1) for the routes from a queue or source.
    fn uniform(&mut self, origin: usize) -> f64 {
        let queues = self.network.queues.len();
        let rng = if origin < queues {
            &mut self.stations.queues[origin].rng
        } else {
            &mut self.sources[origin - queues].route_rng
        };
        rng.unit()
    }

    /// A packet arrives at a queue, perhaps with a reserved place, or at a sink.
    #[inline(always)]
    fn arrive(&mut self, job: u32, place: u32, is_reserved: bool) {
        let queue = place as usize;
        if queue >= self.network.queues.len() {
            if self.trace.is_some() {
                self.trace_packet(job, place, Fate::Served);
            }
            self.leave(job, place);
        } else if !self.stations.arrive(job, queue, is_reserved) {
            self.drop_packet(job, queue);
        }
    }

    #[cold]
    fn drop_packet(&mut self, job: u32, queue: usize) {
        let now = self.stations.now;
        self.balance.lost += 1;
        if self.trace.is_some() {
            let slot = &mut self.stations.queues.jobs[job];
            (slot.arrived, slot.started) = (now, now);
            self.trace_visit(job, queue, Fate::Lost);
            self.trace_packet(job, queue as u32, Fate::Lost);
        }
        self.stations.queues.jobs.remove(job);
    }

    #[inline(never)]
    fn leave(&mut self, job: u32, place: u32) {
        let now = self.stations.now;
        let jobs = &mut self.stations.queues.jobs;
        let slot = &jobs[job];
        let sink = place as usize - self.network.queues.len();
        let totals = &mut self.sinks[sink * self.network.classes + usize::from(slot.class)];
        if slot.is_clone {
            totals.add_clone(now - slot.created);
        } else {
            totals.add(now - slot.created, slot.bytes);
        }
        self.balance.left += 1;
        jobs.remove(job);
    }

    /// A packet leaves if its next queue has room; otherwise it is blocked after service.
    #[inline(never)]
    fn complete_or_block(&mut self, completion: Completion) {
        let network = self.network;
        let queue = completion.queue;
        let from = self.stations.queues.jobs[completion.job].queue_class as usize;
        let uniform = || self.uniform(queue);
        let packet = BlockedPacket::new(completion, &network.routes[from].all, network, uniform);
        if packet.reserve(&mut self.stations.queues) {
            self.depart(packet);
            return;
        }
        let station = network.queues[queue].station as usize;
        self.stations.block(station, queue, packet.server);
        self.blocked.push(packet);
        if network.can_deadlock && self.deadlock.is_none() {
            let stations = 0..network.stations.len();
            let is_held_up = stations.map(|station| self.stations.is_held_up(station));
            let is_held_up = is_held_up.collect();
            let queues = &self.stations.queues;
            self.deadlock = find_deadlock(network, queues, &self.blocked, is_held_up);
        }
    }

    /// A packet leaves its queue; room is reserved for it and its clones.
    fn depart(&mut self, packet: BlockedPacket) {
        let plan = &self.network.queues[packet.queue];
        let frees = plan.frees_at_end || packet.server.is_none();
        self.end_visit(packet.job, packet.queue, frees);
        let original = self.stations.queues.jobs[packet.job].clone();
        for (number, route) in packet.copies.iter().enumerate() {
            let copy = self.copy(number, packet.job, &original);
            self.change_class(copy, route.becomes);
            self.arrive(copy, route.place, route.waits);
        }
        self.check_soon_if_too_many();
    }

    /// Lets blocked packets leave that have room downstream, the longest wait first.
    #[cold]
    #[inline(never)]
    fn release(&mut self) {
        let mut next = 0;
        self.stations.queues.has_freed = false;
        // With too many packets inside, the run ends after this event.
        while next < self.blocked.len() && !self.has_too_many() {
            if !self.blocked[next].reserve(&mut self.stations.queues) {
                next += 1;
                continue;
            }
            let packet = self.blocked.remove(next);
            let station = self.network.queues[packet.queue].station as usize;
            self.stations.unblock(station, packet.queue, packet.server);
            self.depart(packet);
            if std::mem::take(&mut self.stations.queues.has_freed) {
                next = 0;
            }
        }
    }

    fn has_too_many(&self) -> bool {
        self.watchdog.has_too_many(self.stations.queues.jobs.len())
    }

    /// Few events may make many clones. With too many packets inside, the run is checked after this event.
    #[inline(always)]
    fn check_soon_if_too_many(&mut self) -> bool {
        let has_too_many = self.has_too_many();
        if has_too_many {
            self.next_check = self.events;
        }
        has_too_many
    }

    #[cold]
    fn check(&mut self, is_stopped: &impl Fn() -> bool) -> Result<(), ModelError> {
        if is_stopped() {
            return Err(ModelError::Stopped);
        }
        self.refuse_deadlock()?;
        let events = self.events - self.events_at_check;
        self.events_at_check = self.events;
        self.next_check = self.events + self.watchdog.events_per_check();
        let (now, jobs) = (self.stations.now, self.stations.queues.jobs.len());
        self.watchdog
            .check(events, now, jobs)
            .map_err(|exceeded| match exceeded {
                Exceeded::Other(error) => error,
                Exceeded::Jobs => ModelError::TooManyJobs {
                    jobs,
                    jobs_max: self.watchdog.jobs_max,
                    queue: self.queue_with_most(|queue, _| queue.occupancy.now),
                    time_s: seconds(now),
                },
                Exceeded::Standstill(events) => ModelError::Standstill {
                    events,
                    queue: self.queue_with_most(|_, visits| {
                        visits.iter().map(|visits| visits.arrived).sum()
                    }),
                    time_s: seconds(now),
                },
            })
    }

    /// The name of the queue with the largest value.
    fn queue_with_most(&self, value: impl Fn(&QueueState, &[VisitTotals]) -> u64) -> String {
        let queues = &self.stations.queues;
        let visits = queues.visits().chunks(self.network.classes);
        let numbered = queues.iter().zip(visits).enumerate();
        let most = numbered.max_by_key(|(_, (queue, visits))| value(queue, visits));
        most.map_or(String::new(), |(number, _)| {
            self.network.model.queues[number].name.clone()
        })
    }

    fn refuse_deadlock(&self) -> Result<(), ModelError> {
        match &self.deadlock {
            None => Ok(()),
            Some(queues) => Err(ModelError::Deadlocked {
                queues: queues.clone(),
                time_s: seconds(self.stations.now),
            }),
        }
    }

    /// Restarts counting, at the end of the warm-up or of a batch.
    pub fn restart_counting(&mut self) {
        self.stations.restart_counting();
        self.counted_since = self.stations.now;
        self.watchdog.count(self.events - self.events_at_check);
        self.events = 0;
        self.events_at_check = 0;
        self.next_check = self.watchdog.events_per_check();
        self.sinks.fill_with(SinkTotals::default);
        self.balance = Balance {
            inside_before: self.stations.queues.jobs.len() as u64,
            ..Balance::default()
        };
        self.trace = self.trace.as_ref().map(|_| Trace::default());
    }

    /// The counts of the run.
    pub fn counts(&mut self) -> Counts<'_> {
        self.stations.settle_work();
        let queues = &self.stations.queues;
        let now = self.stations.now;
        let totals = queues.iter().map(|queue| QueueTotals {
            occupancy: queue.occupancy.integral(now),
            max: queue.occupancy.max,
            work: queue.work,
        });
        Counts {
            period: now - self.counted_since,
            events: self.events,
            balance: Balance {
                inside: queues.jobs.len() as u64,
                ..self.balance
            },
            visits: queues.visits(),
            queues: totals.collect(),
            stations: self.stations.totals(),
            sinks: &self.sinks,
        }
    }

    /// Takes the trace since counting began.
    pub fn take_trace(&mut self) -> Trace {
        self.trace.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
