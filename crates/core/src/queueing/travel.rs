//! How packets come into a network, from queue to queue, and out of it.

use super::calendar::{Calendar, NEVER};
use super::engine::Engine;
use super::jobs::{FRESH, Job, NONE};
use super::network::Way;
use super::scale::Scale;
use super::time::{picoseconds, whole};
use super::trace::Fate;

impl<S: Scale, const TRACED: bool> Engine<'_, S, TRACED> {
    pub(super) fn plan_arrival(&mut self, source: usize) {
        let state = &mut self.sources[source];
        let gap = if state.packets_left == 0 || state.size.has_ended() {
            None
        } else {
            state.gap.next(0, &mut state.gaps)
        };
        let stretch = self.network.sources[source].stretch;
        let time = gap.map_or(NEVER, |gap_ns| {
            self.now.saturating_add(picoseconds(gap_ns * stretch))
        });
        self.calendar.set(self.network.timers.end + source, time);
    }

    pub(super) fn arrive(&mut self, source: usize) {
        let class = self.network.sources[source].class;
        let state = &mut self.sources[source];
        state.packets_left -= 1;
        let bytes = match state.size.constant_bytes() {
            Some(bytes) => bytes,
            None => state
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
            at: 0,
            class,
            clone: false,
        });
        let origin = self.network.queues.len() + source;
        self.send_on(job, origin * self.network.classes + usize::from(class));
        self.plan_arrival(source);
    }

    /// Sends a job and its clones from a queue or source to where they go next; `from` is their place and
    /// class, as ways on are numbered.
    #[inline(always)]
    pub(super) fn send_on(&mut self, job: u32, from: usize) {
        let network = self.network;
        let ways = &network.ways[from];
        match ways.only {
            NONE => self.send_copies(job, from, &ways.all),
            place => self.move_to(job, place, ways.only_blocks),
        }
    }

    /// Clones are copies of the packet before it moves on and may leave; they follow it.
    #[inline(never)]
    fn send_copies(&mut self, job: u32, from: usize, ways: &[Way]) {
        if !S::PLAIN
            && let [way] = ways
        {
            return self.send(job, from, way);
        }
        let copied = self.jobs[job].clone();
        let mut sent = job;
        for (number, way) in ways.iter().enumerate() {
            if number > 0 {
                self.balance.cloned += 1;
                sent = self.jobs.add(Job {
                    clone: true,
                    left: FRESH,
                    together: NONE,
                    ..copied
                });
            }
            self.send(sent, from, way);
        }
        self.watch_clones();
    }

    /// Has the run watched at once when too many packets are inside: clones may be many packets in few events.
    #[inline(always)]
    pub(super) fn watch_clones(&mut self) {
        if self.jobs.inside() > self.jobs_max {
            self.next_watch = self.events;
        }
    }

    #[inline(always)]
    fn send(&mut self, job: u32, from: usize, way: &Way) {
        let place = if S::PLAIN || way.choices.is_empty() {
            way.place
        } else {
            self.choose_place(from / self.network.classes, &way.choices)
        };
        if !S::PLAIN
            && let Some(class) = way.becomes
        {
            self.jobs[job].class = class;
        }
        self.move_to(job, place, way.blocks);
    }

    #[inline(always)]
    pub(super) fn move_to(&mut self, job: u32, place: u32, reserved: bool) {
        if (place as usize) < self.network.queues.len() {
            self.enter(job, place as usize, reserved);
        } else {
            self.leave(job, place);
        }
    }

    pub(super) fn choose_place(&mut self, origin: usize, choices: &[(f64, u32)]) -> u32 {
        let queues = self.network.queues.len();
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
    #[inline(always)]
    fn enter(&mut self, job: u32, queue: usize, reserved: bool) {
        let slot = &mut self.jobs[job];
        let at = queue * self.network.classes + usize::from(slot.class);
        let bytes = slot.bytes;
        slot.at = at as u32;
        self.visits[at].arrived += 1;
        let state = &mut self.queues[queue];
        let plan = state.plan;
        if !reserved {
            if !state.has_room(bytes) {
                self.lose(job, queue, at);
                return;
            }
            state.hold(bytes);
        }
        if !S::PLAIN {
            // Of what was done until now it has had no share.
            self.book_shared(plan.station as usize);
        }
        let (slot, state) = (&mut self.jobs[job], &mut self.queues[queue]);
        state.length.add(self.now);
        slot.arrived = self.now;
        let station = &mut self.stations[plan.station as usize];
        if !S::PLAIN && station.sharing.is_some() {
            let work = self.services[at].draw(bytes, &mut state.generator);
            slot.started = self.now;
            // The job remembers its queue: a station may serve several.
            slot.next = queue as u32;
            self.share(plan.station as usize, |sharing, now| {
                sharing.add(job, work, now);
            });
            return;
        }
        if state.line.is_empty() {
            station.ready |= plan.bit;
            if !plan.is_alone {
                let level = &mut self.levels[state.level];
                if !S::PLAIN {
                    level.catch_up(state);
                }
                level.nonempty += 1;
            }
        }
        state.line.push(job, &mut self.jobs);
        // Whoever is busy and cannot be interrupted has no choice to make.
        if station.idle > 0 || station.preempts {
            station.touch(plan.station, &mut self.touched);
        }
    }

    #[cold]
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

    #[inline(never)]
    fn leave(&mut self, job: u32, place: u32) {
        let Job {
            born,
            bytes,
            class,
            clone,
            ..
        } = self.jobs[job];
        let sink = place as usize - self.network.queues.len();
        let departures = &mut self.departures[sink * self.network.classes + usize::from(class)];
        if clone {
            departures.add_clone(self.now - born);
        } else {
            departures.add(self.now - born, bytes);
        }
        self.balance.left += 1;
        if TRACED {
            self.record_packet(job, place, Fate::Served);
        }
        self.jobs.remove(job);
    }
}
