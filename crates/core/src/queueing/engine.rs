//! The event loop.
//!
//! At equal times clocks ring in the order of their numbers: servers in the order of their stations, then
//! timers of polling policies, then sources in their order; so who leaves at an instant makes room for
//! who comes at it. After each ring the stations whose queues it changed choose whom to serve, in
//! the order in which they were touched.

use super::account::{Balance, Departures, Length, Visits};
use super::amount::Draw;
use super::calendar::{Calendar, NEVER};
use super::error::ModelError;
use super::jobs::{FRESH, Job, Jobs, Line, NONE};
use super::level::Level;
use super::model::StationKind;
use super::network::{Network, PolicyPlan, ServiceTime};
use super::sharing::Sharing;
use super::time::{picoseconds, seconds, whole};
use super::trace::{Fate, Trace};
use crate::laws::Generator;

/// Events between two looks at whether the caller wants to stop.
const EVENTS_UNWATCHED: u64 = 1 << 16;

/// What a server works on.
#[derive(Clone, Copy)]
pub(super) struct Server {
    pub job: u32,
    pub queue: u32,
    pub level: u32,
    /// When this stretch of work began.
    pub began: u64,
    /// Work left after this stretch, of round robin with a quantum.
    pub unfinished: u64,
}

pub(super) struct StationState {
    pub servers: Vec<Server>,
    pub idle: usize,
    pub levels: Vec<Level>,
    /// Levels with somebody in a queue, one bit each.
    pub ready: u64,
    pub sharing: Option<Sharing>,
    pub touched: bool,
    /// Whether one of its levels polls.
    pub polls: bool,
    /// Work done by a sharing station, server x ps.
    pub shared_work: u128,
    pub shared_since: u64,
}

pub(super) struct QueueState {
    pub line: Line,
    /// Packets and bytes that take a place.
    pub held: u64,
    pub held_bytes: u64,
    /// Interrupted packets at the front of the line.
    pub interrupted: u32,
    /// Whether a station upstream found it full.
    pub awaited: bool,
    /// Start time of its next packet in weighted fair queueing.
    pub tag: f64,
    pub length: Length,
    /// Work done, ps.
    pub work: u128,
    pub generator: Generator,
}

struct SourceState {
    gap: Draw,
    size: Draw,
    packets_left: u64,
    gaps: Generator,
    sizes: Generator,
    ways: Generator,
}

/// A network at work.
pub(super) struct Engine<'n, C: Calendar, const TRACED: bool> {
    pub(super) network: &'n Network,
    calendar: C,
    pub(super) now: u64,
    /// When counting began.
    pub(super) counted_since: u64,
    pub(super) events: u64,
    pub(super) jobs: Jobs,
    pub(super) stations: Vec<StationState>,
    pub(super) queues: Vec<QueueState>,
    sources: Vec<SourceState>,
    services: Vec<ServiceTime>,
    // which station and server a clock belongs to
    servers_of_clocks: Vec<(u32, u32)>,
    touched: Vec<u32>,
    packets: u64,
    jobs_max: usize,
    // of [queue][class] and [sink][class]
    pub(super) visits: Vec<Visits>,
    pub(super) departures: Vec<Departures>,
    pub(super) balance: Balance,
    pub(super) trace: Trace,
}

