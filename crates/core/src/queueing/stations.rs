//! The stations of a network during a run: they dispatch servers, and start, interrupt and end services.

use super::calendar::{Calendar, NEVER};
use super::jobs::{NONE, NOT_STARTED};
use super::level::{Level, Selection};
use super::levels::{LevelPlan, PolicyPlan};
use super::network::Network;
use super::queues::Queues;
use super::scale::{Parts, Scale};
use super::station::{BLOCKED, Server, StationState};
use super::statistics::StationTotals;
use crate::distributions::Rng;

/// A packet whose service has ended.
pub(super) struct Completion {
    pub job: u32,
    pub queue: usize,
    /// None at a shared station.
    pub server: Option<usize>,
}

/// The level that a station serves next.
struct NextLevel {
    level: usize,
    /// Its only queue; `NONE` if its policy selects one.
    queue: u32,
    /// The first servable one of several queues.
    first: usize,
}

/// All stations, their servers and their queues.
pub(super) struct Stations<'n, S: Scale> {
    network: &'n Network,
    /// Time in ps since the start of the run.
    pub now: u64,
    pub calendar: S::Calendar,
    pub queues: Queues<'n, S>,
    servers: S::Few<Server>,
    stations: S::Few<StationState<'n>>,
    levels: S::Few<Level<'n>>,
    // of each level: its only queue, or `NONE`
    single_queues: S::Few<u32>,
    // of each polling level: its station
    polling_stations: Vec<u32>,
}

impl<'n, S: Scale> Stations<'n, S> {
    /// Idle stations with empty queues; `stream` gives random number streams to the queues and levels.
    pub fn new(network: &'n Network, mut stream: impl FnMut() -> Rng) -> Self {
        // The queues draw first: their streams do not depend on the policies.
        let queues = Queues::new(network, &mut stream);
        let (mut servers, mut stations, mut levels) = (Vec::new(), Vec::new(), Vec::new());
        let mut polling_stations = Vec::new();
        for (number, plan) in network.stations.iter().enumerate() {
            stations.push(StationState::new(plan, network));
            let idle = Server::idle(number);
            servers.extend(std::iter::repeat_n(idle, plan.events()));
            let polling = plan.levels.iter().filter_map(LevelPlan::polling);
            polling_stations.extend(polling.map(|_| number as u32));
            levels.extend(
                plan.levels
                    .iter()
                    .map(|level| Level::new(level, &mut stream)),
            );
        }
        let single_queue = |level: &Level| match level.plan.policy {
            PolicyPlan::Single => level.plan.queues[0],
            _ => NONE,
        };
        Self {
            network,
            now: 0,
            calendar: S::Calendar::new(network.events()),
            queues,
            servers: servers.into(),
            stations: stations.into(),
            single_queues: levels.iter().map(single_queue).collect::<Vec<_>>().into(),
            levels: levels.into(),
            polling_stations,
        }
    }

    /// A packet arrives at a queue. Returns whether it is accepted; one with a reserved place always is.
    #[inline(always)]
    pub fn arrive(&mut self, job: u32, queue: usize, is_reserved: bool) -> bool {
        if !self.queues.accept(job, queue, is_reserved, self.now) {
            return false;
        }
        let plan = self.queues[queue].plan;
        let station = &mut self.stations[plan.station as usize];
        if S::special(station.shared.is_some()) {
            self.arrive_at_shared(job, queue);
            return true;
        }
        self.queues[queue].occupancy.add(self.now);
        if self.queues.push(job, queue) {
            station.ready |= 1 << plan.level;
            if !plan.is_single {
                let state = &mut self.queues[queue];
                let level = &mut self.levels[state.level];
                level.nonempty += 1;
                state.tag = level.start_tag(state.tag);
            }
        }
        if station.idle > 0 || station.preempts {
            self.queues.dispatch_list.add(plan.station);
        }
        true
    }

