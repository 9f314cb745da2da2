//! Errors of models are one line with the part, the value and the remedy.

use crate::networks::*;
use parshall_core::queueing::{
    Amount, Frees, Network, Policy, RunOptions, StationKind, Traces, Transition, run,
};
use std::sync::atomic::AtomicBool;

#[track_caller]
fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

#[test]
fn unknown_names_are_refused() {
    let mut model = single(exponential(2.0), exponential(1.0));
    model.queues[0].station = "cpv".into();
    assert_contains(
        &refused(&model),
        &["queue \"q\"", "station \"cpv\"", "there are s"],
    );
    let mut model = single(exponential(2.0), exponential(1.0));
    model.queues[0].to[0].to[0].place = "oout".into();
    assert_contains(&refused(&model), &["queue \"q\"", "\"oout\"", "q, out"]);
    let mut model = single(exponential(2.0), exponential(1.0));
    model.queues.push(model.queues[0].clone());
    assert_contains(&refused(&model), &["\"q\"", "rename"]);
}

#[test]
fn invalid_numbers_are_refused() {
    for (service, parts) in [
        (Amount::Number(-1.0), ["queue \"q\", time_ns", "-1"]),
        (Amount::Number(f64::NAN), ["queue \"q\", time_ns", "NaN"]),
        (
            Amount::Text("exponential:mean=-5".into()),
            ["queue \"q\", time_ns", "-5"],
        ),
        (
            Amount::Text("expnential:mean=5".into()),
            ["expnential", "exponential"],
        ),
        (
            Amount::Histogram {
                bounds: vec![0.0, 1.0, 2.0],
                counts: vec![0.0, 0.0],
            },
            ["queue \"q\", time_ns", "sum of 0"],
        ),
        (
            Amount::Samples { samples: vec![] },
            ["queue \"q\", time_ns", "sample"],
        ),
        (
            Amount::Trace {
                trace: "nowhere".into(),
            },
            ["trace \"nowhere\"", "there is none"],
        ),
    ] {
        assert_contains(&refused(&single(exponential(2.0), service)), &parts);
    }
    let mut model = single(exponential(2.0), exponential(1.0));
    model.queues[0].to[0].to[0].probability = 0.9;
    assert_contains(&refused(&model), &["queue \"q\"", "0.9", "expected 1"]);
    let mut model = single(exponential(2.0), exponential(1.0));
    model.stations[0].servers = 0;
    assert_contains(&refused(&model), &["station \"s\"", "servers is 0"]);
}

#[test]
fn invalid_numbers_of_a_trace_are_refused() {
    let mut traces = Traces::default();
    let error = traces
        .add("gaps", &[1.0, f64::NAN])
        .unwrap_err()
        .to_string();
    assert_contains(&error, &["trace \"gaps\"", "value 1 is NaN"]);
    assert_contains(
        &traces.add("gaps", &[]).unwrap_err().to_string(),
        &["length is 0"],
    );
}

#[test]
fn unstable_networks_are_refused_unless_allowed() {
    let model = single(exponential(0.8), exponential(1.0));
    assert_contains(
        &refused(&model),
        &["station \"s\"", "load of 1.250", "queue \"q\""],
    );
    assert!(Network::new(model.clone(), &Traces::default(), true).is_ok());
    // Feedback counts.
    let mut model = single(exponential(2.0), exponential(1.0));
    model.queues[0].to[0].to[0].probability = 0.4;
    model.queues[0].to[0]
        .to
        .push(parshall_core::queueing::Choice {
            place: "q".into(),
            probability: 0.6,
        });
    assert_contains(&refused(&model), &["load of 1.250"]);
    // A finite queue may be overloaded; the traffic behind it is not known.
    let mut model = single(exponential(0.5), exponential(1.0));
    model.queues[0].capacity_packets = Some(5);
    assert!(Network::new(model, &Traces::default(), false).is_ok());
}

#[test]
fn an_unstable_network_ends_at_the_limit_of_packets() {
    let model = single(exponential(0.5), exponential(1.0));
    let network = Network::new(model, &Traces::default(), true).unwrap();
    let options = RunOptions {
        duration_ns: Some(1e9),
        warm_up_ns: Some(0.0),
        jobs_max: 10_000,
        ..RunOptions::default()
    };
    let error = run(&network, &options, &AtomicBool::new(false))
        .unwrap_err()
        .to_string();
    assert_contains(&error, &["queue \"q\"", "jobs_max"]);
}

