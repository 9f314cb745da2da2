//! How stations choose whom to serve, and what happens when a service starts, is interrupted and ends.

use super::blocked::SHARED;
use super::calendar::{Calendar, NEVER};
use super::engine::{DRAWN, Engine, Server, StationState, bit};
use super::jobs::{FRESH, NONE};
use super::level::Level;
use super::scale::{Parts, Scale};
use super::sharing::Sharing;
use super::trace::Fate;

/// Which level of a station is served next.
struct Next {
    level: usize,
    /// Its queue, where it has only one, or `NONE`: its policy decides.
    queue: u32,
    /// The number of the first of several queues that can be served.
    servable: usize,
}

impl<S: Scale, const TRACED: bool> Engine<'_, S, TRACED> {
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
        self.book_shared(station);
        let state = &mut self.stations[station];
        let sharing = state
            .sharing
            .as_mut()
            .expect("only stations that are shared come here");
        let result = change(sharing, self.now);
        let next = sharing.next().unwrap_or(NEVER);
        self.calendar.set(state.first_server, next);
        result
    }

    /// Books the work that a shared station has done up to now: its own, and that of its queues, each of whose
    /// packets has had the same share. To be called before a packet comes or goes.
    pub(super) fn book_shared(&mut self, station: usize) {
        let network = self.network;
        let state = &mut self.stations[station];
        let Some(sharing) = &state.sharing else {
            return;
        };
        let (packets, working) = (sharing.len() as u128, sharing.working() as u128);
        let work = u128::from(self.now - state.shared_since) * working;
        state.shared_since = self.now;
        state.shared_work += work;
        if work == 0 {
            return;
        }
        let levels = network.stations[station].levels.iter();
        for &queue in levels.flat_map(|level| &level.queues) {
            let state = &mut self.queues[queue as usize];
            let served = state.length.now - u64::from(state.blocked);
            state.work += work * u128::from(served) / packets;
        }
    }

    /// Gives servers work for as long as there is a server for it and work for the server.
    #[inline]
    pub(super) fn choose(&mut self, station: usize) {
        if !S::PLAIN && self.stations[station].walks {
            return self.walk(station);
        }
        loop {
            let state = &self.stations[station];
            let wanted = match state.idle {
                0 => state.ready & self.interrupting(state),
                _ => state.ready,
            };
            let Some(next) = self.first_ready(station, wanted) else {
                let state = &self.stations[station];
                if !S::PLAIN && state.polls && state.idle == state.servers {
                    let plan = &self.network.stations[station];
                    let levels = state.first_level..state.first_level + plan.levels.len();
                    self.levels.all_mut()[levels]
                        .iter_mut()
                        .for_each(Level::end_cycle);
                }
                return;
            };
            let state = &self.stations[station];
            let is_only = S::PLAIN || state.servers == 1;
            let server = match state.idle {
                0 => self.interrupt(station, next.level),
                _ if is_only => Some(state.first_server),
                _ => self.idle_server(state),
            };
            let Some(server) = server else {
                return;
            };
            let queue = match next.queue {
                NONE => self.select(
                    self.stations[station].first_level + next.level,
                    next.servable,
                ),
                queue => Some(queue as usize),
            };
            match queue {
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

    /// The levels whose packets would take a server from somebody, where all servers are busy.
    #[inline]
    fn interrupting(&self, state: &StationState) -> u64 {
        if !state.preempts {
            return 0;
        }
        let first = state.first_server;
        let largest = if S::PLAIN || state.servers == 1 {
            self.servers[first].level
        } else {
            let servers = &self.servers.all()[first..first + state.servers];
            servers.iter().map(|server| server.level).max().unwrap_or(0)
        };
        bit(largest) - 1
    }

    fn idle_server(&self, state: &StationState) -> Option<usize> {
        let servers = &self.servers.all()[state.first_server..state.first_server + state.servers];
        let idle = servers.iter().position(|server| server.job == NONE);
        idle.map(|number| state.first_server + number)
    }

    /// The first level with a packet that can be served now, among those of the station that are wanted.
    #[inline(always)]
    fn first_ready(&mut self, station: usize, mut wanted: u64) -> Option<Next> {
        let state = &self.stations[station];
        let (first_level, blocking) = (state.first_level, state.blocking);
        let mut closed = None;
        while wanted != 0 {
            let level = wanted.trailing_zeros() as usize;
            let own = wanted & wanted.wrapping_neg();
            wanted ^= own;
            let queue = self.alone[first_level + level];
            if queue != NONE {
                if blocking & own != 0 && self.is_blocked(self.queues[queue as usize].line.head) {
                    continue;
                }
                return Some(Next {
                    level,
                    queue,
                    servable: 0,
                });
            }
            let Some(servable) = self.servable(first_level + level) else {
                continue;
            };
            let next = Next {
                level,
                queue,
                servable,
            };
            if !S::PLAIN && self.levels[first_level + level].closed_until > self.now {
                // Whoever gave way polls on when there is nobody to give way to.
                closed = closed.or(Some(next));
                continue;
            }
            return Some(next);
        }
        let next = closed?;
        let state = &self.stations[station];
        let servers = &self.servers.all()[state.first_server..state.first_server + state.servers];
        let is_used = servers
            .iter()
            .any(|server| server.job != NONE && server.level as usize > next.level);
        (!is_used).then_some(next)
    }

    /// The number of the first queue of a level that can be served; somebody is in one of them.
    #[inline]
    pub(super) fn servable(&mut self, level: usize) -> Option<usize> {
        let mut queues = self.levels[level].plan.queues.iter();
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
        let mut is_blocked = false;
        for &queue in &network.ways[job.at as usize].blocking {
            let next = &mut self.queues[queue as usize];
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
        let first = state.first_server;
        let clock = if S::PLAIN {
            first
        } else {
            let servers = &self.servers.all()[first..first + state.servers];
            let levels = servers.iter().map(|server| server.level).enumerate();
            first + levels.max_by_key(|&(_, level)| level)?.0
        };
        let server = self.servers[clock];
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
    pub(super) fn start(&mut self, server: usize, queue: usize) {
        let job = self.pop(queue);
        let left = self.jobs[job].left;
        let work = match left {
            FRESH => self.begin_all(job, queue),
            _ => self.resume(job, queue),
        };
        let plan = self.queues[queue].plan;
        let stretch = if S::PLAIN {
            work
        } else {
            work.min(plan.quantum)
        };
        self.stations[plan.station as usize].idle -= 1;
        self.servers[server] = Server {
            job,
            queue: queue as u32,
            level: plan.level,
            began: self.now,
            unfinished: if S::PLAIN { 0 } else { work - stretch },
            ..self.servers[server]
        };
        let ends = self.now.saturating_add(stretch).min(NEVER - 1);
        self.calendar.set(server, ends);
    }

    /// Goes on with work that was interrupted, or whose quantum had ended.
    fn resume(&mut self, job: u32, queue: usize) -> u64 {
        let state = &mut self.queues[queue];
        if state.interrupted > 0 {
            state.interrupted -= 1;
            if !state.plan.is_alone {
                self.levels[state.level].interrupted -= 1;
            }
        }
        std::mem::replace(&mut self.jobs[job].left, FRESH)
    }

    /// The work of a packet, of those that are served together with it, and of the policy.
    #[inline(always)]
    fn begin_all(&mut self, job: u32, queue: usize) -> u64 {
        let plan = self.queues[queue].plan;
        let mut work = self.begin(job, queue).saturating_add(plan.batch_cost);
        if S::PLAIN {
            return work;
        }
        if plan.batch_packets > 1 {
            work += self.begin_others(job, queue, plan.batch_packets);
        }
        if !plan.is_alone {
            let state = &mut self.queues[queue];
            work += self.levels[state.level].charge(state, work, self.jobs[job].bytes);
        }
        work
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
        let (at, bytes) = (slot.at as usize, slot.bytes);
        let state = &mut self.queues[queue];
        let plan = state.plan;
        let work = match self.times[at] {
            DRAWN => self.services[at].draw(bytes, &mut state.generator),
            time => time,
        };
        if plan.blocks {
            let network = self.network;
            for &next in &network.ways[at].blocking {
                self.queues[next as usize].hold(bytes);
            }
        }
        self.free_if(!plan.frees_at_end, queue, bytes);
        work
    }

    /// A place in a queue is free again, where it is now that the queue frees it; whoever waited for one looks again.
    ///
    /// It counts with 0 or 1 instead of asking: which queue it is changes from event to event, so that the processor
    /// would often guess wrong.
    #[inline(always)]
    fn free_if(&mut self, is_freed: bool, queue: usize, bytes: u32) {
        let state = &mut self.queues[queue];
        let freed = u64::from(is_freed);
        state.held -= freed;
        state.held_bytes -= freed * u64::from(bytes);
        if is_freed & state.awaited {
            self.wake(queue);
        }
    }

    /// Stations that wait for room in a queue look again.
    #[cold]
    fn wake(&mut self, queue: usize) {
        let state = &mut self.queues[queue];
        state.awaited = false;
        for &station in &state.plan.upstream {
            self.touch(station);
        }
        self.has_freed = !self.waiting.is_empty();
    }

    /// A server's work ends, or its quantum does. Returns its station, which is to choose at the end of this
    /// event: as if it were touched, though it is not among those that are.
    #[inline(always)]
    pub(super) fn finish(&mut self, clock: usize) -> u32 {
        let server = self.servers[clock];
        let station = &mut self.stations[server.station as usize];
        station.touched = true;
        if !S::PLAIN && station.sharing.is_some() {
            self.finish_sharing(server.station as usize);
            return server.station;
        }
        station.idle += 1;
        self.calendar.set(clock, NEVER);
        self.servers[clock].job = NONE;
        let queue = server.queue as usize;
        let state = &mut self.queues[queue];
        state.work += u128::from(self.now - server.began);
        if !S::PLAIN && server.unfinished > 0 {
            self.jobs[server.job].left = server.unfinished;
            if state.line.is_empty() {
                self.levels[state.level].nonempty += 1;
                station.ready |= state.plan.bit;
            }
            state.line.push(server.job, &mut self.jobs);
            return server.station;
        }
        let plan = state.plan;
        if !S::PLAIN && plan.waits {
            self.finish_with_room(server.job, queue, clock);
        } else if S::PLAIN || plan.batch_packets == 1 {
            self.served(server.job, queue, plan.frees_at_end);
        } else {
            self.finish_batch(server.job, queue);
        }
        server.station
    }

    #[inline(never)]
    fn finish_batch(&mut self, first: u32, queue: usize) {
        let mut job = first;
        while job != NONE {
            if self.jobs.inside() > self.jobs_max {
                // Clones of a batch may be many: the run ends at this event.
                self.next_watch = self.events;
                return;
            }
            let next = std::mem::replace(&mut self.jobs[job].together, NONE);
            self.served(job, queue, self.queues[queue].plan.frees_at_end);
            job = next;
        }
    }

    #[inline(never)]
    fn finish_sharing(&mut self, station: usize) {
        if let Some(job) = self.share(station, Sharing::remove) {
            let queue = self.jobs[job].next as usize;
            if self.queues[queue].plan.waits {
                self.finish_with_room(job, queue, SHARED);
            } else {
                self.served(job, queue, true);
            }
        }
    }

    #[inline(always)]
    fn served(&mut self, job: u32, queue: usize, frees: bool) {
        let at = self.count_served(job, queue, frees);
        self.send_on(job, at);
    }

    /// Counts a packet that leaves a queue; returns its place and class.
    #[inline(always)]
    pub(super) fn count_served(&mut self, job: u32, queue: usize, frees: bool) -> usize {
        let slot = &self.jobs[job];
        let (at, bytes) = (slot.at as usize, slot.bytes);
        self.visits[at].serve(slot.arrived, slot.started, self.now);
        self.queues[queue].length.remove(self.now);
        self.free_if(frees, queue, bytes);
        if TRACED {
            self.record_visit(job, queue, Fate::Served);
        }
        at
    }

    /// Sets the clock that wakes a polling level up again.
    pub(super) fn set_timer(&mut self, timer: usize, time: u64) {
        self.calendar.set(timer, time);
    }
}
