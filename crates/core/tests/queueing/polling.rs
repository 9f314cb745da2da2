//! Policies with schedules worked out by hand: polling, round robin, batches, blocking.

use crate::networks::*;
use parshall_core::queueing::{
    Amount, Batch, Frees, Model, Policy, RunOptions, StationKind, Traces, Transition, Visited,
};

/// All packets of all classes at time 0, services of 10 ns: the order of departures is the policy.
fn order(
    policies: Option<Policy>,
    kind: StationKind,
    counts: &[usize],
    lowest_is_apart: bool,
) -> Vec<u16> {
    let mut traces = Traces::default();
    let mut classes = Vec::new();
    for (number, &count) in counts.iter().enumerate() {
        traces.add(&format!("{number}"), &vec![0.0; count]).unwrap();
        classes.push((recorded(&format!("{number}")), Amount::Number(10.0)));
    }
    let mut model = prioritised(kind, &classes);
    let apart = counts.len() - usize::from(lowest_is_apart);
    model.queues[..apart]
        .iter_mut()
        .for_each(|queue| queue.priority = 0);
    // A packet occupies the server for an instant, so that all have arrived before the choice.
    model.classes.push("first".into());
    model
        .sources
        .insert(0, source("first", Amount::Number(0.0), "q.first"));
    model.sources[0].packets = Some(1);
    let mut first = queue("q.first", "s", Amount::Number(1.0), "out");
    first.priority = 9;
    model.queues.push(first);
    if let Some(shared) = policies {
        model.stations[0].policies = policy(shared);
    }
    let kind_of_first = model.stations[0].kind;
    assert_eq!(kind_of_first, kind);
    let options = RunOptions {
        allow_unstable: true,
        ..traced()
    };
    let results = simulate_with(&model, &options, &traces);
    let classes = &results.replications[0].trace.packets.class;
    classes
        .iter()
        .copied()
        .filter(|&class| usize::from(class) < counts.len())
        .collect()
}

#[test]
fn round_robin_serves_one_packet_of_each_queue_in_turn() {
    let found = order(
        Some(Policy::RoundRobin { quantum_ns: None }),
        StationKind::NonPreemptive,
        &[3, 1, 2],
        false,
    );
    assert_eq!(found, [0, 1, 2, 0, 2, 0]);
}

#[test]
fn polling_serves_a_batch_of_each_queue_in_turn() {
    let poll = Policy::Polling {
        batch: 2,
        budget: None,
        budget_ns: None,
        yield_ns: 0.0,
        visit_ns: Amount::Number(0.0),
        wake_ns: None,
        visits: Visited::Nonempty,
    };
    let found = order(Some(poll), StationKind::NonPreemptive, &[5, 1, 3], false);
    assert_eq!(found, [0, 0, 1, 2, 2, 0, 0, 2, 0]);
}

#[test]
fn a_polling_level_yields_when_its_budget_is_spent() {
    // Budget 2 and a rest of 25 ns: the lower class is served three times (the third begins before
    // the rest is over), then two of the first again.
    let poll = Policy::Polling {
        batch: 2,
        budget: Some(2),
        budget_ns: None,
        yield_ns: 25.0,
        visit_ns: Amount::Number(0.0),
        wake_ns: None,
        visits: Visited::Nonempty,
    };
    let found = order(Some(poll), StationKind::NonPreemptive, &[5, 8], true);
    assert_eq!(found, [0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1]);
}

#[test]
fn a_quantum_divides_services() {
    // Two packets of 10 ns with a quantum of 4: 4+4+4+4+2 -> the first leaves at 18, the second at 20.
    let mut traces = Traces::default();
    traces.add("two", &[0.0, 0.0]).unwrap();
    let mut model = single(recorded("two"), Amount::Number(10.0));
    model.stations[0].policies = policy(Policy::RoundRobin {
        quantum_ns: Some(4.0),
    });
    let results = simulate_with(&model, &traced(), &traces);
    assert_eq!(results.replications[0].trace.packets.left, [18_000, 20_000]);
}