    /// Gives servers to waiting packets until one of them runs out.
    #[inline]
    pub fn dispatch(&mut self, station: usize) {
        loop {
            let state = &self.stations[station];
            if S::special(state.visits_empty) {
                return self.visit_next_queue(station);
            }
            let levels = match state.idle {
                0 => state.ready & self.preempting_levels(state),
                _ => state.ready,
            };
            let Some(next) = self.first_servable_level(station, levels) else {
                self.end_polling_cycles(station);
                return;
            };
            let state = &self.stations[station];
            let has_one_server = !S::special(state.servers != 1);
            let server = match state.idle {
                0 => self.preempt(station, next.level),
                _ if has_one_server => Some(state.first_server),
                _ => self.idle_server(state),
            };
            let Some(server) = server else {
                return;
            };
            let queue = match next.queue {
                NONE => {
                    let level = self.stations[station].first_level + next.level;
                    self.select_queue(level, next.first)
                }
                queue => Some(queue as usize),
            };
            match queue {
                Some(queue) => self.start(server, queue),
                // The level has begun to yield, so another one may be first.
                None => continue,
            }
            // The other packets are blocked or have to wait, unless this start has made room.
            if has_one_server && !self.queues.dispatch_list.has(station) {
                return;
            }
        }
    }

    /// The levels that would preempt a server, if none is idle.
    #[inline]
    fn preempting_levels(&self, state: &StationState) -> u64 {
        if !state.preempts {
            return 0;
        }
        let lowest = if S::special(state.servers != 1) {
            let servers = &self.servers.all()[state.server_range()];
            servers.iter().map(|server| server.level).max().unwrap_or(0)
        } else {
            self.servers[state.first_server].level
        };
        (1 << lowest) - 1
    }

    fn idle_server(&self, state: &StationState) -> Option<usize> {
        let mut servers = state.server_range();
        servers.find(|&server| self.servers[server].job == NONE)
    }

    /// The first of these levels with a servable packet.
    #[inline(always)]
    fn first_servable_level(&self, station: usize, mut levels: u64) -> Option<NextLevel> {
        let state = &self.stations[station];
        let mut yielding = None;
        while levels != 0 {
            let level = levels.trailing_zeros() as usize;
            let bit = levels & levels.wrapping_neg();
            levels ^= bit;
            let queue = self.single_queues[state.first_level + level];
            if queue != NONE {
                let blocks = state.blocking & bit != 0;
                if blocks
                    && self
                        .queues
                        .is_blocked(self.queues[queue as usize].fifo.head)
                {
                    continue;
                }
                let first = 0;
                return Some(NextLevel {
                    level,
                    queue,
                    first,
                });
            }
            let own = &self.levels[state.first_level + level];
            let mut queues = own.plan.queues.iter();
            let first = queues.position(|&queue| self.queues.is_servable(queue as usize));
            let Some(first) = first else {
                continue;
            };
            let next = NextLevel {
                level,
                queue,
                first,
            };
            if !S::special(own.closed_until() > self.now) {
                return Some(next);
            }
            yielding = yielding.or(Some(next));
        }
        // A level that yields is served if no lower priority is.
        let next = yielding?;
        let servers = &self.servers.all()[state.server_range()];
        let is_used = |server: &Server| server.job != NONE && server.level as usize > next.level;
        (!servers.iter().any(is_used)).then_some(next)
    }

    /// The queue of a level that its policy selects; None if the level begins to yield.
    #[inline]
    fn select_queue(&mut self, level: usize, first: usize) -> Option<usize> {
        let selection = self.levels[level].select(&self.queues, self.now, first);
        self.apply(selection, level)
    }

    /// Moves the server of a station that visits all queues, or has it serve the queue at which it is.
    #[cold]
    #[inline(never)]
    fn visit_next_queue(&mut self, station: usize) {
        let state = &self.stations[station];
        let (server, level) = (state.first_server, state.first_level);
        if state.idle == 0 {
            return;
        }
        let selection = self.levels[level].visit(&self.queues, self.now);
        if let Some(queue) = self.apply(selection, level) {
            self.start(server, queue);
        }
    }

    fn apply(&mut self, selection: Selection, level: usize) -> Option<usize> {
        match selection {
            Selection::Queue(queue) => Some(queue),
            Selection::Close(polling) => {
                let event = self.network.polling_events.start + polling.number;
                self.calendar
                    .schedule(event, self.levels[level].closed_until());
                None
            }
            Selection::Wait => None,
        }
    }

    fn end_polling_cycles(&mut self, station: usize) {
        let state = &self.stations[station];
        if S::special(state.has_polling && state.idle == state.servers) {
            let levels = self.network.stations[station].levels.len();
            let levels = &mut self.levels.all_mut()[state.first_level..state.first_level + levels];
            levels.iter_mut().for_each(Level::end_cycle);
        }
    }

