//! Builds a network from a model: resolves the names, checks the numbers, then the whole.

use std::sync::atomic::AtomicBool;

use super::blocking_cycles::check_blocking_cycles;
use super::check;
use super::error::ModelError;
use super::levels::{LevelPlan, PolicyPlan};
use super::model::{Blocking, Frees, Model, Queue, Transition};
use super::names::Names;
use super::network::{Network, QueuePlan, StationPlan};
use super::reachability::check_reachability;
use super::routes::{Route, Routes};
use super::service_time::ServiceTime;
use super::sources::SourcePlan;
use super::time::picoseconds;
use super::traces::Traces;
use super::traffic::Traffic;

impl Network {
    /// Resolves and checks a model.
    ///
    /// # Errors
    /// The first problem found: a name, a number, a part that no packet reaches, packets without a route, a cycle of
    /// blocking transitions, or, unless `allow_unstable`, an unlimited queue with a load of 1 or more.
    pub fn new(model: Model, traces: &Traces, allow_unstable: bool) -> Result<Self, ModelError> {
        Self::until_stopped(model, traces, allow_unstable, &AtomicBool::new(false))
    }

    /// Does the same, and ends early when `stop` is set.
    ///
    /// # Errors
    /// Those of `new`; [`ModelError::Stopped`].
    pub fn until_stopped(
        model: Model,
        traces: &Traces,
        allow_unstable: bool,
        stop: &AtomicBool,
    ) -> Result<Self, ModelError> {
        let mut network = resolve(model, traces)?;
        check_reachability(&network)?;
        network.can_deadlock = check_blocking_cycles(&network)?;
        let traffic = Traffic::of(&network, stop)?;
        network.arrivals_per_ps = traffic.arrivals_per_ps();
        if !allow_unstable {
            traffic.check_stability(&network)?;
        }
        fix_service_times(&mut network);
        Ok(network)
    }
}

fn resolve(model: Model, traces: &Traces) -> Result<Network, ModelError> {
    let names = Names::new(&model)?;
    check::numbers(&model, &names)?;
    let stations = stations(&model, &names, traces)?;
    let mut queues = Vec::new();
    let mut services = Vec::new();
    for queue in &model.queues {
        queues.push(queue_plan(queue, &stations, &names)?);
        services.extend(services_of(queue, &model, &names, traces)?);
    }
    let mut routes = Vec::new();
    for (number, queue) in model.queues.iter().enumerate() {
        let place = format!("queue {:?}", queue.name);
        let own = routes_by_class(&queue.to, &names, &place, model.classes.len())?;
        for route in own.iter().flatten() {
            // A route that blocks before service leads to one queue.
            if route.blocks && queues[number].blocks_before_service {
                let station = queues[number].station;
                let upstream = &mut queues[route.place as usize].upstream;
                if !upstream.contains(&station) {
                    upstream.push(station);
                }
            }
        }
        routes.extend(own.into_iter().map(Routes::from));
    }
    for source in &model.sources {
        let place = format!("source {:?}", source.name);
        let own = routes_by_class(&source.to, &names, &place, model.classes.len())?;
        routes.extend(own.into_iter().map(Routes::from));
    }
    let sources = model.sources.iter();
    let sources = sources.map(|source| SourcePlan::new(source, &names, traces));
    let sources = sources.collect::<Result<_, _>>()?;
    let servers: usize = stations.iter().map(StationPlan::events).sum();
    let levels = stations.iter().flat_map(|station| &station.levels);
    let polling_levels = levels.filter_map(LevelPlan::polling).count();
    let polling_events = servers..servers + polling_levels;
    Ok(Network {
        classes: model.classes.len(),
        polling_events,
        model,
        sources,
        stations,
        queues,
        services,
        routes,
        arrivals_per_ps: 0.0,
        can_deadlock: false,
    })
}