impl<'n, C: Calendar, const TRACED: bool> Engine<'n, C, TRACED> {
    /// The network, empty; the first packets of all sources are on their way.
    pub fn new(network: &'n Network, seed: u64, replication: u64, jobs_max: usize) -> Self {
        let mut streams = (0..).map(|part: u64| Generator::new(seed, replication << 32 | part));
        let mut stream = || streams.next().expect("there are 2^64 streams");
        let stations = network.stations.iter().map(|plan| {
            let is_level = matches!(
                plan.kind,
                StationKind::NonPreemptive | StationKind::PreemptiveResume
            );
            let idle = Server {
                job: NONE,
                queue: 0,
                level: 0,
                began: 0,
                unfinished: 0,
            };
            StationState {
                servers: vec![idle; if is_level { plan.servers } else { 0 }],
                idle: plan.servers,
                levels: plan.levels.iter().map(|_| Level::new()).collect(),
                ready: 0,
                sharing: match plan.kind {
                    StationKind::ProcessorSharing => Some(Sharing::new(Some(plan.servers))),
                    StationKind::Delay => Some(Sharing::new(None)),
                    _ => None,
                },
                touched: false,
                polls: plan
                    .levels
                    .iter()
                    .any(|level| matches!(level.policy, PolicyPlan::Polling { .. })),
                shared_work: 0,
                shared_since: 0,
            }
        });
        let stations: Vec<_> = stations.collect();
        let sources = network.sources.iter().map(|plan| {
            let mut state = SourceState {
                gap: plan.gap.clone(),
                size: plan.size.clone(),
                packets_left: plan.packets,
                gaps: stream(),
                sizes: stream(),
                ways: stream(),
            };
            state.gap.start(&mut state.gaps);
            state
        });
        let sources: Vec<_> = sources.collect();
        let queues = network.queues.iter().map(|_| QueueState {
            line: Line::EMPTY,
            held: 0,
            held_bytes: 0,
            interrupted: 0,
            awaited: false,
            tag: 0.0,
            length: Length::default(),
            work: 0,
            generator: stream(),
        });
        let queues = queues.collect();
        let mut servers_of_clocks = Vec::new();
        for (station, plan) in network.stations.iter().enumerate() {
            let servers = stations[station].servers.len().max(1);
            debug_assert_eq!(plan.first_clock, servers_of_clocks.len());
            servers_of_clocks.extend((0..servers).map(|server| (station as u32, server as u32)));
        }
        for (station, plan) in network.stations.iter().enumerate() {
            for level in &plan.levels {
                if let PolicyPlan::Polling { .. } = level.policy {
                    servers_of_clocks.push((station as u32, 0));
                }
            }
        }
        let mut engine = Self {
            network,
            calendar: C::new(network.clocks),
            now: 0,
            counted_since: 0,
            events: 0,
            jobs: Jobs::default(),
            stations,
            queues,
            sources,
            services: network.services.clone(),
            servers_of_clocks,
            touched: Vec::new(),
            packets: 0,
            jobs_max,
            visits: vec![Visits::default(); network.queues.len() * network.classes],
            departures: vec![Departures::new(); network.model.sinks.len() * network.classes],
            balance: Balance::default(),
            trace: Trace::default(),
        };
        for source in 0..engine.sources.len() {
            engine.plan_arrival(source);
        }
        engine
    }

    /// Runs to a time, or until nothing happens any more.
    pub fn run(&mut self, until: u64, is_stopped: impl Fn() -> bool) -> Result<(), ModelError> {
        loop {
            let (clock, time) = self.calendar.next();
            if time == NEVER || time > until {
                break;
            }
            self.now = time;
            self.events += 1;
            self.ring(clock);
            if self.events % EVENTS_UNWATCHED == 0 {
                self.watch(&is_stopped)?;
            }
        }
        if until != NEVER {
            self.now = until;
        }
        Ok(())
    }

    #[inline]
    fn ring(&mut self, clock: usize) {
        if clock < self.network.timers.start {
            let (station, server) = self.servers_of_clocks[clock];
            self.finish(station as usize, server as usize, clock);
        } else if clock < self.network.timers.end {
            self.calendar.set(clock, NEVER);
            self.touch(self.servers_of_clocks[clock].0);
        } else {
            self.arrive(clock - self.network.timers.end);
        }
        // Usually one station, whose choice touches no other.
        let mut next = 0;
        while next < self.touched.len() {
            let station = self.touched[next] as usize;
            next += 1;
            self.stations[station].touched = false;
            self.choose(station);
        }
        self.touched.clear();
    }

