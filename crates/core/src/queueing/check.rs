//! The numbers of a model, checked before it runs.

use std::collections::BTreeSet;

use super::amount::{AMOUNT_MAX, Amount, Draw};
use super::error::ModelError;
use super::model::{
    Blocking, LevelPolicy, Model, Policy, Queue, Service, StationKind, Transition, Visited,
};
use super::names::Names;
use super::time::picoseconds;
use crate::laws::number;

/// Priorities of a station: the engine keeps a bit for each.
const LEVELS_MAX: usize = 64;

/// Servers of all stations: each has a clock.
const SERVERS_MAX: u64 = 100_000;

/// Queues, sources and transitions, counted for each class that they are for: results have several rows for each.
const TABLE_MAX: usize = 200_000;

/// Sinks, counted for each class: each has a histogram of latencies, in every replication.
const SINKS_MAX: usize = 2_000;

/// By how much the packets of a source may come slower or faster than its gaps say.
const RATE_FACTOR_MIN: f64 = 1e-9;
const RATE_FACTOR_MAX: f64 = 1e9;

/// Checks that a network is not larger than memory allows.
fn tables(model: &Model) -> Result<(), ModelError> {
    let servers = model
        .stations
        .iter()
        .map(|station| u64::from(station.servers));
    let servers: u64 = servers.sum();
    if servers > SERVERS_MAX {
        let expected = format!(
            "{SERVERS_MAX} at most at all stations; a station that serves all its packets at once is of kind delay"
        );
        return Err(ModelError::value(
            "the model",
            "the number of servers",
            servers,
            expected,
        ));
    }
    let classes = model.classes.len();
    let origins = model
        .queues
        .iter()
        .map(|queue| &queue.to)
        .chain(model.sources.iter().map(|source| &source.to));
    let mut rows = 0_usize;
    for transitions in origins {
        let ways = transitions.iter().map(|way| {
            let own = match way.classes.len() {
                0 => classes,
                named => named,
            };
            own.saturating_mul(way.to.len())
        });
        rows = rows.saturating_add(ways.fold(classes, usize::saturating_add));
    }
    let sinks = model.sinks.len().saturating_mul(classes);
    for (what, rows, most) in [
        ("queues, sources and transitions", rows, TABLE_MAX),
        ("sinks", sinks, SINKS_MAX),
        ("classes", classes, usize::from(u16::MAX)),
    ] {
        if rows > most {
            let field = format!("the number of {what}, each times its classes,");
            let expected = format!("{most} at most: use fewer classes or {what}");
            return Err(ModelError::value("the model", field, rows, expected));
        }
    }
    Ok(())
}

