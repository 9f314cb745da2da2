//! A model with names resolved and everything checked that can be checked before it runs.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use super::amount::Draw;
use super::check;
use super::error::ModelError;
use super::jobs::NONE;
use super::model::{
    Blocking, Frees, Model, Policy, Service, Station, StationKind, Tags, Transition, Visited,
};
use super::names::Names;
use super::shape;
use super::stability;
use super::time::{picoseconds, whole};
use super::traces::Traces;
use crate::laws::Generator;

/// No limit.
pub(super) const UNLIMITED: u64 = u64::MAX;

/// A model that can be run.
///
/// A *place* is a queue or, counted on from the queues, a sink; where packets go from is a queue or,
/// counted on from the queues, a source. Clocks are numbered: the servers in the order of their
/// stations, then the timers of polling policies, then the sources.
#[derive(Clone, Debug)]
pub struct Network {
    pub(super) model: Model,
    pub(super) sources: Vec<SourcePlan>,
    pub(super) stations: Vec<StationPlan>,
    pub(super) queues: Vec<QueuePlan>,
    // of [queue][class]
    pub(super) services: Vec<ServiceTime>,
    // of [queue][class]: whether a service is for the class
    pub(super) is_served: Vec<bool>,
    // of [queue or source][class]
    pub(super) ways: Vec<Ways>,
    pub(super) classes: usize,
    pub(super) timers: Range<usize>,
    pub(super) clocks: usize,
    /// Arrivals at sources and queues per picosecond, as far as they are known before a run: there are no fewer.
    pub(super) arrivals_per_ps: f64,
    /// Whether stations that block after service stand in a circle.
    pub(super) can_deadlock: bool,
}

#[derive(Clone, Debug)]
pub(super) struct SourcePlan {
    pub class: u16,
    pub gap: Draw,
    pub size: Draw,
    pub packets: u64,
    /// What every gap is multiplied by.
    pub stretch: f64,
}

impl SourcePlan {
    /// Whether it ends by itself: after so many packets, or with one of its traces.
    pub fn ends(&self) -> bool {
        let is_recorded = |draw: &Draw| matches!(draw, Draw::Trace(..));
        self.packets != u64::MAX || is_recorded(&self.gap) || is_recorded(&self.size)
    }
}

#[derive(Clone, Debug)]
pub(super) struct StationPlan {
    pub kind: StationKind,
    pub servers: usize,
    pub first_clock: usize,
    pub levels: Vec<LevelPlan>,
}

#[derive(Clone, Debug)]
pub(super) struct LevelPlan {
    pub priority: u32,
    pub queues: Vec<u32>,
    pub policy: PolicyPlan,
}