    #[cold]
    fn watch(&self, is_stopped: &impl Fn() -> bool) -> Result<(), ModelError> {
        if is_stopped() {
            return Err(ModelError::Stopped);
        }
        // A saturated sum is no time any more.
        if self.now > u64::MAX / 2 {
            return Err(ModelError::EndOfTime);
        }
        if self.jobs.inside() > self.jobs_max {
            let lengths = self.queues.iter().map(|queue| queue.length.now);
            let longest = lengths.enumerate().max_by_key(|&(_, length)| length);
            return Err(ModelError::TooManyJobs {
                jobs: self.jobs.inside(),
                queue: longest.map_or(String::new(), |(queue, _)| {
                    self.network.model.queues[queue].name.clone()
                }),
                time_s: seconds(self.now),
            });
        }
        Ok(())
    }

    /// Forgets what was counted so far: the warm-up is over.
    pub fn restart_counting(&mut self) {
        self.settle_work();
        self.counted_since = self.now;
        self.events = 0;
        for queue in &mut self.queues {
            queue.length.restart(self.now);
            queue.work = 0;
        }
        for station in &mut self.stations {
            station.shared_work = 0;
        }
        self.visits.fill(Visits::default());
        self.departures.fill_with(Departures::new);
        self.balance = Balance {
            inside_before: self.jobs.inside() as u64,
            ..Balance::default()
        };
        self.trace = Trace::default();
    }

    /// Books the work that is being done up to now.
    pub fn settle_work(&mut self) {
        for station in &mut self.stations {
            for server in station
                .servers
                .iter_mut()
                .filter(|server| server.job != NONE)
            {
                self.queues[server.queue as usize].work += u128::from(self.now - server.began);
                server.began = self.now;
            }
            if let Some(sharing) = &station.sharing {
                station.shared_work +=
                    u128::from(self.now - station.shared_since) * sharing.working() as u128;
                station.shared_since = self.now;
            }
        }
    }

    // --- sources -----------------------------------------------------------------------------------

    fn plan_arrival(&mut self, source: usize) {
        let state = &mut self.sources[source];
        let gap = if state.packets_left == 0 {
            None
        } else {
            state.gap.next(0, &mut state.gaps)
        };
        let time = gap.map_or(NEVER, |gap_ns| self.now.saturating_add(picoseconds(gap_ns)));
        self.calendar.set(self.network.timers.end + source, time);
    }

    fn arrive(&mut self, source: usize) {
        let class = self.network.sources[source].class;
        let state = &mut self.sources[source];
        state.packets_left -= 1;
        let bytes = match &state.size {
            Draw::Constant(bytes) => *bytes as u32,
            _ => state
                .size
                .next(0, &mut state.sizes)
                .map_or(0, |bytes| whole(bytes) as u32),
        };
        let packet = self.packets;
        self.packets += 1;
        self.balance.entered += 1;
        let job = self.jobs.add(Job {
            born: self.now,
            arrived: self.now,
            started: self.now,
            left: FRESH,
            packet,
            bytes,
            next: NONE,
            together: NONE,
            class,
            clone: false,
        });
        self.send_on(job, self.network.queues.len() + source);
        self.plan_arrival(source);
    }

    // --- ways --------------------------------------------------------------------------------------

    /// Sends a job and its clones from a queue or source to where they go next.
    #[inline]
    fn send_on(&mut self, job: u32, origin: usize) {
        let network = self.network;
        let class = usize::from(self.jobs[job].class);
        let (first, clones) = match network.ways_of(origin, class).split_first() {
            Some(ways) => ways,
            None => unreachable!("every class that comes to a queue has a way on: check::reached"),
        };
        // Clones are made before the packet itself moves on and may leave; they follow it.
        if clones.is_empty() {
            self.send(job, origin, first);
            return;
        }
        let copied = self.jobs[job].clone();
        self.send(job, origin, first);
        for way in clones {
            self.balance.cloned += 1;
            let clone = self.jobs.add(Job {
                clone: true,
                left: FRESH,
                together: NONE,
                ..copied.clone()
            });
            self.send(clone, origin, way);
        }
    }

