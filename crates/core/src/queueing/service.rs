//! How stations choose whom to serve, and what happens when a service starts, is interrupted and ends.

use super::calendar::{Calendar, NEVER};
use super::engine::{Engine, StationState, bit};
use super::jobs::{FRESH, NONE};
use super::level::Level;
use super::sharing::Sharing;
use super::trace::Fate;

impl<C: Calendar, const TRACED: bool> Engine<'_, C, TRACED> {
    /// Has a station choose at the end of this event.
    #[inline]
    pub(super) fn touch(&mut self, station: u32) {
        self.stations[station as usize].touch(station, &mut self.touched);
    }

    /// Changes who shares a station, and sets its clock anew.
    pub(super) fn share<R>(
        &mut self,
        station: usize,
        change: impl FnOnce(&mut Sharing, u64) -> R,
    ) -> R {
        let state = &mut self.stations[station];
        let sharing = state
            .sharing
            .as_mut()
            .expect("only stations that are shared come here");
        state.shared_work += u128::from(self.now - state.shared_since) * sharing.working() as u128;
        state.shared_since = self.now;
        let result = change(sharing, self.now);
        let next = sharing.next().unwrap_or(NEVER);
        self.calendar.set(state.first_server, next);
        result
    }

    /// Gives servers work for as long as there is a server for it and work for the server.
    #[inline]
    pub(super) fn choose(&mut self, station: usize) {
        loop {
            let state = &self.stations[station];
            if state.idle == 0 && !self.can_interrupt(state) {
                return;
            }
            let Some((level, servable)) = self.first_ready(station) else {
                let state = &self.stations[station];
                if state.polls && state.idle == state.servers {
                    let plan = &self.network.stations[station];
                    let levels = state.first_level..state.first_level + plan.levels.len();
                    self.levels[levels].iter_mut().for_each(Level::end_cycle);
                }
                return;
            };
            let state = &self.stations[station];
            let server = match (state.idle, state.servers) {
                (0, _) => self.interrupt(station, level),
                (_, 1) => Some(state.first_server),
                _ => self.idle_server(state),
            };
            let Some(server) = server else {
                return;
            };
            let state = &self.stations[station];
            let is_only = state.servers == 1;
            match self.select(state.first_level + level, servable) {
                Some(queue) => self.start(server, queue),
                // A cycle of polling has just ended: another level may be the first now.
                None => continue,
            }
            // What its only server does not serve now was blocked, unless that start has just made room.
            if is_only && !self.stations[station].touched {
                return;
            }
        }
    }

    /// Whether somebody waits whose priority number is smaller than that of somebody in service, where all
    /// servers are busy.
    #[inline]
    fn can_interrupt(&self, state: &StationState) -> bool {
        if !state.preempts || state.ready == 0 {
            return false;
        }
        let servers = &self.servers[state.first_server..state.first_server + state.servers];
        let largest = servers.iter().map(|server| server.level).max();
        state.ready & largest.map_or(0, |level| bit(level) - 1) != 0
    }

    fn idle_server(&self, state: &StationState) -> Option<usize> {
        let servers = &self.servers[state.first_server..state.first_server + state.servers];
        let idle = servers.iter().position(|server| server.job == NONE);
        idle.map(|number| state.first_server + number)
    }

    /// The first level with a packet that can be served now, among those of the station, and the number of
    /// the first of its queues that can be served.
    #[inline(always)]
    fn first_ready(&mut self, station: usize) -> Option<(usize, usize)> {
        let state = &self.stations[station];
        let (mut ready, first_level) = (state.ready, state.first_level);
        let mut closed = None;
        while ready != 0 {
            let level = ready.trailing_zeros() as usize;
            ready &= ready - 1;
            let Some(servable) = self.servable(first_level + level) else {
                continue;
            };
            if self.levels[first_level + level].closed_until > self.now {
                // Whoever gave way polls on when there is nobody to give way to.
                closed = closed.or(Some((level, servable)));
                continue;
            }
            return Some((level, servable));
        }
        let (level, servable) = closed?;
        let state = &self.stations[station];
        let servers = &self.servers[state.first_server..state.first_server + state.servers];
        let is_used = servers
            .iter()
            .any(|server| server.job != NONE && server.level as usize > level);
        (!is_used).then_some((level, servable))
    }

    /// The number of the first queue of a level that can be served; somebody is in one of them.
    #[inline]
    fn servable(&mut self, level: usize) -> Option<usize> {
        let state = &self.levels[level];
        if state.only != NONE {
            let queue = state.only as usize;
            let can = !state.only_blocks || !self.is_blocked(self.queues[queue].line.head);
            return can.then_some(0);
        }
        let mut queues = state.plan.queues.iter();
        queues.position(|&queue| self.is_servable(queue as usize))
    }

    /// Whether a queue has somebody at its front who is not blocked.
    #[inline]
    pub(super) fn is_servable(&mut self, queue: usize) -> bool {
        let state = &self.queues[queue];
        let head = state.line.head;
        head != NONE && (!state.plan.blocks || !self.is_blocked(head))
    }

    fn is_blocked(&mut self, head: u32) -> bool {
        let job = &self.jobs[head];
        // Who has begun has his place further on already.
        if job.left != FRESH {
            return false;
        }
        let network = self.network;
        let ways = network.ways_at(job.at as usize);
        let mut is_blocked = false;
        for way in ways.iter().filter(|way| way.blocks) {
            let next = &mut self.queues[way.place as usize];
            if !next.has_room(job.bytes) {
                next.awaited = true;
                is_blocked = true;
            }
        }
        is_blocked
    }

    /// Takes a server away from the work of the largest priority number above `level`.
    fn interrupt(&mut self, station: usize, level: usize) -> Option<usize> {
        let state = &mut self.stations[station];
        let servers = &self.servers[state.first_server..state.first_server + state.servers];
        let (number, server) = servers
            .iter()
            .copied()
            .enumerate()
            .max_by_key(|(_, server)| server.level)?;
        let clock = state.first_server + number;
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
        if was_empty {
            state.ready |= queue.plan.bit;
        }
        if !queue.plan.is_alone {
            let own = &mut self.levels[queue.level];
            own.interrupted += 1;
            own.nonempty += u32::from(was_empty);
        }
        self.servers[clock].job = NONE;
        state.idle += 1;
        self.calendar.set(clock, NEVER);
        Some(clock)
    }

    /// Starts the service of whoever is at the front of a queue.
    #[inline(always)]
    fn start(&mut self, server: usize, queue: usize) {
        let plan = self.queues[queue].plan;
        let job = self.pop(queue);
        let mut work = self.jobs[job].left;
        if work == FRESH {
            work = self.begin(job, queue).saturating_add(plan.batch_cost);
            if plan.batch_packets > 1 {
                work += self.begin_others(job, queue, plan.batch_packets);
            }
            if !plan.is_alone {
                let state = &mut self.queues[queue];
                work += self.levels[state.level].charge(state, work, self.jobs[job].bytes);
            }
        } else {
            let state = &mut self.queues[queue];
            if state.interrupted > 0 {
                state.interrupted -= 1;
                if !plan.is_alone {
                    self.levels[state.level].interrupted -= 1;
                }
            }
        }
        let stretch = work.min(plan.quantum);
        self.stations[plan.station as usize].idle -= 1;
        let own = &mut self.servers[server];
        own.job = job;
        own.queue = queue as u32;
        own.level = plan.level;
        own.began = self.now;
        own.unfinished = work - stretch;
        let ends = self.now.saturating_add(stretch).min(NEVER - 1);
        self.calendar.set(server, ends);
    }

    /// Takes more packets into a batch; returns their work.
    fn begin_others(&mut self, first: u32, queue: usize, most: u32) -> u64 {
        let (mut last, mut work) = (first, 0);
        for _ in 1..most {
            // Who has begun already, in a quantum before, goes on by himself.
            let head = self.queues[queue].line.head;
            if head == NONE || self.jobs[head].left != FRESH {
                break;
            }
            let next = self.pop(queue);
            work += self.begin(next, queue);
            self.jobs[last].together = next;
            last = next;
        }
        work
    }

    /// Takes out who is at the front of a queue.
    #[inline(always)]
    fn pop(&mut self, queue: usize) -> u32 {
        let state = &mut self.queues[queue];
        let job = state.line.pop(&self.jobs);
        if state.line.is_empty() {
            let plan = state.plan;
            let is_last = plan.is_alone || {
                let level = &mut self.levels[state.level];
                level.nonempty -= 1;
                level.nonempty == 0
            };
            if is_last {
                self.stations[plan.station as usize].ready &= !plan.bit;
            }
        }
        job
    }

    /// A packet's service begins: its work is drawn, its place further on reserved.
    #[inline(always)]
    fn begin(&mut self, job: u32, queue: usize) -> u64 {
        let slot = &mut self.jobs[job];
        slot.started = self.now;
        slot.together = NONE;
        let (at, bytes) = (slot.at as usize, slot.bytes);
        let state = &mut self.queues[queue];
        let plan = state.plan;
        let work = self.services[at].draw(bytes, &mut state.generator);
        if plan.blocks {
            let network = self.network;
            for way in network.ways_at(at).iter().filter(|way| way.blocks) {
                self.queues[way.place as usize].hold(bytes);
            }
        }
        if !plan.frees_at_end {
            self.free(queue, bytes);
        }
        work
    }

    /// A place in a queue is free again; whoever waited for one looks again.
    #[inline]
    fn free(&mut self, queue: usize, bytes: u32) {
        let state = &mut self.queues[queue];
        state.held -= 1;
        state.held_bytes -= u64::from(bytes);
        if std::mem::take(&mut state.awaited) {
            for &station in &state.plan.upstream {
                self.touch(station);
            }
        }
    }

    /// A server's work ends, or its quantum does.
    #[inline(always)]
    pub(super) fn finish(&mut self, clock: usize) {
        let server = self.servers[clock];
        let station = &mut self.stations[server.station as usize];
        station.touch(server.station, &mut self.touched);
        if station.sharing.is_some() {
            if let Some(job) = self.share(server.station as usize, Sharing::remove) {
                let queue = self.jobs[job].next as usize;
                self.served(job, queue, true);
            }
            return;
        }
        station.idle += 1;
        self.calendar.set(clock, NEVER);
        self.servers[clock].job = NONE;
        let queue = server.queue as usize;
        let state = &mut self.queues[queue];
        state.work += u128::from(self.now - server.began);
        if server.unfinished > 0 {
            self.jobs[server.job].left = server.unfinished;
            if state.line.is_empty() {
                self.levels[state.level].nonempty += 1;
                station.ready |= state.plan.bit;
            }
            state.line.push(server.job, &mut self.jobs);
            return;
        }
        let plan = state.plan;
        if plan.batch_packets == 1 {
            self.served(server.job, queue, plan.frees_at_end);
            return;
        }
        let mut job = server.job;
        while job != NONE {
            let next = self.jobs[job].together;
            self.served(job, queue, plan.frees_at_end);
            job = next;
        }
    }

    #[inline(always)]
    fn served(&mut self, job: u32, queue: usize, frees: bool) {
        let slot = &self.jobs[job];
        let (at, bytes) = (slot.at as usize, slot.bytes);
        self.visits[at].serve(slot.arrived, slot.started, self.now);
        self.queues[queue].length.remove(self.now);
        if frees {
            self.free(queue, bytes);
        }
        if TRACED {
            self.record_visit(job, queue, Fate::Served);
        }
        self.send_on(job, at);
    }

    /// Sets the clock that wakes a polling level up again.
    pub(super) fn set_timer(&mut self, timer: usize, time: u64) {
        self.calendar.set(timer, time);
    }
}