impl LevelPlan {
    /// Its queue, if that has the level to itself, first come first served; otherwise `NONE`.
    pub fn alone(&self) -> u32 {
        match self.policy {
            PolicyPlan::Single => self.queues[0],
            _ => NONE,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PolicyPlan {
    /// One queue, first come first served: what most levels are.
    Single,
    Fcfs,
    RoundRobin {
        quantum: u64,
    },
    Polling {
        batch: u32,
        budget: u32,
        budget_time: u64,
        rest: u64,
        visit: u64,
        /// Whether the server goes to empty queues, too: see `walk`.
        walks: bool,
        timer: usize,
    },
    WeightedFair(Tags),
}

impl PolicyPlan {
    pub fn polls(self) -> bool {
        matches!(self, Self::Polling { .. })
    }

    /// Whether the server goes around among all queues, empty or not.
    pub fn walks(self) -> bool {
        matches!(self, Self::Polling { walks: true, .. })
    }
}

#[derive(Clone, Debug)]
pub(super) struct QueuePlan {
    pub station: u32,
    pub level: u32,
    /// The bit of its level among those that are ready.
    pub bit: u64,
    /// Whether it has its level to itself, first come first served.
    pub is_alone: bool,
    /// The longest stretch of work in it.
    pub quantum: u64,
    pub weight: f64,
    pub capacity_packets: u64,
    pub capacity_bytes: u64,
    pub frees_at_end: bool,
    pub batch_packets: u32,
    pub batch_cost: u64,
    /// Whether one of its ways on blocks before service.
    pub blocks: bool,
    /// Whether one of its ways on blocks after service.
    pub waits: bool,
    /// Stations with a queue that this one blocks when it is full.
    pub upstream: Vec<u32>,
}

/// The time that a packet's service takes, in picoseconds.
#[derive(Clone, Debug)]
pub(super) enum ServiceTime {
    Fixed(u64),
    PerByte {
        base: f64,
        per_byte: f64,
    },
    Drawn {
        law: Draw,
        factor: f64,
        base: f64,
        per_byte: f64,
    },
}

impl ServiceTime {
    /// The time for a packet of this length, unless it varies besides.
    #[inline]
    pub fn of_length(&self, bytes: u32) -> Option<u64> {
        match self {
            Self::Fixed(time) => Some(*time),
            Self::PerByte { base, per_byte } => Some(whole(f64::from(bytes) * *per_byte + *base)),
            Self::Drawn { .. } => None,
        }
    }

    pub fn mean(&self, bytes: f64) -> f64 {
        match self {
            Self::Fixed(time) => *time as f64,
            Self::PerByte { base, per_byte } => base + per_byte * bytes,
            Self::Drawn {
                law,
                factor,
                base,
                per_byte,
            } => law.mean(bytes) * factor + base + per_byte * bytes,
        }
    }

    #[inline]
    pub fn draw(&mut self, bytes: u32, generator: &mut Generator) -> u64 {
        if let Some(time) = self.of_length(bytes) {
            return time;
        }
        let Self::Drawn {
            law,
            factor,
            base,
            per_byte,
        } = self
        else {
            unreachable!("all others follow from the length");
        };
        // A trace that has ended is at its first value again.
        let value = law
            .next(bytes, generator)
            .or_else(|| law.next(bytes, generator))
            .unwrap_or(0.0);
        whole(value * *factor + f64::from(bytes) * *per_byte + *base)
    }
}

/// Where packets of a class go on from a queue or source.
#[derive(Clone, Debug)]
pub(super) struct Ways {
    /// The place, where there is one way without a choice or another class, as mostly; or `NONE`: see `all`.
    pub only: u32,
    /// Whether that way blocks, so that the place there is reserved.
    pub only_blocks: bool,
    /// Queues that must have room before the service starts.
    pub blocking: Box<[u32]>,
    /// One for the packet itself, then one for each clone.
    pub all: Box<[Way]>,
}

impl From<Vec<Way>> for Ways {
    fn from(all: Vec<Way>) -> Self {
        let (only, only_blocks) = match &all[..] {
            [way] if way.choices.is_empty() && way.becomes.is_none() => (way.place, way.blocks),
            _ => (NONE, false),
        };
        let blocking = all.iter().filter(|way| way.blocks);
        Self {
            only,
            only_blocks,
            blocking: blocking.map(|way| way.place).collect(),
            all: all.into(),
        }
    }
}

/// Where one copy goes.
#[derive(Clone, Debug)]
pub(super) struct Way {
    /// The only place, or the first one.
    pub place: u32,
    /// Several places with the probability up to each; empty when there is only one.
    pub choices: Vec<(f64, u32)>,
    pub becomes: Option<u16>,
    pub blocks: bool,
}

impl Way {
    /// The classes and places that it leads packets of a class to.
    pub fn ends(&self, class: usize) -> impl Iterator<Item = (usize, usize)> {
        let class = self.becomes.map_or(class, usize::from);
        let choices = self.choices.iter().map(|choice| choice.1);
        let single = self.choices.is_empty().then_some(self.place);
        choices
            .chain(single)
            .map(move |place| (class, place as usize))
    }
}

impl Network {
    /// Resolves and checks a model.
    ///
    /// # Errors
    /// The first thing that is wrong: a name, a number, a part that no packet reaches, packets that
    /// have no way on, blocking transitions in a circle, or, unless `allow_unstable`, a queue
    /// that would grow for ever.
    pub fn new(model: Model, traces: &Traces, allow_unstable: bool) -> Result<Self, ModelError> {
        Self::until_stopped(model, traces, allow_unstable, &AtomicBool::new(false))
    }

    /// As `new`, and ends early when `stop` is set.
    ///
    /// # Errors
    /// Those of `new`; [`ModelError::Stopped`].
    pub fn until_stopped(
        model: Model,
        traces: &Traces,
        allow_unstable: bool,
        stop: &AtomicBool,
    ) -> Result<Self, ModelError> {
        let names = Names::of(&model)?;
        check::numbers(&model, &names)?;
        let classes = model.classes.len();

        let mut clocks = 0;
        let mut stations = Vec::new();
        for station in &model.stations {
            let servers = match station.kind {
                StationKind::NonPreemptive | StationKind::PreemptiveResume => {
                    station.servers as usize
                }
                StationKind::ProcessorSharing | StationKind::Delay => 1,
            };
            stations.push(StationPlan {
                kind: station.kind,
                servers: station.servers as usize,
                first_clock: clocks,
                levels: Vec::new(),
            });
            clocks += servers;
        }
        let first_timer = clocks;
        for (plan, levels) in stations
            .iter_mut()
            .zip(levels(&model, &names, &mut clocks)?)
        {
            plan.levels = levels;
        }
        let timers = first_timer..clocks;

        let (mut services, mut is_served) = (Vec::new(), Vec::new());
        let mut queues = Vec::new();
        for queue in &model.queues {
            let number = names.station(&queue.station, &format!("queue {:?}", queue.name))?;
            let levels = &stations[number].levels;
            let level = levels
                .iter()
                .position(|level| level.priority == queue.priority);
            let level = level.unwrap_or_default();
            let policy = levels[level].policy;
            queues.push(QueuePlan {
                station: number as u32,
                level: level as u32,
                bit: 1 << level,
                is_alone: policy == PolicyPlan::Single,
                quantum: match policy {
                    PolicyPlan::RoundRobin { quantum } => quantum,
                    _ => UNLIMITED,
                },
                weight: queue.weight,
                capacity_packets: queue.capacity_packets.map_or(UNLIMITED, u64::from),
                capacity_bytes: queue.capacity_bytes.unwrap_or(UNLIMITED),
                frees_at_end: queue.frees == Frees::AtEnd,
                batch_packets: queue.batch.as_ref().map_or(1, |batch| batch.packets),
                batch_cost: queue
                    .batch
                    .as_ref()
                    .map_or(0, |batch| picoseconds(batch.cost_ns)),
                blocks: queue.blocking == Blocking::BeforeService
                    && queue.to.iter().any(|way| way.blocks),
                waits: queue.blocking == Blocking::AfterService,
                upstream: Vec::new(),
            });
            let place = format!("queue {:?}, law_ns", queue.name);
            let clock_mhz = model.stations[number].clock_mhz;
            // The first service that is for a class.
            let mut own = vec![None; classes];
            for service in &queue.service {
                let time = service_time(service, clock_mhz, &place, traces)?;
                for class in names.classes(&service.classes, &place)? {
                    own[class].get_or_insert_with(|| time.clone());
                }
            }
            is_served.extend(own.iter().map(Option::is_some));
            services.extend(
                own.into_iter()
                    .map(|time| time.unwrap_or(ServiceTime::Fixed(0))),
            );
        }

        let mut ways = Vec::new();
        let origins = model
            .queues
            .iter()
            .map(|q| (format!("queue {:?}", q.name), &q.to));
        let origins = origins.chain(
            model
                .sources
                .iter()
                .map(|s| (format!("source {:?}", s.name), &s.to)),
        );
        for (origin, (place, transitions)) in origins.enumerate() {
            let mut own = vec![Vec::new(); classes];
            for transition in transitions {
                let way = way(transition, &names, &place)?;
                if way.blocks && origin < queues.len() && queues[origin].blocks {
                    let station = queues[origin].station;
                    let upstream = &mut queues[way.place as usize].upstream;
                    if !upstream.contains(&station) {
                        upstream.push(station);
                    }
                }
                for class in names.classes(&transition.classes, &place)? {
                    own[class].push(way.clone());
                }
            }
            ways.extend(own.into_iter().map(Ways::from));
        }

        let mut sources = Vec::new();
        for source in &model.sources {
            let place = format!("source {:?}", source.name);
            let gap = source.gap_ns.draw(&format!("{place}, gap_ns"), traces)?;
            let size_place = format!("{place}, size_bytes");
            let size = source.size_bytes.draw(&size_place, traces)?;
            let stretch = 1.0 / source.rate_factor;
            check::gap(&gap, stretch, source.packets.is_some(), &place)?;
            check::size(&size, &source.size_bytes, &size_place)?;
            sources.push(SourcePlan {
                class: names.class(&source.class, &place)? as u16,
                gap,
                size,
                packets: source.packets.unwrap_or(u64::MAX),
                stretch,
            });
        }
        let clocks = clocks + sources.len();
        let mut network = Self {
            model,
            sources,
            stations,
            queues,
            services,
            is_served,
            ways,
            classes,
            timers,
            clocks,
            arrivals_per_ps: 0.0,
            can_deadlock: false,
        };
        shape::reached(&network)?;
        network.can_deadlock = shape::circles_of_blocking(&network)?;
        let flows = stability::Flows::of(&network, stop)?;
        network.arrivals_per_ps = flows.arrivals_per_ps();
        if !allow_unstable {
            flows.check(&network)?;
        }
        network.settle_services();
        Ok(network)
    }

    /// Works out what follows from the length of a packet, for classes that have only one length.
    fn settle_services(&mut self) {
        for class in 0..self.classes {
            let Some(bytes) = self.length(class) else {
                continue;
            };
            for service in self.services.iter_mut().skip(class).step_by(self.classes) {
                if let Some(time) = service.of_length(bytes) {
                    *service = ServiceTime::Fixed(time);
                }
            }
        }
    }

    /// The length of all packets of a class, if they have the same.
    fn length(&self, class: usize) -> Option<u32> {
        let class = class as u16;
        let mut ways = self.ways.iter().flat_map(|ways| &ways.all);
        if ways.any(|way| way.becomes == Some(class)) {
            return None;
        }
        let sources = self.sources.iter().filter(|source| source.class == class);
        let mut lengths = sources.map(|source| source.size.constant_bytes());
        let first = lengths.next()?;
        lengths.all(|length| length == first).then_some(first)?
    }

    /// The model that this network is.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Whether all its sources end by themselves.
    pub(super) fn ends(&self) -> bool {
        self.sources.iter().all(SourcePlan::ends)
    }

    pub(super) fn ways_of(&self, origin: usize, class: usize) -> &[Way] {
        &self.ways[origin * self.classes + class].all
    }
}

fn service_time(
    service: &Service,
    clock_mhz: Option<f64>,
    place: &str,
    traces: &Traces,
) -> Result<ServiceTime, ModelError> {
    let factor = 1000.0 * clock_factor(service, clock_mhz);
    let (base, per_byte) = (service.fixed_ns * 1000.0, service.per_byte_ns * factor);
    Ok(match service.law_ns.draw(place, traces)? {
        Draw::Constant(value) if per_byte == 0.0 => {
            ServiceTime::Fixed(whole(value * factor + base))
        }
        Draw::Constant(value) => ServiceTime::PerByte {
            base: value * factor + base,
            per_byte,
        },
        Draw::Gaps(_) => {
            return Err(ModelError::value(
                place,
                "the law",
                "a process of gaps",
                "a law of times",
            ));
        }
        law => ServiceTime::Drawn {
            law,
            factor,
            base,
            per_byte,
        },
    })
}

/// By how much a service takes longer than it was measured.
fn clock_factor(service: &Service, clock_mhz: Option<f64>) -> f64 {
    match (service.measured_at_mhz, clock_mhz) {
        (Some(measured), Some(clock)) => measured / clock,
        _ => 1.0,
    }
}

/// The levels of every station.
fn levels(
    model: &Model,
    names: &Names,
    clocks: &mut usize,
) -> Result<Vec<Vec<LevelPlan>>, ModelError> {
    let mut all = vec![Vec::<LevelPlan>::new(); model.stations.len()];
    for (index, queue) in model.queues.iter().enumerate() {
        let place = format!("queue {:?}", queue.name);
        let levels = &mut all[names.station(&queue.station, &place)?];
        let is_own = |level: &&mut LevelPlan| level.priority == queue.priority;
        match levels.iter_mut().find(is_own) {
            Some(level) => level.queues.push(index as u32),
            None => levels.push(LevelPlan {
                priority: queue.priority,
                queues: vec![index as u32],
                policy: PolicyPlan::Fcfs,
            }),
        }
    }
    for (levels, station) in all.iter_mut().zip(&model.stations) {
        set_policies(levels, station, clocks);
    }
    Ok(all)
}

fn set_policies(levels: &mut [LevelPlan], station: &Station, clocks: &mut usize) {
    levels.sort_by_key(|level| level.priority);
    for level in levels {
        let named = station
            .policies
            .iter()
            .find(|policy| policy.priority == level.priority);
        level.policy = match named.map(|named| &named.policy) {
            None | Some(Policy::Fcfs) if level.queues.len() == 1 => PolicyPlan::Single,
            None | Some(Policy::Fcfs) => PolicyPlan::Fcfs,
            Some(Policy::RoundRobin { quantum_ns }) => PolicyPlan::RoundRobin {
                quantum: quantum_ns.map_or(UNLIMITED, picoseconds),
            },
            Some(Policy::Polling {
                batch,
                budget,
                budget_ns,
                yield_ns,
                visit_ns,
                visits,
            }) => {
                *clocks += 1;
                PolicyPlan::Polling {
                    batch: *batch,
                    budget: budget.unwrap_or(u32::MAX),
                    budget_time: budget_ns.map_or(UNLIMITED, picoseconds),
                    rest: picoseconds(*yield_ns),
                    visit: picoseconds(*visit_ns),
                    // Switching that takes no time is the same, whichever queues are visited.
                    walks: *visits == Visited::All && picoseconds(*visit_ns) > 0,
                    timer: *clocks - 1,
                }
            }
            Some(Policy::WeightedFair { tags }) => PolicyPlan::WeightedFair(*tags),
        };
    }
}

fn way(transition: &Transition, names: &Names, origin: &str) -> Result<Way, ModelError> {
    let mut choices = Vec::new();
    let mut up_to = 0.0;
    for choice in &transition.to {
        up_to += choice.probability;
        choices.push((up_to, names.place(&choice.place, origin)? as u32));
    }
    let place = choices[0].1;
    if choices.len() == 1 {
        choices.clear();
    }
    Ok(Way {
        place,
        choices,
        becomes: match &transition.becomes {
            Some(class) => Some(names.class(class, origin)? as u16),
            None => None,
        },
        // A sink is never full; where there is a choice, it is known only when the packet goes there.
        blocks: transition.blocks && (transition.to.len() > 1 || (place as usize) < names.queues()),
    })
}