    #[inline]
    fn send(&mut self, job: u32, origin: usize, way: &super::network::Way) {
        let place = if way.choices.is_empty() {
            way.place
        } else {
            self.choose_place(origin, &way.choices)
        };
        if let Some(class) = way.becomes {
            self.jobs[job].class = class;
        }
        if (place as usize) < self.queues.len() {
            self.enter(job, place as usize, way.blocks);
        } else {
            self.leave(job, place);
        }
    }

    fn choose_place(&mut self, origin: usize, choices: &[(f64, u32)]) -> u32 {
        let queues = self.queues.len();
        let generator = if origin < queues {
            &mut self.queues[origin].generator
        } else {
            &mut self.sources[origin - queues].ways
        };
        let unit = generator.unit();
        let choice = choices.iter().find(|choice| unit < choice.0);
        // Probabilities may sum to a little less than 1.
        choice.unwrap_or(&choices[choices.len() - 1]).1
    }

    /// A job comes to a queue; with a reservation, its place there is its own already.
    fn enter(&mut self, job: u32, queue: usize, reserved: bool) {
        let (class, bytes) = (
            usize::from(self.jobs[job].class),
            u64::from(self.jobs[job].bytes),
        );
        let plan = &self.network.queues[queue];
        let at = queue * self.network.classes + class;
        self.visits[at].arrived += 1;
        if !reserved {
            let state = &mut self.queues[queue];
            if state.held >= plan.capacity_packets
                || state.held_bytes.saturating_add(bytes) > plan.capacity_bytes
            {
                self.lose(job, queue, at);
                return;
            }
            state.held += 1;
            state.held_bytes += bytes;
        }
        let state = &mut self.queues[queue];
        state.length.add(self.now);
        let slot = &mut self.jobs[job];
        slot.arrived = self.now;
        slot.started = NEVER;
        slot.left = FRESH;
        let station = plan.station as usize;
        if self.stations[station].sharing.is_some() {
            let work = self.services[at].draw(bytes as u32, &mut state.generator);
            self.jobs[job].started = self.now;
            // The job remembers its queue: a station may serve several.
            self.jobs[job].next = queue as u32;
            self.share(station, |sharing, now| sharing.add(job, work, now));
            return;
        }
        if state.line.is_empty() {
            let level = &mut self.stations[station].levels[plan.level as usize];
            level.catch_up(state);
            level.nonempty += 1;
            self.stations[station].ready |= bit(plan.level);
        }
        state.line.push(job, &mut self.jobs);
        self.touch(plan.station);
    }

    fn lose(&mut self, job: u32, queue: usize, at: usize) {
        self.visits[at].lost += 1;
        self.visits[at].lost_bytes += u64::from(self.jobs[job].bytes);
        self.balance.lost += 1;
        if TRACED {
            let slot = &mut self.jobs[job];
            (slot.arrived, slot.started) = (self.now, self.now);
            self.record_visit(job, queue, Fate::Lost);
            self.record_packet(job, queue as u32, Fate::Lost);
        }
        self.jobs.remove(job);
    }

    fn leave(&mut self, job: u32, place: u32) {
        let Job {
            born,
            bytes,
            class,
            clone,
            ..
        } = self.jobs[job];
        let sink = place as usize - self.queues.len();
        let departures = &mut self.departures[sink * self.network.classes + usize::from(class)];
        if clone {
            departures.clones += 1;
        } else {
            departures.add(self.now - born, bytes);
        }
        self.balance.left += 1;
        if TRACED {
            self.record_packet(job, place, Fate::Served);
        }
        self.jobs.remove(job);
    }

    // --- stations ----------------------------------------------------------------------------------

    #[inline]
    fn touch(&mut self, station: u32) {
        let state = &mut self.stations[station as usize];
        if !state.touched {
            state.touched = true;
            self.touched.push(station);
        }
    }

