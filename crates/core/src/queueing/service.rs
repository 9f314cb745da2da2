//! How stations choose whom to serve, and what happens when a service starts, is interrupted and ends.

use super::calendar::{Calendar, NEVER};
use super::engine::{Engine, Server, StationState, bit};
use super::jobs::{FRESH, Job, NONE};
use super::level::Level;
use super::model::StationKind;
use super::network::PolicyPlan;
use super::sharing::Sharing;
use super::trace::Fate;

impl<C: Calendar, const TRACED: bool> Engine<'_, C, TRACED> {
    #[inline]
    pub(super) fn touch(&mut self, station: u32) {
        let state = &mut self.stations[station as usize];
        if !state.touched {
            state.touched = true;
            self.touched.push(station);
        }
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
        self.calendar
            .set(self.network.stations[station].first_clock, next);
        result
    }

    /// Gives servers work for as long as there is a server for it and work for the server.
    #[inline]
    pub(super) fn choose(&mut self, station: usize) {
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
    pub(super) fn first_ready(&mut self, station: usize) -> Option<usize> {
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
    pub(super) fn can_serve(&mut self, station: usize, level: usize) -> bool {
        let network = self.network;
        let queues = &network.stations[station].levels[level].queues;
        queues.iter().any(|&queue| self.is_servable(queue as usize))
    }

    /// Whether a queue has somebody at its front who is not blocked.
    #[inline(always)]
    pub(super) fn is_servable(&mut self, queue: usize) -> bool {
        let head = self.queues[queue].line.head;
        head != NONE && (!self.network.queues[queue].blocks || !self.is_blocked(queue, head))
    }

    pub(super) fn is_blocked(&mut self, queue: usize, head: u32) -> bool {
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
    pub(super) fn interrupt(&mut self, station: usize, level: usize) -> Option<usize> {
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
    pub(super) fn start(&mut self, station: usize, server: usize, level: usize, queue: usize) {
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

    #[inline(always)]
    pub(super) fn pop(&mut self, station: usize, level: usize, queue: usize) -> u32 {
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
    #[inline(always)]
    pub(super) fn begin(&mut self, job: u32, queue: usize, cost: u64) -> u64 {
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
    #[inline(always)]
    pub(super) fn free(&mut self, queue: usize, bytes: u32) {
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
    pub(super) fn finish(&mut self, station: usize, number: usize, clock: usize) {
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
    pub(super) fn served(&mut self, job: u32, queue: usize, frees: bool) {
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
}
/// Whether somebody waits whose priority number is smaller than that of somebody in service.
#[inline]
fn can_interrupt(kind: StationKind, state: &StationState) -> bool {
    let largest = state.servers.iter().map(|server| server.level).max();
    let above = largest.map_or(0, |level| bit(level) - 1);
    kind == StationKind::PreemptiveResume && state.ready & above != 0
}
