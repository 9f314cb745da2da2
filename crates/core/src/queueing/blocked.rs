//! Blocking after service: packets that are served and wait for room where they go next.
//!
//! A packet that waits keeps its server, and its place in a queue that frees it at the end of the service. Who has
//! waited longest goes first, whichever station it is at. At stations that packets share, only the packet itself
//! waits, without a share. Stations of which every server is held by a packet that waits for room at another such
//! station wait for ever: a deadlock, which ends the run with an error.

use super::engine::Engine;
use super::error::ModelError;
use super::jobs::{FRESH, Job, NONE};
use super::scale::{Parts, Scale};
use super::time::seconds;

/// The job of a server whose packet waits after its service: it is neither idle nor at work.
pub(super) const HELD: u32 = NONE - 1;

/// The server of a packet that shares its station.
pub(super) const SHARED: usize = usize::MAX;

/// How many packets wait at a station, over time.
#[derive(Clone, Copy, Default)]
pub(super) struct Blocked {
    pub now: u32,
    since: u64,
    /// The number times how long it lasted, ps.
    pub total: u128,
}

impl Blocked {
    /// Counts up to now.
    pub fn settle(&mut self, time: u64) {
        self.total += u128::from(self.now) * u128::from(time - self.since);
        self.since = time;
    }
}

/// A packet that waits.
pub(super) struct Waiting {
    job: u32,
    queue: u32,
    /// The clock of its server, or `SHARED`.
    server: usize,
    copies: Vec<Copy>,
}

/// Where a copy of a packet goes, which was drawn when its service ended.
struct Copy {
    place: u32,
    becomes: Option<u16>,
    blocks: bool,
}

