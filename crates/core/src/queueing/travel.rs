//! How packets come into a network, from queue to queue, and out of it.

use super::amount::Draw;
use super::calendar::{Calendar, NEVER};
use super::engine::{Engine, bit};
use super::jobs::{FRESH, Job, NONE};
use super::network::Way;
use super::time::{picoseconds, whole};
use super::trace::Fate;

impl<C: Calendar, const TRACED: bool> Engine<'_, C, TRACED> {
    pub(super) fn plan_arrival(&mut self, source: usize) {
        let state = &mut self.sources[source];
        let gap = if state.packets_left == 0 {
            None
        } else {
            state.gap.next(0, &mut state.gaps)
        };
        let time = gap.map_or(NEVER, |gap_ns| self.now.saturating_add(picoseconds(gap_ns)));
        self.calendar.set(self.network.timers.end + source, time);
    }

    pub(super) fn arrive(&mut self, source: usize) {
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

    /// Sends a job and its clones from a queue or source to where they go next.
    #[inline]
    pub(super) fn send_on(&mut self, job: u32, origin: usize) {
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
    pub(super) fn send(&mut self, job: u32, origin: usize, way: &Way) {
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

    pub(super) fn choose_place(&mut self, origin: usize, choices: &[(f64, u32)]) -> u32 {
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
    pub(super) fn enter(&mut self, job: u32, queue: usize, reserved: bool) {
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

    pub(super) fn lose(&mut self, job: u32, queue: usize, at: usize) {
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

    pub(super) fn leave(&mut self, job: u32, place: u32) {
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
}
