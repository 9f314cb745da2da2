//! Checks the numbers of a model, each part by itself.

use std::collections::BTreeSet;

use super::error::ModelError;
use super::model::{
    Blocking, Model, Policy, Queue, Service, Source, Station, StationKind, Transition, Visited,
};
use super::names::Names;
use super::range::{above_zero, duration, not_negative, require};
use super::time::picoseconds;
use crate::distributions::number;

/// Maximum number of priorities of a station: the engine has a bit for each.
const LEVELS_MAX: usize = 64;

/// Maximum number of servers at all stations: each has an event slot.
const SERVERS_MAX: u64 = 100_000;

/// Maximum number of queues, sources and transitions, counted once for each of their classes: results have several
/// rows for each.
const TABLE_MAX: usize = 200_000;

/// Maximum number of sinks, counted once for each class: each has a latency histogram in every replication.
const SINKS_MAX: usize = 2_000;

/// Range of the factor on the rate of a source.
const RATE_FACTOR_MIN: f64 = 1e-9;
const RATE_FACTOR_MAX: f64 = 1e9;

/// Checks every number of a model, and every class that a service or a transition names.
pub(super) fn numbers(model: &Model, names: &Names) -> Result<(), ModelError> {
    sizes(model)?;
    for each in &model.sources {
        source(each, names)?;
    }
    // of [station]
    let mut priorities = vec![BTreeSet::new(); model.stations.len()];
    for queue in &model.queues {
        let place = format!("queue {:?}", queue.name);
        priorities[names.station(&queue.station, &place)?].insert(queue.priority);
    }
    for (each, priorities) in model.stations.iter().zip(&priorities) {
        station(each, priorities)?;
    }
    for each in &model.queues {
        queue(each, model, names)?;
    }
    Ok(())
}

/// Checks that the network fits into memory.
fn sizes(model: &Model) -> Result<(), ModelError> {
    let servers = model.stations.iter().map(|each| u64::from(each.servers));
    let servers: u64 = servers.sum();
    require(
        servers <= SERVERS_MAX,
        "the model",
        "the number of servers",
        servers,
        format!(
            "{SERVERS_MAX} at most at all stations; a station that serves all its packets at once is of kind delay"
        ),
    )?;
    let classes = model.classes.len();
    let of_queues = model.queues.iter().map(|queue| &queue.to);
    let of_sources = model.sources.iter().map(|source| &source.to);
    let mut rows = 0_usize;
    for transitions in of_queues.chain(of_sources) {
        let choices = transitions.iter().map(|transition| {
            let classes = match transition.classes.len() {
                0 => classes,
                named => named,
            };
            classes.saturating_mul(transition.to.len())
        });
        rows = rows.saturating_add(choices.fold(classes, usize::saturating_add));
    }
    let sinks = model.sinks.len().saturating_mul(classes);
    for (what, rows, rows_max) in [
        ("queues, sources and transitions", rows, TABLE_MAX),
        ("sinks", sinks, SINKS_MAX),
        ("classes", classes, usize::from(u16::MAX)),
    ] {
        let field = format!("the number of {what}, each times its classes,");
        let expected = format!("{rows_max} at most: use fewer classes or {what}");
        require(rows <= rows_max, "the model", field, rows, expected)?;
    }
    Ok(())
}

fn source(source: &Source, names: &Names) -> Result<(), ModelError> {
    let place = format!("source {:?}", source.name);
    transitions(&source.to, &place, names, Blocking::BeforeService)?;
    require(
        (RATE_FACTOR_MIN..=RATE_FACTOR_MAX).contains(&source.rate_factor),
        &place,
        "rate_factor",
        number(source.rate_factor),
        "a number from 1e-9 to 1e9",
    )?;
    require(
        !source.to.iter().any(|transition| transition.blocks),
        &place,
        "blocks",
        true,
        "false: a source cannot wait; put a queue behind it",
    )
}

