//! The event loop.
//!
//! At equal times clocks ring in the order of their numbers: servers in the order of their stations, then
//! timers of polling policies, then sources in their order; so who leaves at an instant makes room for
//! who comes at it. After each ring the stations whose queues it changed choose whom to serve, in
//! the order in which they were touched.

use super::account::{Balance, Departures, Length, Visits};
use super::amount::Draw;
use super::blocked::{Blocked, HELD, Waiting};
use super::calendar::{Calendar, NEVER};
use super::error::ModelError;
use super::jobs::{Jobs, Line, NONE};
use super::level::Level;
use super::model::StationKind;
use super::network::{LevelPlan, Network, QueuePlan, ServiceTime, StationPlan};
use super::run::RunOptions;
use super::scale::{Parts, Scale};
use super::sharing::Sharing;
use super::time::seconds;
use super::trace::Trace;
use crate::laws::Generator;

/// Events between two looks at whether the run is to go on.
const EVENTS_UNWATCHED: u64 = 1 << 16;

/// Events at the same instant, after which nobody believes that there will be another instant.
const EVENTS_STANDING: u64 = 1 << 24;

/// What a server works on. Servers have the numbers of their clocks; a station that is shared has one.
#[derive(Clone, Copy)]
pub(super) struct Server {
    pub station: u32,
    pub job: u32,
    pub queue: u32,
    /// Among the levels of its station.
    pub level: u32,
    /// When this stretch of work began.
    pub began: u64,
    /// Work left after this stretch, of round robin with a quantum.
    pub unfinished: u64,
}

// The size of what stands in arrays is a power of two: then a shift finds it.
#[derive(Clone)]
#[repr(align(256))]
pub(super) struct StationState {
    /// Its servers and levels among those of all stations.
    pub first_server: usize,
    pub servers: usize,
    pub first_level: usize,
    pub idle: usize,
    /// Levels with somebody in a queue, one bit each.
    pub ready: u64,
    /// Levels whose only queue can be blocked.
    pub blocking: u64,
    pub touched: bool,
    pub preempts: bool,
    /// Whether one of its levels polls.
    pub polls: bool,
    /// Whether its server goes around among all queues, empty or not.
    pub walks: bool,
    pub sharing: Option<Sharing>,
    /// Packets that wait after their service, each at its server where they do not share the station.
    pub blocked: Blocked,
    /// Work done by a sharing station, server x ps.
    pub shared_work: u128,
    pub shared_since: u64,
}

#[derive(Clone)]
#[repr(align(256))]
pub(super) struct QueueState<'n> {
    pub plan: &'n QueuePlan,
    pub line: Line,
    /// Its level among those of all stations.
    pub level: usize,
    /// Packets and bytes that take a place.
    pub held: u64,
    pub held_bytes: u64,
    /// Interrupted packets at the front of the line.
    pub interrupted: u32,
    /// Packets that wait after their service.
    pub blocked: u32,
    /// Whether a station upstream found it full.
    pub awaited: bool,
    /// Start time of its next packet in weighted fair queueing.
    pub tag: f64,
    pub length: Length,
    /// Work done, ps.
    pub work: u128,
    pub generator: Generator,
}

impl StationState {
    /// Has the station choose at the end of this event; `touched` are those that will.
    #[inline]
    pub fn touch(&mut self, number: u32, touched: &mut Vec<u32>) {
        if !self.touched {
            self.touched = true;
            touched.push(number);
        }
    }
}

impl QueueState<'_> {
    /// Whether a packet finds a place.
    #[inline]
    pub fn has_room(&self, bytes: u32) -> bool {
        self.held < self.plan.capacity_packets
            && self.held_bytes.saturating_add(u64::from(bytes)) <= self.plan.capacity_bytes
    }

    /// A packet takes a place.
    #[inline]
    pub fn hold(&mut self, bytes: u32) {
        self.held += 1;
        self.held_bytes += u64::from(bytes);
    }
}

pub(super) struct SourceState {
    pub gap: Draw,
    pub size: Draw,
    pub packets_left: u64,
    pub gaps: Generator,
    pub sizes: Generator,
    pub ways: Generator,
}

