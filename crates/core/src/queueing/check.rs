//! What is checked before a model runs.

use super::error::ModelError;
use super::model::{Model, Policy, Queue, StationKind, Transition};
use super::network::{Network, service_of};

/// Priorities of a station: the engine keeps a bit for each.
const LEVELS_MAX: usize = 64;

/// Names of a model's parts, each once.
pub(super) struct Names<'m> {
    model: &'m Model,
}

impl<'m> Names<'m> {
    /// Checks that no name stands for two things.
    pub fn of(model: &'m Model) -> Result<Self, ModelError> {
        let places = model.queues.iter().map(|q| &q.name).chain(&model.sinks);
        once("class", model.classes.iter())?;
        once("station", model.stations.iter().map(|s| &s.name))?;
        once("source", model.sources.iter().map(|s| &s.name))?;
        once("queue or sink", places)?;
        for (what, count) in [
            ("classes", model.classes.len()),
            ("sources", model.sources.len()),
        ] {
            if count == 0 {
                return Err(ModelError::value("the model", what, "[]", "at least one"));
            }
        }
        Ok(Self { model })
    }

    pub fn queues(&self) -> usize {
        self.model.queues.len()
    }

    pub fn station(&self, name: &str, place: &str) -> Result<usize, ModelError> {
        let names = || self.model.stations.iter().map(|station| &station.name);
        position(names(), name).ok_or_else(|| ModelError::unknown(place, "station", name, names()))
    }

    pub fn class(&self, name: &str, place: &str) -> Result<usize, ModelError> {
        let names = || self.model.classes.iter();
        position(names(), name).ok_or_else(|| ModelError::unknown(place, "class", name, names()))
    }

    pub fn place(&self, name: &str, origin: &str) -> Result<usize, ModelError> {
        let names = || {
            self.model
                .queues
                .iter()
                .map(|q| &q.name)
                .chain(&self.model.sinks)
        };
        position(names(), name)
            .ok_or_else(|| ModelError::unknown(origin, "queue or sink", name, names()))
    }
}

fn position<'a>(mut names: impl Iterator<Item = &'a String>, name: &str) -> Option<usize> {
    names.position(|known| known == name)
}

fn once<'a>(kind: &'static str, names: impl Iterator<Item = &'a String>) -> Result<(), ModelError> {
    let mut sorted: Vec<&String> = names.collect();
    sorted.sort();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(ModelError::Twice {
            kind,
            name: pair[0].clone(),
        }),
        None => Ok(()),
    }
}

/// Checks every number of a model, and every class that a service or transition names.
pub(super) fn numbers(model: &Model) -> Result<(), ModelError> {
    let names = Names { model };
    for source in &model.sources {
        let place = format!("source {:?}", source.name);
        transitions(&source.to, &place, &names)?;
        if source.to.iter().any(|way| way.blocks) {
            return Err(ModelError::value(
                &place,
                "blocks",
                true,
                "false: a source cannot wait; put a queue behind it",
            ));
        }
    }
    for station in &model.stations {
        let place = format!("station {:?}", station.name);
        if station.servers == 0 {
            return Err(ModelError::value(&place, "servers", 0, "at least 1"));
        }
        if let Some(clock) = station.clock_mhz {
            above_zero(&place, "clock_mhz", clock)?;
        }
        let own = model
            .queues
            .iter()
            .filter(|queue| queue.station == station.name);
        let mut priorities: Vec<u32> = own.map(|queue| queue.priority).collect();
        priorities.sort_unstable();
        priorities.dedup();
        if priorities.len() > LEVELS_MAX {
            let expected = format!("{LEVELS_MAX} different ones at most");
            return Err(ModelError::value(
                &place,
                "the number of priorities",
                priorities.len(),
                expected,
            ));
        }
        for level in &station.policies {
            policy(&level.policy, &place)?;
            if !matches!(
                station.kind,
                StationKind::NonPreemptive | StationKind::PreemptiveResume
            ) {
                return Err(ModelError::value(
                    &place,
                    "policies",
                    "given",
                    "none: all its packets share it",
                ));
            }
            if !model
                .queues
                .iter()
                .any(|q| q.station == station.name && q.priority == level.priority)
            {
                let field = format!("policies, priority {}", level.priority);
                return Err(ModelError::value(
                    &place,
                    field,
                    "of no queue",
                    "the priority of one of its queues",
                ));
            }
        }
    }
    model
        .queues
        .iter()
        .try_for_each(|each| queue(each, model, &names))
}