fn station(station: &Station, priorities: &BTreeSet<u32>) -> Result<(), ModelError> {
    let place = format!("station {:?}", station.name);
    require(station.servers > 0, &place, "servers", 0, "at least 1")?;
    require(
        station.kind != StationKind::Delay || station.servers == 1,
        &place,
        "servers",
        station.servers,
        "none given: a delay serves all its packets at once",
    )?;
    if let Some(clock_mhz) = station.clock_mhz {
        above_zero(&place, "clock_mhz", clock_mhz)?;
    }
    require(
        priorities.len() <= LEVELS_MAX,
        &place,
        "the number of priorities",
        priorities.len(),
        format!("{LEVELS_MAX} different ones at most"),
    )?;
    let mut seen = BTreeSet::new();
    for level in &station.policies {
        policy(&level.policy, &place)?;
        let has_one_level = priorities.len() == 1
            && station.servers == 1
            && station.kind == StationKind::NonPreemptive;
        require(
            has_one_level || !level.policy.visits_all(),
            &place,
            "visits",
            "\"all\"",
            "\"nonempty\", or a non-preemptive station of one server whose queues have one priority",
        )?;
        require(
            !station.kind.is_shared(),
            &place,
            "policies",
            "given",
            "none: all its packets share it",
        )?;
        let field = format!("policies, priority {}", level.priority);
        let is_used = priorities.contains(&level.priority);
        let expected = "the priority of one of its queues";
        require(is_used, &place, &field, "of no queue", expected)?;
        let is_first = seen.insert(level.priority);
        require(is_first, &place, &field, "given twice", "one policy")?;
    }
    Ok(())
}

fn policy(policy: &Policy, place: &str) -> Result<(), ModelError> {
    match policy {
        Policy::Fcfs | Policy::WeightedFair { .. } | Policy::RoundRobin { quantum_ns: None } => {
            Ok(())
        }
        &Policy::RoundRobin {
            quantum_ns: Some(quantum_ns),
        } => {
            // Also a quantum that is no number is 0 ps.
            if picoseconds(quantum_ns) > 0 {
                return above_zero(place, "quantum_ns", quantum_ns);
            }
            Err(ModelError::value(
                place,
                "quantum_ns",
                number(quantum_ns),
                "at least 0.001: times are whole picoseconds",
            ))
        }
        Policy::Polling {
            batch,
            budget,
            budget_ns,
            yield_ns,
            visit_ns: _,
            wake_ns,
            visits,
        } => {
            for (field, value) in [("batch", Some(*batch)), ("budget", *budget)] {
                require(value != Some(0), place, field, 0, "at least 1")?;
            }
            if let Some(budget_ns) = budget_ns {
                above_zero(place, "budget_ns", *budget_ns)?;
            }
            duration(place, "yield_ns", *yield_ns)?;
            let yields = budget.is_some() || budget_ns.is_some() || *yield_ns > 0.0;
            require(
                *visits == Visited::Nonempty || !yields,
                place,
                "visits",
                "\"all\"",
                "no budget, budget_ns or yield_ns with it: no lower priority waits",
            )?;
            require(
                *visits == Visited::Nonempty || wake_ns.is_none(),
                place,
                "visits",
                "\"all\"",
                "no wake_ns with it: a server that visits empty queues does not sleep",
            )
        }
    }
}