/// Checks every number of a model, and every class that a service or transition names.
pub(super) fn numbers(model: &Model, names: &Names) -> Result<(), ModelError> {
    tables(model)?;
    for source in &model.sources {
        let place = format!("source {:?}", source.name);
        transitions(&source.to, &place, names, Blocking::BeforeService)?;
        if !(RATE_FACTOR_MIN..=RATE_FACTOR_MAX).contains(&source.rate_factor) {
            let factor = number(source.rate_factor);
            let expected = "a number from 1e-9 to 1e9";
            return Err(ModelError::value(&place, "rate_factor", factor, expected));
        }
        if source.to.iter().any(|way| way.blocks) {
            return Err(ModelError::value(
                &place,
                "blocks",
                true,
                "false: a source cannot wait; put a queue behind it",
            ));
        }
    }
    // of [station]
    let mut priorities = vec![BTreeSet::new(); model.stations.len()];
    for queue in &model.queues {
        let place = format!("queue {:?}", queue.name);
        priorities[names.station(&queue.station, &place)?].insert(queue.priority);
    }
    for (station, priorities) in model.stations.iter().zip(&priorities) {
        let place = format!("station {:?}", station.name);
        if station.servers == 0 {
            return Err(ModelError::value(&place, "servers", 0, "at least 1"));
        }
        if station.kind == StationKind::Delay && station.servers != 1 {
            let expected = "none given: a delay serves all its packets at once";
            return Err(ModelError::value(
                &place,
                "servers",
                station.servers,
                expected,
            ));
        }
        if let Some(clock) = station.clock_mhz {
            above_zero(&place, "clock_mhz", clock)?;
        }
        if priorities.len() > LEVELS_MAX {
            let expected = format!("{LEVELS_MAX} different ones at most");
            return Err(ModelError::value(
                &place,
                "the number of priorities",
                priorities.len(),
                expected,
            ));
        }
        let mut seen = BTreeSet::new();
        for level in &station.policies {
            policy(&level.policy, &place)?;
            let is_alone = priorities.len() == 1
                && station.servers == 1
                && station.kind == StationKind::NonPreemptive;
            if level.policy.visits_all() && !is_alone {
                return Err(ModelError::value(
                    &place,
                    "visits",
                    "\"all\"",
                    "\"nonempty\", or a non-preemptive station of one server whose queues have one priority",
                ));
            }
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
            let field = format!("policies, priority {}", level.priority);
            if !priorities.contains(&level.priority) {
                let expected = "the priority of one of its queues";
                return Err(ModelError::value(&place, field, "of no queue", expected));
            }
            if !seen.insert(level.priority) {
                return Err(ModelError::value(
                    &place,
                    field,
                    "given twice",
                    "one policy",
                ));
            }
        }
    }
    model
        .queues
        .iter()
        .try_for_each(|each| queue(each, model, names))
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
    service_is_used(&queue.service, &place)?;
    for service in &queue.service {
        let place = format!("{place}, service");
        duration(&place, "per_byte_ns", service.per_byte_ns)?;
        duration(&place, "fixed_ns", service.fixed_ns)?;
        names.classes(&service.classes, &place)?;
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
        duration(&place, "batch.cost_ns", batch.cost_ns)?;
    }
    let shares = matches!(
        station.kind,
        StationKind::ProcessorSharing | StationKind::Delay
    );
    let blocks = queue.to.iter().any(|way| way.blocks);
    let is_before = queue.blocking == Blocking::BeforeService;
    if !blocks && !is_before {
        let expected = "a transition with blocks = true";
        return Err(ModelError::value(
            &place,
            "blocking",
            "\"after-service\"",
            expected,
        ));
    }
    if shares && blocks && is_before {
        let expected =
            "\"after-service\" for blocking transitions of a station that all packets share";
        return Err(ModelError::value(
            &place,
            "blocking",
            "\"before-service\"",
            expected,
        ));
    }
    if shares && queue.batch.is_some() {
        let expected = "no batches at a station that all packets share";
        return Err(ModelError::value(
            &place,
            "station",
            &station.name,
            expected,
        ));
    }
    // Who waits for his next quantum holds a place further on, for which those before him would wait.
    let is_own = |level: &&LevelPolicy| level.priority == queue.priority;
    let policy = station.policies.iter().find(is_own);
    let policy = policy.map(|level| &level.policy);
    let has_quantum = matches!(
        policy,
        Some(Policy::RoundRobin {
            quantum_ns: Some(_)
        })
    );
    if has_quantum && blocks && is_before {
        let expected = "no quantum before a blocking transition, or blocking = \"after-service\"";
        return Err(ModelError::value(&place, "quantum_ns", "given", expected));
    }
    if queue.batch.is_some() && blocks {
        return Err(ModelError::value(
            &place,
            "batch",
            "given",
            "no batch before a blocking transition",
        ));
    }
    if queue.weight != 1.0 && !matches!(policy, Some(Policy::WeightedFair { .. })) {
        let expected = format!(
            "no weight, or the policy weighted-fair at station {:?} for priority {}",
            station.name, queue.priority
        );
        return Err(ModelError::value(&place, "weight", queue.weight, expected));
    }
    transitions(&queue.to, &place, names, queue.blocking)
}

/// Checks that no service comes after one that is for all classes.
fn service_is_used(services: &[Service], place: &str) -> Result<(), ModelError> {
    let general = services.iter().position(|each| each.classes.is_empty());
    match general {
        Some(general) if general + 1 < services.len() => Err(ModelError::value(
            place,
            format!("service {}", general + 2),
            "never used",
            format!(
                "no service after number {}, which is for all classes",
                general + 1
            ),
        )),
        _ => Ok(()),
    }
}

fn transitions(
    ways: &[Transition],
    place: &str,
    names: &Names,
    blocking: Blocking,
) -> Result<(), ModelError> {
    for way in ways {
        names.classes(&way.classes, place)?;
        if let Some(class) = &way.becomes {
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
                number(sum),
                "1",
            ));
        }
        if way.blocks && way.to.len() > 1 && blocking == Blocking::BeforeService {
            return Err(ModelError::value(
                place,
                "blocks",
                true,
                "a single place that it leads to, or blocking = \"after-service\"",
            ));
        }
    }
    Ok(())
}