    /// Interrupts the service of the lowest priority, if that is below `level`. Returns its server.
    fn preempt(&mut self, station: usize, level: usize) -> Option<usize> {
        let state = &mut self.stations[station];
        let event = if S::special(state.servers != 1) {
            let servers = state.server_range();
            servers.max_by_key(|&server| self.servers[server].level)?
        } else {
            state.first_server
        };
        let server = self.servers[event];
        let end = self.calendar.time(event);
        // A service that ends at this time is complete, though its event has not occurred yet.
        if server.level as usize <= level || end == self.now {
            return None;
        }
        let queue = server.queue as usize;
        let was_empty = self.queues.push_interrupted(server.job, queue);
        self.queues.jobs[server.job].remaining = end - self.now + server.unfinished;
        self.queues[queue].work += u128::from(self.now - server.began);
        let plan = self.queues[queue].plan;
        if was_empty {
            state.ready |= 1 << plan.level;
        }
        if !plan.is_single {
            let own = &mut self.levels[self.queues[queue].level];
            own.interrupted += 1;
            own.nonempty += u32::from(was_empty);
        }
        self.servers[event].job = NONE;
        state.idle += 1;
        self.calendar.schedule(event, NEVER);
        Some(event)
    }

    /// Starts or resumes the service of the first packet of a queue, with its batch.
    #[inline(always)]
    fn start(&mut self, server: usize, queue: usize) {
        let job = self.pop(queue);
        let work = match self.queues.jobs[job].remaining {
            NOT_STARTED => self.start_batch(job, queue),
            _ => self.resume(job, queue),
        };
        let plan = self.queues[queue].plan;
        let quantum = if S::special(work > plan.quantum) {
            plan.quantum
        } else {
            work
        };
        self.stations[plan.station as usize].idle -= 1;
        self.servers[server] = Server {
            station: plan.station,
            job,
            queue: queue as u32,
            level: plan.level,
            began: self.now,
            unfinished: work - quantum,
        };
        let end = self.now.saturating_add(quantum).min(NEVER - 1);
        self.calendar.schedule(server, end);
    }

    /// The remaining work of an interrupted service, or of one whose quantum has ended.
    fn resume(&mut self, job: u32, queue: usize) -> u64 {
        let state = &mut self.queues[queue];
        let plan = state.plan;
        if state.interrupted > 0 {
            state.interrupted -= 1;
            if !plan.is_single {
                self.levels[state.level].interrupted -= 1;
            }
        }
        std::mem::replace(&mut self.queues.jobs[job].remaining, NOT_STARTED)
    }

    /// The work of a packet, of its batch and of switching to its queue.
    #[inline(always)]
    fn start_batch(&mut self, job: u32, queue: usize) -> u64 {
        let plan = self.queues[queue].plan;
        let work = self.queues.start_service(job, queue, self.now);
        let mut work = work.saturating_add(plan.batch_time);
        if S::special(plan.batch_packets > 1) {
            work += self.fill_batch(job, queue, plan.batch_packets);
        }
        if S::special(!plan.is_single) {
            let bytes = self.queues.jobs[job].bytes;
            let state = &mut self.queues[queue];
            work += self.levels[state.level].charge(&mut state.tag, plan.weight, work, bytes);
        }
        work
    }

    /// Adds waiting packets to the batch of a packet, which has at most `packets`. Returns their work.
    fn fill_batch(&mut self, first: u32, queue: usize, packets: u32) -> u64 {
        let (mut last, mut work) = (first, 0);
        for _ in 1..packets {
            let head = self.queues[queue].fifo.head;
            // A packet whose service has started resumes alone.
            if head == NONE || self.queues.jobs[head].remaining != NOT_STARTED {
                break;
            }
            let next = self.pop(queue);
            work += self.queues.start_service(next, queue, self.now);
            self.queues.jobs[last].next_in_batch = next;
            last = next;
        }
        work
    }

    #[inline(always)]
    fn pop(&mut self, queue: usize) -> u32 {
        let job = self.queues.pop(queue);
        let state = &self.queues[queue];
        if state.fifo.is_empty() {
            let plan = state.plan;
            let is_last = plan.is_single || {
                let level = &mut self.levels[state.level];
                level.nonempty -= 1;
                level.nonempty == 0
            };
            if is_last {
                self.stations[plan.station as usize].ready &= !(1 << plan.level);
            }
        }
        job
    }

