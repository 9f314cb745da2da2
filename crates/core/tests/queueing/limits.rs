//! A model that would run for ever or take all memory is refused, or its run ends with an error of one line.

use crate::networks::*;
use parshall_core::queueing::{
    Amount, Batch, Choice, Model, ModelError, Network, Policy, RunOptions, Service, StationKind,
    Traces, Transition, run,
};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

#[track_caller]
fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

fn error_of(model: &Model, options: &RunOptions) -> ModelError {
    let network = Network::new(model.clone(), &Traces::default(), options.allow_unstable).unwrap();
    run(&network, options, &AtomicBool::new(false)).unwrap_err()
}

fn short() -> RunOptions {
    RunOptions {
        duration_ns: Some(1e6),
        warm_up_ns: Some(0.0),
        replications: 1,
        ..RunOptions::default()
    }
}

/// Queues in series, each at a station of its own, with feedback from each to the previous one.
fn row(queues: usize, back: f64) -> Model {
    let name = |number: usize| format!("q{number}");
    let mut model = Model {
        name: "row".into(),
        classes: vec!["c".into()],
        sources: vec![source("c", exponential(10.0), "q0")],
        sinks: vec!["out".into()],
        ..Model::default()
    };
    for number in 0..queues {
        let station_name = format!("s{number}");
        let next = if number + 1 < queues {
            name(number + 1)
        } else {
            "out".into()
        };
        let mut each = queue(&name(number), &station_name, constant(0.1), &next);
        if number > 0 && back > 0.0 {
            each.to[0].to[0].probability = 1.0 - back;
            let place = name(number - 1);
            each.to[0].to.push(Choice {
                place,
                probability: back,
            });
        }
        model
            .stations
            .push(station(&station_name, StationKind::NonPreemptive));
        model.queues.push(each);
    }
    model
}

#[test]
fn a_large_network_is_checked_within_seconds() {
    // Quadratic steps took minutes here. The order of the queues must not matter, either.
    let mut model = row(50_000, 0.0);
    let forward = Instant::now();
    assert!(Network::new(model.clone(), &Traces::default(), false).is_ok());
    let forward = forward.elapsed();
    model.queues.reverse();
    let backward = Instant::now();
    assert!(Network::new(model, &Traces::default(), false).is_ok());
    for spent in [forward, backward.elapsed()] {
        assert!(spent < Duration::from_secs(10), "{spent:?}");
    }
}

#[test]
fn feedback_in_a_large_network_counts_towards_its_load() {
    // In a row with feedback 0.3, packets pass each inner queue 1 / (0.7 - 0.3) times as often as
    // they enter the first, by the balance across each cut: rate x 0.7 = 1 / gap + rate x 0.3.
    let mut model = row(2_000, 0.3);
    model.queues[1000].service = vec![Service::plain(constant(3.99))];
    assert!(Network::new(model.clone(), &Traces::default(), false).is_ok());
    model.queues[1000].service = vec![Service::plain(constant(4.01))];
    assert_contains(&refused(&model), &["station \"s1000\"", "load of 1.00"]);
}

#[test]
fn a_check_ends_when_stopped() {
    // With so small a probability to leave, flows circulate almost for ever.
    let stop = AtomicBool::new(true);
    let mut model = row(2, 0.0);
    model.queues[1].to[0].to = vec![
        Choice {
            place: "q0".into(),
            probability: 0.99999,
        },
        Choice {
            place: "out".into(),
            probability: 0.00001,
        },
    ];
    let found = Network::until_stopped(model, &Traces::default(), false, &stop);
    assert!(matches!(found, Err(ModelError::Stopped)), "{found:?}");
}

#[test]
fn loops_without_exit_are_refused() {
    for service in [constant(0.0), constant(1.0)] {
        let mut model = single(exponential(2.0), service);
        model.queues[0].to = vec![Transition::to("q")];
        model.sinks.clear();
        assert_contains(&refused(&model), &["queue \"q\"", "circulate for ever"]);
        // Clones that come back are as many more.
        model.queues[0].to.push(Transition::to("out"));
        model.sinks.push("out".into());
        assert_contains(&refused(&model), &["queue \"q\"", "circulate for ever"]);
    }
}

#[test]
fn loops_without_service_time_end_with_an_error() {
    let mut model = single(exponential(2.0), constant(0.0));
    model.queues[0].to = vec![Transition::to("q")];
    model.sinks.clear();
    // Packets that circulate are a closed network, which runs if it takes time.
    model.sources[0].packets = Some(3);
    let options = short();
    let text = error_of(&model, &options).to_string();
    assert_contains(&text, &["same instant", "queue \"q\"", "service time"]);
    model.queues[0].service = vec![Service::plain(constant(1.0))];
    assert_eq!(simulate(&model, &options).replications[0].balance.inside, 3);
}