    /// Changes who shares a station, and sets its clock anew.
    fn share<R>(&mut self, station: usize, change: impl FnOnce(&mut Sharing, u64) -> R) -> R {
        let state = &mut self.stations[station];
        let sharing = state
            .sharing
            .as_mut()
            .expect("only stations that are shared come here");
        state.shared_work += u128::from(self.now - state.shared_since) * sharing.working() as u128;
        state.shared_since = self.now;
        let result = change(sharing, self.now);
        let next = sharing.next().unwrap_or(NEVER);
        self.calendar
            .set(self.network.stations[station].first_clock, next);
        result
    }

    /// Gives servers work for as long as there is a server for it and work for the server.
    #[inline]
    fn choose(&mut self, station: usize) {
        let plan = &self.network.stations[station];
        loop {
            let state = &self.stations[station];
            if state.idle == 0 && !can_interrupt(plan.kind, state) {
                return;
            }
            let Some(level) = self.first_ready(station) else {
                let state = &mut self.stations[station];
                if state.polls && state.idle == plan.servers {
                    state.levels.iter_mut().for_each(Level::end_cycle);
                }
                return;
            };
            let state = &self.stations[station];
            let server = if state.idle > 0 {
                state.servers.iter().position(|server| server.job == NONE)
            } else {
                self.interrupt(station, level)
            };
            let Some(server) = server else {
                return;
            };
            match self.select(station, level) {
                Some(queue) => self.start(station, server, level, queue),
                // A cycle of polling has just ended: another level may be the first now.
                None => continue,
            }
        }
    }

    /// The first level with a packet that can be served now.
    #[inline]
    fn first_ready(&mut self, station: usize) -> Option<usize> {
        let mut ready = self.stations[station].ready;
        let mut closed = None;
        while ready != 0 {
            let level = ready.trailing_zeros() as usize;
            ready &= ready - 1;
            if !self.can_serve(station, level) {
                continue;
            }
            if self.stations[station].levels[level].closed_until > self.now {
                // Whoever gave way polls on when there is nobody to give way to.
                closed = closed.or(Some(level));
                continue;
            }
            return Some(level);
        }
        let level = closed?;
        let state = &self.stations[station];
        let is_used = state
            .servers
            .iter()
            .any(|server| server.job != NONE && server.level as usize > level);
        (!is_used).then_some(level)
    }

    #[inline]
    fn can_serve(&mut self, station: usize, level: usize) -> bool {
        let network = self.network;
        let queues = &network.stations[station].levels[level].queues;
        queues.iter().any(|&queue| self.is_servable(queue as usize))
    }

    /// Whether a queue has somebody at its front who is not blocked.
    #[inline]
    pub(super) fn is_servable(&mut self, queue: usize) -> bool {
        let head = self.queues[queue].line.head;
        head != NONE && (!self.network.queues[queue].blocks || !self.is_blocked(queue, head))
    }

    fn is_blocked(&mut self, queue: usize, head: u32) -> bool {
        let network = self.network;
        let Job {
            left, class, bytes, ..
        } = self.jobs[head];
        // Who has begun has his place further on already.
        if left != FRESH {
            return false;
        }
        let mut is_blocked = false;
        for way in network
            .ways_of(queue, usize::from(class))
            .iter()
            .filter(|way| way.blocks)
        {
            let (plan, next) = (
                &network.queues[way.place as usize],
                &mut self.queues[way.place as usize],
            );
            if next.held >= plan.capacity_packets
                || next.held_bytes + u64::from(bytes) > plan.capacity_bytes
            {
                next.awaited = true;
                is_blocked = true;
            }
        }
        is_blocked
    }