    /// Handles the event of a server: a service or its quantum ends. The caller has the station dispatch first.
    #[inline(always)]
    pub fn end_service(&mut self, event: usize) -> (u32, Option<Completion>) {
        let server = self.servers[event];
        self.queues.dispatch_list.reserve(server.station);
        let station = &mut self.stations[server.station as usize];
        if S::special(station.shared.is_some()) {
            return (
                server.station,
                self.depart_from_shared(server.station as usize),
            );
        }
        station.idle += 1;
        self.calendar.schedule(event, NEVER);
        self.servers[event].job = NONE;
        let queue = server.queue as usize;
        self.queues[queue].work += u128::from(self.now - server.began);
        if S::special(server.unfinished > 0) {
            self.queues.jobs[server.job].remaining = server.unfinished;
            if self.queues.push(server.job, queue) {
                station.ready |= 1 << server.level;
                self.levels[self.queues[queue].level].nonempty += 1;
            }
            return (server.station, None);
        }
        let completion = Completion {
            job: server.job,
            queue,
            server: Some(event),
        };
        (server.station, Some(completion))
    }

    /// Handles the event of a polling level: it is open again, or its server arrives at the next queue.
    pub fn end_closure(&mut self, event: usize) {
        self.calendar.schedule(event, NEVER);
        let number = event - self.network.polling_events.start;
        let station = self.polling_stations[number];
        self.queues.dispatch_list.add(station);
    }

    /// A packet is blocked after service; it keeps its server, which is idle until here.
    pub fn block(&mut self, station: usize, queue: usize, server: Option<usize>) {
        let state = &mut self.stations[station];
        state.blocked.settle(self.now);
        state.blocked.now += 1;
        if let Some(server) = server {
            state.idle -= 1;
            self.servers[server].job = BLOCKED;
            // No packet preempts it.
            self.servers[server].level = 0;
        }
        self.queues[queue].blocked += 1;
    }

    /// A blocked packet is about to leave its server.
    pub fn unblock(&mut self, station: usize, queue: usize, server: Option<usize>) {
        let state = &mut self.stations[station];
        state.blocked.settle(self.now);
        state.blocked.now -= 1;
        if let Some(server) = server {
            state.idle += 1;
            self.servers[server].job = NONE;
            self.queues.dispatch_list.add(station as u32);
        }
        // Until here it had no share of the station.
        if let Some(shared) = &mut state.shared {
            shared.settle(self.now, &mut self.queues);
        }
        self.queues[queue].blocked -= 1;
    }

    /// Whether a station makes no progress before one of its blocked packets leaves.
    pub fn is_held_up(&self, station: usize) -> bool {
        self.stations[station].is_held_up()
    }

    #[inline(never)]
    fn arrive_at_shared(&mut self, job: u32, queue: usize) {
        let station = self.queues[queue].plan.station as usize;
        let state = &mut self.stations[station];
        if let Some(shared) = &mut state.shared {
            shared.arrive(job, queue, self.now, &mut self.queues);
            let next = shared.next_departure();
            self.calendar.schedule(state.first_server, next);
        }
    }

    #[inline(never)]
    fn depart_from_shared(&mut self, station: usize) -> Option<Completion> {
        let state = &mut self.stations[station];
        let shared = state.shared.as_mut()?;
        let (job, queue) = shared.depart(self.now, &mut self.queues)?;
        let next = shared.next_departure();
        self.calendar.schedule(state.first_server, next);
        let server = None;
        Some(Completion { job, queue, server })
    }

    /// Counts the work of the services in progress up to now.
    pub fn settle_work(&mut self) {
        for server in self.servers.all_mut() {
            if server.job != NONE && server.job != BLOCKED {
                self.queues[server.queue as usize].work += u128::from(self.now - server.began);
                server.began = self.now;
            }
        }
        for station in self.stations.all_mut() {
            station.blocked.settle(self.now);
            if let Some(shared) = &mut station.shared {
                shared.settle(self.now, &mut self.queues);
            }
        }
    }

    pub fn restart_counting(&mut self) {
        self.settle_work();
        self.queues.restart_counting(self.now);
        for station in self.stations.all_mut() {
            station.blocked.total = 0;
            if let Some(shared) = &mut station.shared {
                shared.work = 0;
            }
        }
    }

    /// Totals of every station; call `settle_work` first.
    pub fn totals(&self) -> Vec<StationTotals> {
        let states = self.stations.all().iter();
        let mut totals: Vec<_> = states
            .map(|state| StationTotals {
                work: state.shared.as_ref().map_or(0, |shared| shared.work),
                blocked: state.blocked.total,
            })
            .collect();
        for queue in self.queues.iter() {
            let station = queue.plan.station as usize;
            // The work of a shared station differs from that of its queues by the rounding of their parts.
            if self.stations[station].shared.is_none() {
                totals[station].work += queue.work;
            }
        }
        totals
    }
}