fn queue(queue: &Queue, model: &Model, names: &Names) -> Result<(), ModelError> {
    let place = format!("queue {:?}", queue.name);
    let station = &model.stations[names.station(&queue.station, &place)?];
    above_zero(&place, "weight", queue.weight)?;
    if queue.capacity_packets == Some(0) {
        let expected =
            "at least 1; a station without waiting places has capacity 1 and frees = \"at-end\"";
        return Err(ModelError::value(&place, "capacity_packets", 0, expected));
    }
    if queue.service.is_empty() {
        return Err(ModelError::value(&place, "service", "[]", "at least one"));
    }
    for service in &queue.service {
        let place = format!("{place}, service");
        not_negative(&place, "per_byte_ns", service.per_byte_ns)?;
        not_negative(&place, "fixed_ns", service.fixed_ns)?;
        for class in &service.classes {
            names.class(class, &place)?;
        }
        if let Some(measured) = service.measured_at_mhz {
            above_zero(&place, "measured_at_mhz", measured)?;
            if station.clock_mhz.is_none() {
                let expected = format!("a clock_mhz at station {:?} to scale to", station.name);
                return Err(ModelError::value(
                    &place,
                    "measured_at_mhz",
                    measured,
                    expected,
                ));
            }
        }
    }
    if let Some(batch) = &queue.batch {
        if batch.packets == 0 {
            return Err(ModelError::value(&place, "batch.packets", 0, "at least 1"));
        }
        not_negative(&place, "batch.cost_ns", batch.cost_ns)?;
    }
    let shares = matches!(
        station.kind,
        StationKind::ProcessorSharing | StationKind::Delay
    );
    if shares && (queue.batch.is_some() || queue.to.iter().any(|way| way.blocks)) {
        let expected =
            "neither batches nor blocking transitions at a station that all packets share";
        return Err(ModelError::value(
            &place,
            "station",
            &station.name,
            expected,
        ));
    }
    // Who waits for his next quantum holds a place further on, for which those before him would wait.
    let mut policies = station
        .policies
        .iter()
        .filter(|level| level.priority == queue.priority);
    let has_quantum = policies.any(|level| {
        matches!(
            level.policy,
            Policy::RoundRobin {
                quantum_ns: Some(_)
            }
        )
    });
    if has_quantum && queue.to.iter().any(|way| way.blocks) {
        let expected = "no quantum before a blocking transition";
        return Err(ModelError::value(&place, "quantum_ns", "given", expected));
    }
    if queue.batch.is_some() && queue.to.iter().any(|way| way.blocks) {
        return Err(ModelError::value(
            &place,
            "batch",
            "given",
            "no batch before a blocking transition",
        ));
    }
    transitions(&queue.to, &place, names)
}

fn transitions(ways: &[Transition], place: &str, names: &Names) -> Result<(), ModelError> {
    for way in ways {
        for class in way.classes.iter().chain(&way.becomes) {
            names.class(class, place)?;
        }
        for choice in &way.to {
            names.place(&choice.place, place)?;
            not_negative(place, "probability", choice.probability)?;
        }
        let sum: f64 = way.to.iter().map(|choice| choice.probability).sum();
        if (sum - 1.0).abs() > 1e-9 {
            return Err(ModelError::value(
                place,
                "the sum of the probabilities of a transition",
                sum,
                "1",
            ));
        }
        if way.blocks && way.to.len() > 1 {
            return Err(ModelError::value(
                place,
                "blocks",
                true,
                "a single place that it leads to",
            ));
        }
    }
    Ok(())
}

fn policy(policy: &Policy, place: &str) -> Result<(), ModelError> {
    match policy {
        Policy::Fcfs | Policy::WeightedFair { .. } => Ok(()),
        Policy::RoundRobin { quantum_ns } => {
            quantum_ns.map_or(Ok(()), |q| above_zero(place, "quantum_ns", q))
        }
        Policy::Polling {
            batch,
            budget,
            budget_ns,
            yield_ns,
            visit_ns,
        } => {
            for (field, value) in [("batch", Some(*batch)), ("budget", *budget)] {
                if value == Some(0) {
                    return Err(ModelError::value(place, field, 0, "at least 1"));
                }
            }
            if let Some(budget_ns) = budget_ns {
                above_zero(place, "budget_ns", *budget_ns)?;
            }
            not_negative(place, "yield_ns", *yield_ns)?;
            not_negative(place, "visit_ns", *visit_ns)
        }
    }
}