fn stations(model: &Model, names: &Names, traces: &Traces) -> Result<Vec<StationPlan>, ModelError> {
    let (mut first_event, mut first_level) = (0, 0);
    let mut plans = Vec::new();
    let levels = LevelPlan::of_stations(model, names, traces)?;
    for (station, levels) in model.stations.iter().zip(levels) {
        let plan = StationPlan {
            kind: station.kind,
            servers: station.servers as usize,
            first_event,
            first_level,
            levels,
        };
        first_event += plan.events();
        first_level += plan.levels.len();
        plans.push(plan);
    }
    Ok(plans)
}

fn queue_plan(
    queue: &Queue,
    stations: &[StationPlan],
    names: &Names,
) -> Result<QueuePlan, ModelError> {
    let station = names.station(&queue.station, &format!("queue {:?}", queue.name))?;
    let mut levels = stations[station].levels.iter();
    let level = levels.position(|level| level.priority == queue.priority);
    let level = level.unwrap_or_default();
    let policy = stations[station].levels[level].policy;
    let batch = queue.batch.as_ref();
    let blocks = queue.to.iter().any(|transition| transition.blocks);
    Ok(QueuePlan {
        station: station as u32,
        level: level as u32,
        is_single: policy == PolicyPlan::Single,
        quantum: match policy {
            PolicyPlan::RoundRobin { quantum } => quantum,
            _ => u64::MAX,
        },
        weight: queue.weight,
        capacity_packets: queue.capacity_packets.map_or(u64::MAX, u64::from),
        capacity_bytes: queue.capacity_bytes.unwrap_or(u64::MAX),
        frees_at_end: queue.frees == Frees::AtEnd,
        batch_packets: batch.map_or(1, |batch| batch.packets),
        batch_time: batch.map_or(0, |batch| picoseconds(batch.cost_ns)),
        blocks_before_service: blocks && queue.blocking == Blocking::BeforeService,
        blocks_after_service: queue.blocking == Blocking::AfterService,
        upstream: Vec::new(),
    })
}

/// The service time of each class at a queue: the first one that is for the class.
fn services_of(
    queue: &Queue,
    model: &Model,
    names: &Names,
    traces: &Traces,
) -> Result<Vec<Option<ServiceTime>>, ModelError> {
    let place = format!("queue {:?}, time_ns", queue.name);
    let clock_mhz = model.stations[names.station(&queue.station, &place)?].clock_mhz;
    let mut by_class = vec![None; model.classes.len()];
    for service in &queue.service {
        let time = ServiceTime::new(service, clock_mhz, &place, traces)?;
        for class in names.classes(&service.classes, &place)? {
            by_class[class].get_or_insert_with(|| time.clone());
        }
    }
    Ok(by_class)
}

fn routes_by_class(
    transitions: &[Transition],
    names: &Names,
    place: &str,
    classes: usize,
) -> Result<Vec<Vec<Route>>, ModelError> {
    let mut by_class = vec![Vec::new(); classes];
    for transition in transitions {
        let route = Route::new(transition, names, place)?;
        for class in names.classes(&transition.classes, place)? {
            by_class[class].push(route.clone());
        }
    }
    Ok(by_class)
}

/// Computes the service times that depend on the length only, for classes whose packets all have the same length.
fn fix_service_times(network: &mut Network) {
    for class in 0..network.classes {
        let Some(bytes) = constant_length(network, class) else {
            continue;
        };
        let services = network.services.iter_mut();
        for service in services.skip(class).step_by(network.classes).flatten() {
            if let Some(time) = service.of_length(bytes) {
                *service = ServiceTime::Fixed(time);
            }
        }
    }
}

/// The length of all packets of a class, if it is the same.
fn constant_length(network: &Network, class: usize) -> Option<u32> {
    let class = class as u16;
    let mut routes = network.routes.iter().flat_map(|routes| &routes.all);
    if routes.any(|route| route.becomes == Some(class)) {
        return None;
    }
    let sources = network.sources.iter();
    let sources = sources.filter(|source| source.class == class);
    let mut lengths = sources.map(|source| source.size.constant_bytes());
    let first = lengths.next()?;
    lengths.all(|length| length == first).then_some(first)?
}