fn policy(policy: &Policy, place: &str) -> Result<(), ModelError> {
    match policy {
        Policy::Fcfs | Policy::WeightedFair { .. } => Ok(()),
        Policy::RoundRobin { quantum_ns } => {
            let Some(quantum_ns) = quantum_ns.filter(|&quantum| picoseconds(quantum) == 0) else {
                return quantum_ns
                    .map_or(Ok(()), |quantum| above_zero(place, "quantum_ns", quantum));
            };
            let expected = "at least 0.001: times are whole picoseconds";
            Err(ModelError::value(
                place,
                "quantum_ns",
                number(quantum_ns),
                expected,
            ))
        }
        Policy::Polling {
            batch,
            budget,
            budget_ns,
            yield_ns,
            visit_ns,
            visits,
        } => {
            for (field, value) in [("batch", Some(*batch)), ("budget", *budget)] {
                if value == Some(0) {
                    return Err(ModelError::value(place, field, 0, "at least 1"));
                }
            }
            if let Some(budget_ns) = budget_ns {
                above_zero(place, "budget_ns", *budget_ns)?;
            }
            duration(place, "yield_ns", *yield_ns)?;
            if *visits == Visited::All
                && (budget.is_some() || budget_ns.is_some() || *yield_ns > 0.0)
            {
                return Err(ModelError::value(
                    place,
                    "visits",
                    "\"all\"",
                    "no budget, budget_ns or yield_ns with it: no lower priority waits",
                ));
            }
            duration(place, "visit_ns", *visit_ns)
        }
    }
}

fn above_zero(place: &str, field: &str, value: f64) -> Result<(), ModelError> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    let expected = "a finite number above 0";
    Err(ModelError::value(place, field, number(value), expected))
}

fn not_negative(place: &str, field: &str, value: f64) -> Result<(), ModelError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    let expected = "a finite number that is not negative";
    Err(ModelError::value(place, field, number(value), expected))
}

/// Checks a time or a length.
pub(super) fn duration(place: &str, field: &str, value: f64) -> Result<(), ModelError> {
    if (0.0..=AMOUNT_MAX).contains(&value) {
        return Ok(());
    }
    let expected = "a number from 0 to 1e16; 1e16 ns are 115 days";
    Err(ModelError::value(place, field, number(value), expected))
}

/// Shorter mean gaps are too coarse in whole picoseconds.
const GAP_MIN_NS: f64 = 0.1;

/// Checks what draws the gaps of a source, each of which is multiplied by `stretch`; the source may have a number of
/// packets after which it ends.
pub(super) fn gap(gap: &Draw, stretch: f64, ends: bool, place: &str) -> Result<(), ModelError> {
    let refused =
        |value: String, expected| Err(ModelError::value(place, "gap_ns", value, expected));
    match gap {
        Draw::Table(..) => refused(
            "a table over the length".into(),
            "an amount without bytes, or a gap law",
        ),
        Draw::Trace(..) => Ok(()),
        gap => match gap.mean(0.0) * stretch {
            0.0 if ends => Ok(()),
            0.0 => refused(
                "a law of mean 0".into(),
                "a mean above 0, or a number of packets",
            ),
            mean if mean < GAP_MIN_NS => refused(
                number(mean),
                "a mean of at least 0.1 ns: times are whole picoseconds",
            ),
            _ => Ok(()),
        },
    }
}

/// Checks what draws the lengths of a source.
pub(super) fn size(draw: &Draw, amount: &Amount, place: &str) -> Result<(), ModelError> {
    let refused = |value, expected| Err(ModelError::value(place, "a value", value, expected));
    match draw {
        Draw::Table(..) => return refused("a table over the length".into(), "an amount of bytes"),
        Draw::Gaps(_) => return refused("a process of gaps".into(), "an amount of bytes"),
        _ => {}
    }
    // Laws are rounded as they are drawn; what is written down is meant as it is written.
    let written = match (amount, draw) {
        (Amount::Samples { samples }, _) => samples.as_slice(),
        (_, Draw::Constant(bytes)) => std::slice::from_ref(bytes),
        (_, Draw::Trace(values, _)) => values,
        _ => return Ok(()),
    };
    let is_length = |bytes: f64| bytes.fract() == 0.0 && bytes <= LENGTH_MAX;
    match written.iter().find(|&&bytes| !is_length(bytes)) {
        Some(&bytes) => refused(number(bytes), "a whole number up to 4294967295"),
        None => Ok(()),
    }
}

/// Lengths of packets have 32 bits.
const LENGTH_MAX: f64 = u32::MAX as f64;