    /// Takes a server away from the work of the largest priority number above `level`.
    fn interrupt(&mut self, station: usize, level: usize) -> Option<usize> {
        let servers = &self.stations[station].servers;
        let (number, server) = servers
            .iter()
            .copied()
            .enumerate()
            .max_by_key(|(_, server)| server.level)?;
        let clock = self.network.stations[station].first_clock + number;
        let ends = self.calendar.time(clock);
        // What ends at this very instant is finished already, only its clock has not rung yet.
        if server.level as usize <= level || ends == self.now {
            return None;
        }
        let queue = &mut self.queues[server.queue as usize];
        queue.work += u128::from(self.now - server.began);
        self.jobs[server.job].left = ends - self.now + server.unfinished;
        let was_empty = queue.line.is_empty();
        queue.line.push_front(server.job, &mut self.jobs);
        queue.interrupted += 1;
        let state = &mut self.stations[station];
        let own = &mut state.levels[server.level as usize];
        own.interrupted += 1;
        if was_empty {
            own.nonempty += 1;
            state.ready |= bit(server.level);
        }
        state.servers[number].job = NONE;
        state.idle += 1;
        self.calendar.set(clock, NEVER);
        Some(number)
    }

    /// Starts the service of whoever is at the front of a queue.
    fn start(&mut self, station: usize, server: usize, level: usize, queue: usize) {
        let network = self.network;
        let (plan, policy) = (
            &network.queues[queue],
            network.stations[station].levels[level].policy,
        );
        let job = self.pop(station, level, queue);
        let mut work = self.jobs[job].left;
        if work == FRESH {
            work = self.begin(job, queue, plan.batch_cost);
            if plan.batch_packets > 1 {
                let mut last = job;
                for _ in 1..plan.batch_packets {
                    // Who has begun already, in a quantum before, goes on by himself.
                    let head = self.queues[queue].line.head;
                    if head == NONE || self.jobs[head].left != FRESH {
                        break;
                    }
                    let next = self.pop(station, level, queue);
                    work += self.begin(next, queue, 0);
                    self.jobs[last].together = next;
                    last = next;
                }
            }
            let bytes = self.jobs[job].bytes;
            work += self.stations[station].levels[level].charge(
                policy,
                &mut self.queues[queue],
                plan.weight,
                work,
                bytes,
            );
        } else if self.queues[queue].interrupted > 0 {
            self.queues[queue].interrupted -= 1;
            self.stations[station].levels[level].interrupted -= 1;
        }
        let stretch = match policy {
            PolicyPlan::RoundRobin { quantum } => work.min(quantum),
            _ => work,
        };
        let state = &mut self.stations[station];
        state.idle -= 1;
        state.servers[server] = Server {
            job,
            queue: queue as u32,
            level: level as u32,
            began: self.now,
            unfinished: work - stretch,
        };
        let clock = network.stations[station].first_clock + server;
        self.calendar
            .set(clock, self.now.saturating_add(stretch).min(NEVER - 1));
    }

    #[inline]
    fn pop(&mut self, station: usize, level: usize, queue: usize) -> u32 {
        let state = &mut self.queues[queue];
        let job = state.line.pop(&self.jobs);
        if state.line.is_empty() {
            let station = &mut self.stations[station];
            station.levels[level].nonempty -= 1;
            if station.levels[level].nonempty == 0 {
                station.ready &= !bit(level as u32);
            }
        }
        job
    }

    /// A packet's service begins: its work is drawn, its place further on reserved.
    #[inline]
    fn begin(&mut self, job: u32, queue: usize, cost: u64) -> u64 {
        let network = self.network;
        let plan = &network.queues[queue];
        let slot = &mut self.jobs[job];
        slot.started = self.now;
        slot.together = NONE;
        let (class, bytes) = (usize::from(slot.class), slot.bytes);
        let at = queue * network.classes + class;
        let work = self.services[at].draw(bytes, &mut self.queues[queue].generator);
        if plan.blocks {
            for way in network
                .ways_of(queue, class)
                .iter()
                .filter(|way| way.blocks)
            {
                let next = &mut self.queues[way.place as usize];
                next.held += 1;
                next.held_bytes += u64::from(bytes);
            }
        }
        if !plan.frees_at_end {
            self.free(queue, bytes);
        }
        work.saturating_add(cost)
    }