/// A network at work.
pub(super) struct Engine<'n, S: Scale, const TRACED: bool> {
    pub(super) network: &'n Network,
    pub(super) calendar: S::Calendar,
    pub(super) now: u64,
    /// When counting began.
    pub(super) counted_since: u64,
    pub(super) events: u64,
    /// The number of events at which to look whether the run is to go on.
    pub(super) next_watch: u64,
    /// The number of events at the last such look, and all events until then, also of the warm-up.
    last_watch: u64,
    events_watched: u64,
    /// The instant of that look, and events since it began.
    watched_at: u64,
    events_standing: u64,
    pub(super) jobs: Jobs,
    pub(super) servers: S::Few<Server>,
    pub(super) stations: S::Few<StationState>,
    pub(super) levels: S::Few<Level<'n>>,
    // of each level its queue, if that has it to itself, or `NONE`
    pub(super) alone: S::Few<u32>,
    pub(super) queues: S::Few<QueueState<'n>>,
    pub(super) sources: Vec<SourceState>,
    // of [queue][class]: services that always take the same time, or `DRAWN`; then see `services`
    pub(super) times: S::Many<u64>,
    pub(super) services: Vec<ServiceTime>,
    // the station of each timer
    timers: Vec<u32>,
    pub(super) touched: Vec<u32>,
    /// Packets that wait for room after their service, the longest first.
    pub(super) waiting: Vec<Waiting>,
    /// Whether there is room again that one of them may have waited for.
    pub(super) has_freed: bool,
    pub(super) deadlock: Option<Vec<String>>,
    pub(super) packets: u64,
    pub(super) jobs_max: usize,
    events_max: u64,
    // of [queue][class] and [sink][class]
    pub(super) visits: S::Many<Visits>,
    pub(super) departures: Vec<Departures>,
    pub(super) balance: Balance,
    pub(super) trace: Trace,
}

impl<'n, S: Scale, const TRACED: bool> Engine<'n, S, TRACED> {
    /// The network, empty; the first packets of all sources are on their way.
    pub fn new(network: &'n Network, options: &RunOptions, replication: u64) -> Self {
        let stream_of = |part: u64| Generator::new(options.seed, replication << 32 | part);
        let mut streams = (0..).map(stream_of);
        let mut stream = || streams.next().expect("there are 2^64 streams");
        let (mut servers, mut stations) = (Vec::new(), Vec::new());
        let (mut levels, mut alone, mut timers) = (Vec::new(), Vec::new(), Vec::new());
        for (number, plan) in network.stations.iter().enumerate() {
            let sharing = match plan.kind {
                StationKind::ProcessorSharing => Some(Sharing::new(Some(plan.servers))),
                StationKind::Delay => Some(Sharing::new(None)),
                StationKind::NonPreemptive | StationKind::PreemptiveResume => None,
            };
            let own_timers = plan.levels.iter().filter(|level| level.policy.polls());
            let timers_before = timers.len();
            timers.extend(own_timers.map(|_| number as u32));
            debug_assert_eq!(plan.first_clock, servers.len());
            stations.push(StationState {
                first_server: plan.first_clock,
                servers: plan.servers,
                first_level: levels.len(),
                idle: plan.servers,
                ready: 0,
                blocking: blocking(plan, &network.queues),
                touched: false,
                preempts: plan.kind == StationKind::PreemptiveResume,
                polls: timers.len() > timers_before,
                walks: plan.levels.iter().any(|level| level.policy.walks()),
                sharing,
                blocked: Blocked::default(),
                shared_work: 0,
                shared_since: 0,
            });
            let idle = Server {
                station: number as u32,
                job: NONE,
                queue: 0,
                level: 0,
                began: 0,
                unfinished: 0,
            };
            let clocks = match stations[number].sharing {
                Some(_) => 1,
                None => plan.servers,
            };
            servers.extend(std::iter::repeat_n(idle, clocks));
            levels.extend(plan.levels.iter().map(Level::new));
            alone.extend(plan.levels.iter().map(LevelPlan::alone));
        }
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
        let queues = network.queues.iter().map(|plan| QueueState {
            plan,
            line: Line::EMPTY,
            level: stations[plan.station as usize].first_level + plan.level as usize,
            held: 0,
            held_bytes: 0,
            interrupted: 0,
            blocked: 0,
            awaited: false,
            tag: 0.0,
            length: Length::default(),
            work: 0,
            generator: stream(),
        });
        let queues: Vec<_> = queues.collect();
        let mut engine = Self {
            network,
            calendar: S::Calendar::new(network.clocks),
            now: 0,
            counted_since: 0,
            events: 0,
            next_watch: EVENTS_UNWATCHED,
            last_watch: 0,
            events_watched: 0,
            watched_at: 0,
            events_standing: 0,
            jobs: Jobs::default(),
            servers: servers.into(),
            stations: stations.into(),
            levels: levels.into(),
            alone: alone.into(),
            queues: queues.into(),
            sources,
            times: network
                .services
                .iter()
                .map(fixed_time)
                .collect::<Vec<_>>()
                .into(),
            services: network.services.clone(),
            timers,
            touched: Vec::new(),
            waiting: Vec::new(),
            has_freed: false,
            deadlock: None,
            packets: 0,
            jobs_max: options.jobs_max,
            events_max: options.events_max,
            visits: vec![Visits::default(); network.queues.len() * network.classes].into(),
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
            if self.events >= self.next_watch {
                self.watch(&is_stopped)?;
            }
        }
        self.refuse_deadlock()?;
        if until != NEVER {
            self.now = until;
        }
        Ok(())
    }