#[test]
fn unreachable_parts_are_refused() {
    let mut model = single(exponential(2.0), exponential(1.0));
    model
        .queues
        .push(queue("unreached", "s", exponential(1.0), "out"));
    assert_contains(
        &refused(&model),
        &["queue \"unreached\"", "no source reaches it"],
    );
    let mut model = single(exponential(2.0), exponential(1.0));
    model
        .stations
        .push(station("idle", StationKind::NonPreemptive));
    assert_contains(&refused(&model), &["station \"idle\""]);
    let mut model = single(exponential(2.0), exponential(1.0));
    model.sinks.push("drain".into());
    assert_contains(&refused(&model), &["sink \"drain\""]);
}

#[test]
fn packets_without_a_route_are_refused() {
    let mut model = single(exponential(2.0), exponential(1.0));
    model.classes.push("other".into());
    model.queues[0].to[0].classes = vec!["other".into()];
    assert_contains(
        &refused(&model),
        &["queue \"q\"", "class \"c\"", "no route"],
    );
}

#[test]
fn cycles_of_blocking_are_refused() {
    let mut model = single(exponential(2.0), exponential(0.1));
    model.queues.push(queue("q2", "s", exponential(0.1), "out"));
    model.queues[0].to = vec![Transition {
        blocks: true,
        ..Transition::to("q2")
    }];
    model.queues[1].to.push(Transition {
        blocks: true,
        ..Transition::to("q")
    });
    for queue in &mut model.queues {
        queue.capacity_packets = Some(3);
        queue.frees = Frees::AtEnd;
    }
    assert_contains(&refused(&model), &["q -> q2 -> q", "blocks = false"]);
}

#[test]
fn a_quantum_before_a_blocking_transition_is_refused() {
    let mut model = single(exponential(2.0), exponential(0.1));
    model.stations[0].policies = policy(Policy::RoundRobin {
        quantum_ns: Some(10.0),
    });
    model.queues[0].to[0].blocks = true;
    assert_contains(&refused(&model), &["queue \"q\"", "quantum_ns"]);
}

/// The error of a run of a stable network.
fn refused_run(options: &RunOptions, is_stopped: bool) -> String {
    let model = single(exponential(2.0), exponential(1.0));
    let network = Network::new(model, &Traces::default(), false).unwrap();
    let stop = AtomicBool::new(is_stopped);
    run(&network, options, &stop).unwrap_err().to_string()
}

#[test]
fn runs_without_an_end_are_refused() {
    let error = refused_run(&RunOptions::default(), false);
    assert_contains(&error, &["duration_ns", "never end"]);
    let options = RunOptions {
        duration_ns: Some(1e18),
        warm_up_ns: Some(0.0),
        ..RunOptions::default()
    };
    assert_contains(&refused_run(&options, false), &["213 days"]);
}

#[test]
fn a_run_ends_when_stopped() {
    let options = RunOptions {
        duration_ns: Some(1e15),
        warm_up_ns: Some(0.0),
        events_max: u64::MAX,
        ..RunOptions::default()
    };
    assert_contains(&refused_run(&options, true), &["stopped"]);
}

#[test]
fn traffic_of_a_lossy_queue_is_not_counted_before_the_run() {
    // c0 requests twice the capacity and loses the excess; fair queueing leaves c1 its tenth.
    let classes = [
        (exponential(0.5), exponential(1.0)),
        (exponential(10.0), exponential(1.0)),
    ];
    let mut model = prioritised(StationKind::NonPreemptive, &classes);
    for queue in &mut model.queues {
        queue.priority = 0;
    }
    model.queues[0].capacity_packets = Some(10);
    model.stations[0].policies = policy(Policy::RoundRobin { quantum_ns: None });
    let options = RunOptions {
        duration_ns: Some(1e8),
        warm_up_ns: Some(0.0),
        replications: 2,
        ..RunOptions::default()
    };
    let results = simulate(&model, &options);
    let longest = |queue: &str| {
        let lengths = &results.replications[0].lengths;
        lengths
            .iter()
            .find(|one| one.queue == queue)
            .unwrap()
            .longest
    };
    assert!(longest("q1") < 20, "{}", longest("q1"));
}