#[test]
fn batches_of_clones_end_at_the_limit_of_packets() {
    let mut model = single(exponential(2.0), constant(0.0));
    model.queues[0].batch = Some(Batch {
        packets: u32::MAX,
        cost_ns: 0.0,
    });
    model.queues[0].to = vec![Transition::to("q"); 60];
    model.sinks.clear();
    let options = RunOptions {
        allow_unstable: true,
        jobs_max: 100_000,
        ..short()
    };
    assert_contains(
        &error_of(&model, &options).to_string(),
        &["jobs_max", "queue \"q\""],
    );
}

#[test]
fn gaps_and_quanta_below_a_picosecond_are_refused() {
    for gap in [
        Amount::Number(1e-9),
        Amount::Text("poisson:mean=0.001ns".into()),
    ] {
        assert_contains(
            &refused(&single(gap, constant(0.0))),
            &["source \"c\"", "gap_ns is", "at least 0.1"],
        );
    }
    let mut model = single(exponential(2.0), constant(1.0));
    model.stations[0].policies = policy(Policy::RoundRobin {
        quantum_ns: Some(1e-9),
    });
    assert_contains(&refused(&model), &["station \"s\"", "quantum_ns is 1e-9"]);
}

#[test]
fn runs_with_too_many_events_are_refused() {
    // So much is known before the run ...
    let model = single(constant(1e-3), constant(0.0));
    let options = RunOptions {
        events_max: 1_000_000,
        ..short()
    };
    assert_contains(
        &error_of(&model, &options).to_string(),
        &["at least 2.0e6 events", "events_max 1000000"],
    );
    // ... and this only while it runs, because its queue has a limit.
    let mut model = single(constant(1.0), constant(2.0));
    model.queues[0].capacity_packets = Some(5);
    model.stations[0].policies = policy(Policy::RoundRobin {
        quantum_ns: Some(0.01),
    });
    assert_contains(
        &error_of(&model, &options).to_string(),
        &["events_max 1000000"],
    );
}

#[test]
fn invalid_lengths_and_times_are_refused() {
    let sized = |size| {
        let mut model = single(exponential(2.0), constant(1.0));
        model.sources[0].size_bytes = size;
        refused(&model)
    };
    for (size, found) in [
        (Amount::Number(64.7), "64.7"),
        (Amount::Number(1e12), "1000000000000"),
        (
            Amount::Samples {
                samples: vec![64.0, 0.5],
            },
            "0.5",
        ),
        (Amount::Text("poisson:mean=2us".into()), "a gap process"),
        (
            Amount::Table {
                bytes: vec![1.0],
                values: vec![1.0],
            },
            "a table over the length",
        ),
    ] {
        assert_contains(&sized(size), &["source \"c\", size_bytes", found]);
    }
    assert_contains(
        &refused(&single(exponential(2.0), Amount::Number(1e30))),
        &["queue \"q\", time_ns", "1e30", "1e16"],
    );
}

#[test]
fn contradictory_fields_are_refused() {
    let mut model = single(exponential(2.0), constant(1.0));
    model.queues[0].service.push(Service::plain(constant(2.0)));
    assert_contains(
        &refused(&model),
        &["queue \"q\"", "service 2 is never used"],
    );
    let mut model = single(exponential(2.0), constant(1.0));
    model.queues[0].weight = 2.0;
    assert_contains(
        &refused(&model),
        &["queue \"q\"", "weight is 2", "weighted-fair"],
    );
    let mut model = single(exponential(2.0), constant(1.0));
    model.stations[0].kind = StationKind::Delay;
    model.stations[0].servers = 4;
    assert_contains(
        &refused(&model),
        &["station \"s\"", "servers is 4", "delay"],
    );
    let mut model = single(exponential(2.0), constant(1.0));
    let twice = policy(Policy::Fcfs)
        .into_iter()
        .chain(policy(Policy::RoundRobin { quantum_ns: None }));
    model.stations[0].policies = twice.collect();
    assert_contains(
        &refused(&model),
        &["station \"s\"", "priority 0 is given twice"],
    );
    let mut model = single(exponential(2.0), constant(1.0));
    model.stations[0].servers = u32::MAX;
    assert_contains(&refused(&model), &["servers is 4294967295"]);
}