#[test]
fn a_batch_costs_once_and_departs_together() {
    // The first begins alone: 100 + 10. The other three are a batch: 100 + 30.
    let mut traces = Traces::default();
    traces.add("four", &[0.0, 1.0, 1.0, 1.0]).unwrap();
    let mut model = single(recorded("four"), Amount::Number(10.0));
    model.queues[0].batch = Some(Batch {
        packets: 8,
        cost_ns: 100.0,
    });
    let results = simulate_with(&model, &traced(), &traces);
    assert_eq!(
        results.replications[0].trace.packets.left,
        [110_000, 240_000, 240_000, 240_000]
    );
}

/// A fast station before a slow one, whose queue has two places that free at the end.
fn tandem(blocks: bool) -> Model {
    let mut model = single(Amount::Number(1.0), Amount::Number(1.0));
    model.sources[0].packets = Some(50);
    model
        .stations
        .push(station("slow", StationKind::NonPreemptive));
    model.queues[0].to = vec![Transition {
        blocks,
        ..Transition::to("q2")
    }];
    let mut slow = queue("q2", "slow", Amount::Number(10.0), "out");
    slow.capacity_packets = Some(2);
    slow.frees = Frees::AtEnd;
    model.queues.push(slow);
    model
}

#[test]
fn a_blocking_transition_waits_and_loses_nothing() {
    let options = RunOptions {
        replications: 1,
        ..RunOptions::default()
    };
    let waits = simulate(&tandem(true), &options);
    assert_eq!(
        (
            waits.replications[0].balance.left,
            waits.replications[0].balance.lost
        ),
        (50, 0)
    );
    assert_eq!(waits.replications[0].lengths[1].longest, 2);
    let loses = simulate(&tandem(false), &options);
    assert!(loses.replications[0].balance.lost > 30);
}

#[test]
fn a_capacity_in_bytes_drops_large_packets_only() {
    let mut model = tandem(false);
    model.queues[1].capacity_packets = None;
    model.queues[1].capacity_bytes = Some(1000);
    let options = RunOptions {
        replications: 1,
        ..RunOptions::default()
    };
    for (bytes, left) in [(1001.0, 0), (1000.0, 5), (500.0, 6)] {
        model.sources[0].size_bytes = Amount::Number(bytes);
        assert_eq!(
            simulate(&model, &options).replications[0].balance.left,
            left,
            "{bytes}"
        );
    }
}

#[test]
fn clones_follow_their_packet_and_are_counted_separately() {
    let mut model = single(Amount::Number(10.0), Amount::Number(1.0));
    model.sources[0].packets = Some(5);
    model.sinks.push("bin".into());
    model.queues[0].to.push(Transition::to("bin"));
    let results = simulate(&model, &traced());
    let replication = &results.replications[0];
    assert_eq!(
        (
            replication.balance.entered,
            replication.balance.cloned,
            replication.balance.left
        ),
        (5, 5, 10)
    );
    assert_eq!(
        replication.trace.packets.clone[..4],
        [false, true, false, true]
    );
    assert_eq!(replication.trace.packets.packet[..4], [0, 0, 1, 1]);
}

#[test]
fn service_times_scale_with_the_processor_clock() {
    let mut model = single(Amount::Number(100_000.0), Amount::Number(1000.0));
    model.sources[0].packets = Some(1);
    model.sources[0].size_bytes = Amount::Number(100.0);
    model.stations[0].clock_mhz = Some(1200.0);
    let service = &mut model.queues[0].service[0];
    (
        service.measured_at_mhz,
        service.per_byte_ns,
        service.fixed_ns,
    ) = (Some(600.0), 2.0, 7.0);
    let options = RunOptions {
        replications: 1,
        ..RunOptions::default()
    };
    // (1000 + 2 x 100) x 600 / 1200 + 7
    assert_eq!(
        simulate(&model, &options).replications[0].sinks[0].latency_ns,
        607.0
    );
}