fn above_zero(place: &str, field: &str, value: f64) -> Result<(), ModelError> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(ModelError::value(
        place,
        field,
        value,
        "a finite number above 0",
    ))
}

fn not_negative(place: &str, field: &str, value: f64) -> Result<(), ModelError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(ModelError::value(
        place,
        field,
        value,
        "a finite number that is not negative",
    ))
}

/// Checks that packets reach every queue, station and sink, and have a way on wherever they come.
pub(super) fn reached(network: &Network) -> Result<(), ModelError> {
    let (model, classes, queues) = (&network.model, network.classes, network.queues.len());
    let mut seen = vec![false; (queues + model.sinks.len()) * classes];
    let mut open: Vec<(usize, usize)> = Vec::new();
    let sources = network.sources.iter().enumerate();
    open.extend(sources.map(|(number, source)| (queues + number, usize::from(source.class))));
    // Sources share their numbers with sinks: the first round is theirs, then only queues go on.
    let mut is_source = true;
    while !open.is_empty() {
        for (origin, class) in std::mem::take(&mut open) {
            let ways = network.ways_of(origin, class);
            if ways.is_empty() {
                let class = model.classes[class].clone();
                let queue = if is_source {
                    &model.sources[origin - queues].name
                } else {
                    &model.queues[origin].name
                };
                return Err(ModelError::DeadEnd {
                    queue: queue.clone(),
                    class,
                });
            }
            for way in ways {
                let class = way.becomes.map_or(class, usize::from);
                let choices = way.choices.iter().map(|choice| choice.1).chain([way.place]);
                for place in choices.map(|place| place as usize) {
                    if std::mem::replace(&mut seen[place * classes + class], true)
                        || place >= queues
                    {
                        continue;
                    }
                    let queue = &model.queues[place];
                    if service_of(&queue.service, &model.classes[class]).is_none() {
                        return Err(ModelError::value(
                            &format!("queue {:?}", queue.name),
                            "service",
                            format!("given for other classes than {:?}", model.classes[class]),
                            "one for every class that comes here",
                        ));
                    }
                    open.push((place, class));
                }
            }
        }
        is_source = false;
    }
    let is_reached = |place: usize| seen[place * classes..(place + 1) * classes].contains(&true);
    let names = model
        .queues
        .iter()
        .map(|q| ("queue", &q.name))
        .chain(model.sinks.iter().map(|s| ("sink", s)));
    for (place, (kind, name)) in names.enumerate() {
        if !is_reached(place) {
            return Err(ModelError::Unreachable {
                kind,
                name: name.clone(),
            });
        }
    }
    match model
        .stations
        .iter()
        .find(|s| model.queues.iter().all(|q| q.station != s.name))
    {
        Some(idle) => Err(ModelError::Unreachable {
            kind: "station",
            name: idle.name.clone(),
        }),
        None => Ok(()),
    }
}

/// Checks that blocking transitions do not lead in a circle.
pub(super) fn no_circle_of_blocking(network: &Network) -> Result<(), ModelError> {
    let queues = network.queues.len();
    let next = |queue: usize| -> Vec<usize> {
        let ways = (0..network.classes).flat_map(|class| network.ways_of(queue, class));
        ways.filter(|way| way.blocks)
            .map(|way| way.place as usize)
            .collect()
    };
    // Queues whose blocking ways all end are taken away until only circles are left.
    let mut open: Vec<bool> = vec![true; queues];
    while let Some(done) = (0..queues).find(|&q| open[q] && !next(q).iter().any(|&to| open[to])) {
        open[done] = false;
    }
    let Some(mut at) = open.iter().position(|&open| open) else {
        return Ok(());
    };
    let mut walked = vec![at];
    loop {
        at = next(at).into_iter().find(|&to| open[to]).unwrap_or(at);
        let begin = walked.iter().position(|&queue| queue == at);
        walked.push(at);
        if let Some(begin) = begin {
            let names = walked[begin..]
                .iter()
                .map(|&queue| network.model.queues[queue].name.clone());
            return Err(ModelError::Deadlock {
                queues: names.collect(),
            });
        }
    }
}