    /// A place in a queue is free again; whoever waited for one looks again.
    #[inline]
    fn free(&mut self, queue: usize, bytes: u32) {
        let state = &mut self.queues[queue];
        state.held -= 1;
        state.held_bytes -= u64::from(bytes);
        if std::mem::take(&mut state.awaited) {
            let network = self.network;
            for &station in &network.queues[queue].upstream {
                self.touch(station);
            }
        }
    }

    /// A server's work ends, or its quantum does.
    fn finish(&mut self, station: usize, number: usize, clock: usize) {
        self.touch(station as u32);
        if self.stations[station].sharing.is_some() {
            if let Some(job) = self.share(station, Sharing::remove) {
                let queue = self.jobs[job].next as usize;
                self.served(job, queue, true);
            }
            return;
        }
        self.calendar.set(clock, NEVER);
        let state = &mut self.stations[station];
        let server = state.servers[number];
        state.servers[number].job = NONE;
        state.idle += 1;
        let queue = server.queue as usize;
        self.queues[queue].work += u128::from(self.now - server.began);
        if server.unfinished > 0 {
            self.jobs[server.job].left = server.unfinished;
            let line = &mut self.queues[queue].line;
            if line.is_empty() {
                state.levels[server.level as usize].nonempty += 1;
                state.ready |= bit(server.level);
            }
            line.push(server.job, &mut self.jobs);
            return;
        }
        let frees = self.network.queues[queue].frees_at_end;
        let mut job = server.job;
        while job != NONE {
            let next = self.jobs[job].together;
            self.served(job, queue, frees);
            job = next;
        }
    }

    #[inline]
    fn served(&mut self, job: u32, queue: usize, frees: bool) {
        let Job {
            arrived,
            started,
            class,
            bytes,
            ..
        } = self.jobs[job];
        let visits = &mut self.visits[queue * self.network.classes + usize::from(class)];
        visits.served += 1;
        visits.waits += u128::from(started - arrived);
        visits.sojourns += u128::from(self.now - arrived);
        self.queues[queue].length.remove(self.now);
        if frees {
            self.free(queue, bytes);
        }
        if TRACED {
            self.record_visit(job, queue, Fate::Served);
        }
        self.send_on(job, queue);
    }

    /// Sets the clock that wakes a polling level up again.
    pub(super) fn set_timer(&mut self, timer: usize, time: u64) {
        self.calendar.set(timer, time);
    }

    // --- traces ------------------------------------------------------------------------------------

    fn record_visit(&mut self, job: u32, queue: usize, fate: Fate) {
        let (slot, table) = (&self.jobs[job], &mut self.trace.visits);
        table.packet.push(slot.packet);
        table.clone.push(slot.clone);
        table.class.push(slot.class);
        table.queue.push(queue as u32);
        table.arrived.push(slot.arrived);
        table.started.push(slot.started);
        table.left.push(self.now);
        table.fate.push(fate);
    }

    fn record_packet(&mut self, job: u32, place: u32, fate: Fate) {
        let (slot, table) = (&self.jobs[job], &mut self.trace.packets);
        table.packet.push(slot.packet);
        table.clone.push(slot.clone);
        table.class.push(slot.class);
        table.bytes.push(slot.bytes);
        table.born.push(slot.born);
        table.left.push(self.now);
        table.place.push(place);
        table.fate.push(fate);
    }
}

/// The bit of a level among those that are ready.
#[inline]
fn bit(level: u32) -> u64 {
    1 << level
}

/// Whether somebody waits whose priority number is smaller than that of somebody in service.
#[inline]
fn can_interrupt(kind: StationKind, state: &StationState) -> bool {
    let largest = state.servers.iter().map(|server| server.level).max();
    let above = largest.map_or(0, |level| bit(level) - 1);
    kind == StationKind::PreemptiveResume && state.ready & above != 0
}
