//! Small networks for the tests. Their unit of time is the microsecond: mu = 1 is a service of 1 us.

use parshall_core::queueing::{
    Amount, Blocking, Estimate, Frees, LevelPolicy, Model, ModelError, Network, Policy, Queue,
    Results, RunOptions, Service, Source, Station, StationKind, Traces, Transition, run,
};
use std::sync::atomic::AtomicBool;

pub const US: f64 = 1000.0;

pub fn exponential(mean_us: f64) -> Amount {
    Amount::Text(format!("exponential:mean={}", mean_us * US))
}

pub fn constant(us: f64) -> Amount {
    Amount::Number(us * US)
}

pub fn recorded(trace: &str) -> Amount {
    Amount::Trace {
        trace: trace.into(),
    }
}

pub fn source(name: &str, gap: Amount, to: &str) -> Source {
    Source {
        name: name.into(),
        class: name.into(),
        gap_ns: gap,
        size_bytes: Amount::Number(0.0),
        rate_factor: 1.0,
        packets: None,
        to: vec![Transition::to(to)],
    }
}

pub fn station(name: &str, kind: StationKind) -> Station {
    Station {
        name: name.into(),
        servers: 1,
        kind,
        clock_mhz: None,
        policies: vec![],
    }
}

pub fn policy(policy: Policy) -> Vec<LevelPolicy> {
    vec![LevelPolicy {
        priority: 0,
        policy,
    }]
}

pub fn queue(name: &str, station: &str, service: Amount, to: &str) -> Queue {
    Queue {
        name: name.into(),
        station: station.into(),
        priority: 0,
        weight: 1.0,
        capacity_packets: None,
        capacity_bytes: None,
        frees: Frees::AtStart,
        service: vec![Service::plain(service)],
        batch: None,
        blocking: Blocking::BeforeService,
        to: vec![Transition::to(to)],
    }
}

/// One station with one queue and one source.
pub fn single(gap: Amount, service: Amount) -> Model {
    Model {
        name: "single".into(),
        classes: vec!["c".into()],
        sources: vec![source("c", gap, "q")],
        stations: vec![station("s", StationKind::NonPreemptive)],
        queues: vec![queue("q", "s", service, "out")],
        sinks: vec!["out".into()],
    }
}

/// One station with a queue for each class, priorities in the order of the classes.
pub fn prioritised(kind: StationKind, classes: &[(Amount, Amount)]) -> Model {
    let names: Vec<String> = (0..classes.len())
        .map(|class| format!("c{class}"))
        .collect();
    let mut model = Model {
        name: "prioritised".into(),
        stations: vec![station("s", kind)],
        sinks: vec!["out".into()],
        ..Model::default()
    };
    for (priority, (name, (gap, service))) in names.iter().zip(classes).enumerate() {
        let own = format!("q{priority}");
        model.sources.push(source(name, gap.clone(), &own));
        let mut queue = queue(&own, "s", service.clone(), "out");
        queue.priority = priority as u32;
        model.queues.push(queue);
    }
    model.classes = names;
    model
}

/// One run with a trace of all packets.
pub fn traced() -> RunOptions {
    RunOptions {
        replications: 1,
        trace: true,
        ..RunOptions::default()
    }
}

pub fn simulate(model: &Model, options: &RunOptions) -> Results {
    simulate_with(model, options, &Traces::default())
}

pub fn simulate_with(model: &Model, options: &RunOptions, traces: &Traces) -> Results {
    let network = Network::new(model.clone(), traces, options.allow_unstable).unwrap();
    run(&network, options, &AtomicBool::new(false)).unwrap()
}

pub fn refused(model: &Model) -> String {
    let error: ModelError = Network::new(model.clone(), &Traces::default(), false).unwrap_err();
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

/// An estimate by the place, class and name of what it estimates.
pub fn estimate<'a>(results: &'a Results, place: &str, class: &str, measure: &str) -> &'a Estimate {
    let found = results
        .estimates
        .iter()
        .find(|e| e.place == place && e.class == class && e.measure == measure);
    found.unwrap_or_else(|| panic!("no {measure} of {class:?} at {place:?}"))
}