impl<S: Scale, const TRACED: bool> Engine<'_, S, TRACED> {
    /// Whether a queue of a station blocks after service.
    pub(super) fn blocks_after_service(&self, station: usize) -> bool {
        let mut queues = self.network.queues.iter();
        queues.any(|queue| queue.station as usize == station && queue.waits)
    }

    /// A packet's service ends: it leaves if there is room where it goes next, and waits for it otherwise. Its server
    /// is idle already.
    #[inline(never)]
    pub(super) fn finish_with_room(&mut self, job: u32, queue: usize, server: usize) {
        let from = self.jobs[job].at as usize;
        let network = self.network;
        let ways = network.ways[from].all.iter();
        let copies = ways.map(|way| Copy {
            place: match &way.choices[..] {
                [] => way.place,
                choices => self.choose_place(queue, choices),
            },
            becomes: way.becomes,
            blocks: way.blocks,
        });
        let waiting = Waiting {
            job,
            queue: queue as u32,
            server,
            copies: copies.collect(),
        };
        if self.reserve(&waiting) {
            self.depart(waiting);
            return;
        }
        let state = &mut self.stations[self.network.queues[queue].station as usize];
        state.blocked.settle(self.now);
        state.blocked.now += 1;
        if server != SHARED {
            state.idle -= 1;
            self.servers[server].job = HELD;
            // No other packet preempts it.
            self.servers[server].level = 0;
        }
        self.queues[queue].blocked += 1;
        self.waiting.push(waiting);
        if network.can_deadlock && self.deadlock.is_none() {
            self.deadlock = self.find_deadlock();
        }
    }

    /// Reserves room for all copies that wait for it, if there is; otherwise it is asked again when there is more.
    fn reserve(&mut self, waiting: &Waiting) -> bool {
        let bytes = self.jobs[waiting.job].bytes;
        let queues = self.network.queues.len();
        for (number, copy) in waiting.copies.iter().enumerate() {
            let place = copy.place as usize;
            if !copy.blocks || place >= queues {
                continue;
            }
            if self.queues[place].has_room(bytes) {
                self.queues[place].hold(bytes);
                continue;
            }
            self.queues[place].awaited = true;
            for held in &waiting.copies[..number] {
                let place = held.place as usize;
                if held.blocks && place < queues {
                    self.queues[place].held -= 1;
                    self.queues[place].held_bytes -= u64::from(bytes);
                }
            }
            return false;
        }
        true
    }

    /// A packet goes on to where room is reserved for it.
    fn depart(&mut self, waiting: Waiting) {
        let Waiting { job, queue, .. } = waiting;
        let plan = &self.network.queues[queue as usize];
        let frees = plan.frees_at_end || waiting.server == SHARED;
        self.count_served(job, queue as usize, frees);
        let copied = self.jobs[job].clone();
        let queues = self.network.queues.len();
        for (number, copy) in waiting.copies.iter().enumerate() {
            let sent = match number {
                0 => job,
                _ => {
                    self.balance.cloned += 1;
                    self.jobs.add(Job {
                        clone: true,
                        left: FRESH,
                        together: NONE,
                        ..copied
                    })
                }
            };
            if let Some(class) = copy.becomes {
                self.jobs[sent].class = class;
            }
            let is_reserved = copy.blocks && (copy.place as usize) < queues;
            self.move_to(sent, copy.place, is_reserved);
        }
        self.watch_clones();
    }

    /// Lets go who waited for room that there is now, the longest first.
    #[cold]
    #[inline(never)]
    pub(super) fn release(&mut self) {
        let mut next = 0;
        self.has_freed = false;
        // With too many packets inside, the run ends at this event: see `watch_clones`.
        while next < self.waiting.len() && self.jobs.inside() <= self.jobs_max {
            // Taken out while it is looked at, since it may not change what it stands in.
            let waiting = self.waiting.remove(next);
            if !self.reserve(&waiting) {
                self.waiting.insert(next, waiting);
                next += 1;
                continue;
            }
            let (queue, server) = (waiting.queue as usize, waiting.server);
            let station = self.network.queues[queue].station;
            let state = &mut self.stations[station as usize];
            state.blocked.settle(self.now);
            state.blocked.now -= 1;
            if server != SHARED {
                state.idle += 1;
                self.servers[server].job = NONE;
                self.touch(station);
            }
            // What shares the station with it has been served without it.
            self.book_shared(station as usize);
            self.queues[queue].blocked -= 1;
            self.depart(waiting);
            if self.has_freed {
                self.has_freed = false;
                next = 0;
            }
        }
    }

    /// The queues that wait for each other for ever, the first again at the end.
    fn find_deadlock(&self) -> Option<Vec<String>> {
        let network = self.network;
        let stations = self.stations.all().iter();
        let mut stuck: Vec<bool> = stations
            .map(|state| match &state.sharing {
                Some(sharing) => sharing.len() == 0 && state.blocked.now > 0,
                None => state.blocked.now as usize == state.servers,
            })
            .collect();
        let station_of = |queue: u32| network.queues[queue as usize].station as usize;
        // Where it waits for ever: the first full queue at a station that is stuck.
        let full = |waiting: &Waiting, stuck: &[bool]| {
            let bytes = self.jobs[waiting.job].bytes;
            let mut blocking = waiting.copies.iter().filter(|copy| {
                copy.blocks
                    && (copy.place as usize) < network.queues.len()
                    && !self.queues[copy.place as usize].has_room(bytes)
            });
            let found = blocking.find(|copy| stuck[station_of(copy.place)]);
            found.map(|copy| copy.place)
        };
        loop {
            let mut waiting = self.waiting.iter();
            let goes_on =
                waiting.find(|each| stuck[station_of(each.queue)] && full(each, &stuck).is_none());
            match goes_on {
                Some(each) => stuck[station_of(each.queue)] = false,
                None => break,
            }
        }
        let of_station = |station: usize| {
            let mut waiting = self.waiting.iter();
            waiting.find(|each| station_of(each.queue) == station)
        };
        let mut at = of_station(stuck.iter().position(|&stuck| stuck)?)?;
        let mut walked: Vec<u32> = Vec::new();
        loop {
            let begin = walked.iter().position(|&queue| queue == at.queue);
            walked.push(at.queue);
            if let Some(begin) = begin {
                let names = walked[begin..].iter();
                let names = names.map(|&queue| network.model.queues[queue as usize].name.clone());
                return Some(names.collect());
            }
            at = of_station(station_of(full(at, &stuck)?))?;
        }
    }

    /// The error of a deadlock that was found.
    pub(super) fn refuse_deadlock(&self) -> Result<(), ModelError> {
        match &self.deadlock {
            None => Ok(()),
            Some(queues) => Err(ModelError::Deadlocked {
                queues: queues.clone(),
                time_s: seconds(self.now),
            }),
        }
    }
}