    #[inline]
    fn ring(&mut self, clock: usize) {
        // The station that chooses next, or `NONE`: whose server has just ended does so before all others.
        let mut station = NONE;
        if clock < self.network.timers.start {
            station = self.finish(clock);
        } else if clock < self.network.timers.end {
            self.calendar.set(clock, NEVER);
            self.touch(self.timers[clock - self.network.timers.start]);
        } else {
            self.arrive(clock - self.network.timers.end);
        }
        // Usually one station, whose choice touches no other.
        let mut next = 0;
        loop {
            if !S::PLAIN && self.has_freed {
                self.release();
            }
            if station == NONE {
                let Some(&touched) = self.touched.get(next) else {
                    break;
                };
                station = touched;
                next += 1;
            }
            self.stations[station as usize].touched = false;
            self.choose(station as usize);
            station = NONE;
        }
        self.touched.clear();
    }

    #[cold]
    fn watch(&mut self, is_stopped: &impl Fn() -> bool) -> Result<(), ModelError> {
        if is_stopped() {
            return Err(ModelError::Stopped);
        }
        self.refuse_deadlock()?;
        let events = self.events - self.last_watch;
        self.last_watch = self.events;
        self.next_watch = self.events + EVENTS_UNWATCHED;
        self.events_watched += events;
        if self.events_watched > self.events_max {
            return Err(ModelError::TooManyEvents {
                events: self.events_watched.to_string(),
                time_s: seconds(self.now),
                events_max: self.events_max,
            });
        }
        self.events_standing = if self.now == self.watched_at {
            self.events_standing + events
        } else {
            0
        };
        self.watched_at = self.now;
        // A saturated sum is no time any more.
        if self.now > u64::MAX / 2 {
            return Err(ModelError::EndOfTime);
        }
        if self.jobs.inside() > self.jobs_max {
            return Err(ModelError::TooManyJobs {
                jobs: self.jobs.inside(),
                queue: self.greatest_queue(|queue, _| queue.length.now),
                time_s: seconds(self.now),
            });
        }
        if self.events_standing >= EVENTS_STANDING {
            let classes = self.network.classes;
            return Err(ModelError::Standstill {
                events: self.events_standing,
                queue: self.greatest_queue(|_, number| {
                    let own = &self.visits.all()[number * classes..(number + 1) * classes];
                    own.iter().map(|visits| visits.arrived).sum()
                }),
                time_s: seconds(self.now),
            });
        }
        Ok(())
    }

    /// The name of the queue of which something is greatest.
    fn greatest_queue(&self, of: impl Fn(&QueueState, usize) -> u64) -> String {
        let queues = self.queues.all().iter().enumerate();
        let greatest = queues.max_by_key(|&(number, queue)| of(queue, number));
        greatest.map_or(String::new(), |(number, _)| {
            self.network.model.queues[number].name.clone()
        })
    }

    /// Forgets what was counted so far: the warm-up is over.
    pub fn restart_counting(&mut self) {
        self.settle_work();
        self.counted_since = self.now;
        self.events_watched += self.events - self.last_watch;
        self.events = 0;
        self.last_watch = 0;
        self.next_watch = EVENTS_UNWATCHED;
        for queue in self.queues.all_mut() {
            queue.length.restart(self.now);
            queue.work = 0;
        }
        for station in self.stations.all_mut() {
            station.shared_work = 0;
            station.blocked.total = 0;
        }
        self.visits.all_mut().fill(Visits::default());
        self.departures.fill_with(Departures::new);
        self.balance = Balance {
            inside_before: self.jobs.inside() as u64,
            ..Balance::default()
        };
        self.trace = Trace::default();
    }

    /// Books the work that is being done up to now.
    pub fn settle_work(&mut self) {
        for server in self
            .servers
            .all_mut()
            .iter_mut()
            .filter(|server| server.job != NONE && server.job != HELD)
        {
            self.queues[server.queue as usize].work += u128::from(self.now - server.began);
            server.began = self.now;
        }
        for station in 0..self.network.stations.len() {
            self.book_shared(station);
            self.stations[station].blocked.settle(self.now);
        }
    }
}

/// A service that does not always take the same time.
pub(super) const DRAWN: u64 = u64::MAX;

fn fixed_time(service: &ServiceTime) -> u64 {
    match service {
        ServiceTime::Fixed(time) => *time,
        ServiceTime::PerByte { .. } | ServiceTime::Drawn { .. } => DRAWN,
    }
}

fn blocking(station: &StationPlan, queues: &[QueuePlan]) -> u64 {
    let own = station.levels.iter().enumerate().filter(|(_, level)| {
        let queue = level.alone();
        queue != NONE && queues[queue as usize].blocks
    });
    own.fold(0, |bits, (level, _)| bits | bit(level as u32))
}

/// The bit of a level among those that are ready.
#[inline]
pub(super) fn bit(level: u32) -> u64 {
    1 << level
}