fn queue(queue: &Queue, model: &Model, names: &Names) -> Result<(), ModelError> {
    let place = format!("queue {:?}", queue.name);
    let station = &model.stations[names.station(&queue.station, &place)?];
    above_zero(&place, "weight", queue.weight)?;
    require(
        queue.capacity_packets != Some(0),
        &place,
        "capacity_packets",
        0,
        "at least 1; a station without waiting places has capacity 1 and frees = \"at-end\"",
    )?;
    services(queue, station, names)?;
    if let Some(batch) = &queue.batch {
        require(batch.packets > 0, &place, "batch.packets", 0, "at least 1")?;
        duration(&place, "batch.cost_ns", batch.cost_ns)?;
    }
    let is_shared = station.kind.is_shared();
    let blocks = queue.to.iter().any(|transition| transition.blocks);
    let is_before = queue.blocking == Blocking::BeforeService;
    require(
        blocks || is_before,
        &place,
        "blocking",
        "\"after-service\"",
        "a transition with blocks = true",
    )?;
    require(
        !(is_shared && blocks && is_before),
        &place,
        "blocking",
        "\"before-service\"",
        "\"after-service\" for blocking transitions of a station that all packets share",
    )?;
    require(
        !is_shared || queue.batch.is_none(),
        &place,
        "station",
        &station.name,
        "no batches at a station that all packets share",
    )?;
    let mut levels = station.policies.iter();
    let policy = levels.find(|level| level.priority == queue.priority);
    let policy = policy.map(|level| &level.policy);
    let has_quantum = matches!(
        policy,
        Some(Policy::RoundRobin {
            quantum_ns: Some(_)
        })
    );
    // A packet that waits for its next quantum would hold room downstream that packets before it wait for.
    require(
        !(has_quantum && blocks && is_before),
        &place,
        "quantum_ns",
        "given",
        "no quantum before a blocking transition, or blocking = \"after-service\"",
    )?;
    require(
        queue.batch.is_none() || !blocks,
        &place,
        "batch",
        "given",
        "no batch before a blocking transition",
    )?;
    require(
        queue.weight == 1.0 || matches!(policy, Some(Policy::WeightedFair { .. })),
        &place,
        "weight",
        queue.weight,
        format!(
            "no weight, or the policy weighted-fair at station {:?} for priority {}",
            station.name, queue.priority
        ),
    )?;
    transitions(&queue.to, &place, names, queue.blocking)
}

fn services(queue: &Queue, station: &Station, names: &Names) -> Result<(), ModelError> {
    let place = format!("queue {:?}", queue.name);
    let is_general = |service: &Service| service.classes.is_empty();
    require(
        !queue.service.is_empty(),
        &place,
        "service",
        "[]",
        "at least one",
    )?;
    if let Some(general) = queue.service.iter().position(is_general) {
        require(
            general + 1 == queue.service.len(),
            &place,
            format!("service {}", general + 2),
            "never used",
            format!(
                "no service after number {}, which is for all classes",
                general + 1
            ),
        )?;
    }
    for service in &queue.service {
        let place = format!("{place}, service");
        duration(&place, "per_byte_ns", service.per_byte_ns)?;
        duration(&place, "fixed_ns", service.fixed_ns)?;
        names.classes(&service.classes, &place)?;
        if let Some(measured) = service.measured_at_mhz {
            above_zero(&place, "measured_at_mhz", measured)?;
            let expected = format!("a clock_mhz at station {:?} to scale to", station.name);
            let is_valid = station.clock_mhz.is_some();
            require(is_valid, &place, "measured_at_mhz", measured, expected)?;
        }
    }
    Ok(())
}

fn transitions(
    transitions: &[Transition],
    place: &str,
    names: &Names,
    blocking: Blocking,
) -> Result<(), ModelError> {
    for transition in transitions {
        names.classes(&transition.classes, place)?;
        if let Some(class) = &transition.becomes {
            names.class(class, place)?;
        }
        for choice in &transition.to {
            names.place(&choice.place, place)?;
            not_negative(place, "probability", choice.probability)?;
        }
        let sum: f64 = transition.to.iter().map(|each| each.probability).sum();
        require(
            (sum - 1.0).abs() <= 1e-9,
            place,
            "the sum of the probabilities of a transition",
            number(sum),
            "1",
        )?;
        require(
            !transition.blocks || transition.to.len() == 1 || blocking == Blocking::AfterService,
            place,
            "blocks",
            true,
            "a single place that it leads to, or blocking = \"after-service\"",
        )?;
    }
    Ok(())
}
