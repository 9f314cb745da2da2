//! Exact times of every packet: recursions over recorded arrivals and services.

use crate::networks::*;
use parshall_core::queueing::{
    Amount, Model, Policy, RunOptions, StationKind, Tags, Traces, Visited,
};
use proptest::prelude::*;

/// Departures of a FCFS station in whole ns (Lindley 1952): `d[n] = max(a[n], d[n-1]) + s[n]`.
fn lindley(arrivals: &[u64], services: &[u64]) -> Vec<u64> {
    let mut free = 0;
    let pairs = arrivals.iter().zip(services);
    pairs
        .map(|(&arrival, &service)| {
            free = free.max(arrival) + service;
            free
        })
        .collect()
}

fn arrivals(gaps: &[u64]) -> Vec<u64> {
    gaps.iter()
        .scan(0, |time, gap| {
            *time += gap;
            Some(*time)
        })
        .collect()
}

fn floats(values: &[u64]) -> Vec<f64> {
    values.iter().map(|&value| value as f64).collect()
}

fn traced_though_unstable() -> RunOptions {
    RunOptions {
        allow_unstable: true,
        ..traced()
    }
}

/// A station with a recorded class for each pair of gaps and services.
fn recorded_classes(kind: StationKind, classes: &[(Vec<u64>, Vec<u64>)]) -> (Model, Traces) {
    let mut traces = Traces::default();
    let mut amounts = Vec::new();
    for (number, (gaps, services)) in classes.iter().enumerate() {
        let names = [format!("gaps{number}"), format!("services{number}")];
        traces.add(&names[0], &floats(gaps)).unwrap();
        traces.add(&names[1], &floats(services)).unwrap();
        amounts.push((recorded(&names[0]), recorded(&names[1])));
    }
    (prioritised(kind, &amounts), traces)
}

fn class() -> impl Strategy<Value = (Vec<u64>, Vec<u64>)> {
    (1usize..300).prop_flat_map(|count| {
        (
            prop::collection::vec(0u64..40, count),
            prop::collection::vec(0u64..40, count),
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_packet_of_a_fcfs_station_follows_lindley((gaps, services) in class()) {
        let (model, traces) = recorded_classes(StationKind::NonPreemptive, &[(gaps.clone(), services.clone())]);
        let results = simulate_with(&model, &traced_though_unstable(), &traces);
        let left: Vec<u64> = results.replications[0].trace.packets.left.iter().map(|ps| ps / 1000).collect();
        prop_assert_eq!(left, lindley(&arrivals(&gaps), &services));
    }

    #[test]
    fn the_highest_priority_is_not_delayed_by_lower_ones(first in class(), second in class(), third in class()) {
        let classes = [first, second, third];
        let (model, traces) = recorded_classes(StationKind::PreemptiveResume, &classes);
        let results = simulate_with(&model, &traced_though_unstable(), &traces);
        let packets = &results.replications[0].trace.packets;
        let top: Vec<u64> = packets.left.iter().zip(&packets.class).filter(|(_, class)| **class == 0).map(|(ps, _)| ps / 1000).collect();
        prop_assert_eq!(top, lindley(&arrivals(&classes[0].0), &classes[0].1));
    }

    #[test]
    fn work_conserving_disciplines_are_busy_at_the_same_times(first in class(), second in class(), third in class()) {
        // The last packet to leave ends a busy period under any discipline: the ends of the busy periods are
        // those of Lindley's recursion on the merged arrivals.
        let classes = [first, second, third];
        let mut merged: Vec<(u64, usize, u64)> = Vec::new();
        for (number, (gaps, services)) in classes.iter().enumerate() {
            merged.extend(arrivals(gaps).into_iter().zip(services).map(|(at, &work)| (at, number, work)));
        }
        merged.sort();
        let (at, work): (Vec<u64>, Vec<u64>) = merged.iter().map(|&(at, _, work)| (at, work)).unzip();
        let left = lindley(&at, &work);
        let ends: Vec<u64> = (0..at.len()).filter(|&n| n + 1 == at.len() || at[n + 1] > left[n]).map(|n| left[n]).collect();

        let disciplines = [
            (StationKind::PreemptiveResume, None),
            (StationKind::NonPreemptive, None),
            (StationKind::NonPreemptive, Some(Policy::RoundRobin { quantum_ns: None })),
            (StationKind::NonPreemptive, Some(Policy::RoundRobin { quantum_ns: Some(7.0) })),
            (StationKind::NonPreemptive, Some(Policy::WeightedFair { tags: Tags::Time })),
            (StationKind::NonPreemptive, Some(Policy::Fcfs)),
            (StationKind::NonPreemptive, Some(Policy::Polling { batch: 3, budget: Some(5), budget_ns: None, yield_ns: 9.0, visit_ns: Amount::Number(0.0), wake_ns: None, visits: Visited::Nonempty })),
        ];
        for (kind, shared) in disciplines {
            let (mut model, traces) = recorded_classes(kind, &classes);
            if let Some(shared) = &shared {
                model.stations[0].policies = policy(shared.clone());
                model.queues.iter_mut().for_each(|queue| queue.priority = 0);
            }
            let results = simulate_with(&model, &traced_though_unstable(), &traces);
            let mut left: Vec<u64> = results.replications[0].trace.packets.left.iter().map(|ps| ps / 1000).collect();
            left.sort_unstable();
            prop_assert_eq!(left.len(), at.len());
            prop_assert_eq!(left.last(), ends.last(), "{:?} {:?}", kind, shared);
            for end in &ends {
                prop_assert!(left.binary_search(end).is_ok(), "{:?} {:?}: no departure at {}", kind, shared, end);
            }
            let worked = results.replications[0].stations[0].utilisation * results.replications[0].time_s * 1e9;
            prop_assert!((worked - work.iter().sum::<u64>() as f64).abs() < 1e-3);
        }
    }
}

#[test]
fn waits_of_an_overloaded_d_d_1_grow_linearly() {
    let mut model = single(Amount::Number(7.0), Amount::Number(10.0));
    model.sources[0].packets = Some(1000);
    let results = simulate(&model, &traced_though_unstable());
    let packets = &results.replications[0].trace.packets;
    for (n, (born, left)) in packets.born.iter().zip(&packets.left).enumerate() {
        assert_eq!(left - born, (10 + n as u64 * 3) * 1000);
    }
}

#[test]
fn a_departure_makes_room_for_an_arrival_at_the_same_time() {
    // One place, services as long as the gaps: at every instant one leaves and one comes; none is lost.
    let mut model = single(Amount::Number(10.0), Amount::Number(10.0));
    model.sources[0].packets = Some(100);
    model.queues[0].capacity_packets = Some(1);
    model.queues[0].frees = parshall_core::queueing::Frees::AtEnd;
    let results = simulate(&model, &traced_though_unstable());
    assert_eq!(results.replications[0].queues[0].lost, 0);
    assert_eq!(results.replications[0].balance.left, 100);
}

#[test]
fn interrupted_packets_keep_their_position_and_their_work() {
    // c1 starts at 10 with 100 of work; c0 interrupts it from 50 to 80: it leaves at 140, before the c1 of 20.
    let classes = [(vec![50], vec![30]), (vec![10, 10], vec![100, 5])];
    let (model, traces) = recorded_classes(StationKind::PreemptiveResume, &classes);
    let results = simulate_with(&model, &traced_though_unstable(), &traces);
    let packets = &results.replications[0].trace.packets;
    assert_eq!(packets.left, [80_000, 140_000, 145_000]);
    assert_eq!(packets.class, [0, 1, 1]);
}

/// Lengths that are known before the run are worked out then; drawn ones, which always come out the same, are not.
#[test]
fn service_times_follow_constant_and_random_lengths() {
    let drawn = |bytes: f64| Amount::Samples {
        samples: vec![bytes],
    };
    // Two sources of class "a", of equal lengths in the first model; in the second those of "b" become "a".
    for (other_class, lengths) in [
        ("a", [100.0, 100.0]),
        ("a", [100.0, 300.0]),
        ("b", [100.0, 300.0]),
    ] {
        let model = |length: &dyn Fn(f64) -> Amount| {
            let mut model = single(constant(50.0), constant(1.0));
            model.classes = vec!["a".into(), "b".into()];
            model.queues[0].service[0].per_byte_ns = 7.3;
            model.sources = vec![
                source("first", constant(50.0), "q"),
                source("second", constant(70.0), "q"),
            ];
            for ((source, class), bytes) in model
                .sources
                .iter_mut()
                .zip(["a", other_class])
                .zip(lengths)
            {
                source.class = class.into();
                source.size_bytes = length(bytes);
                source.packets = Some(20);
                source.to[0].becomes = Some("a".into());
            }
            if other_class == "a" {
                model.classes.pop();
                model
                    .sources
                    .iter_mut()
                    .for_each(|source| source.to[0].becomes = None);
            }
            model
        };
        let run = |model: Model| {
            simulate(&model, &traced_though_unstable())
                .replications
                .remove(0)
                .trace
        };
        let (known, unknown) = (run(model(&Amount::Number)), run(model(&drawn)));
        assert_eq!(known.visits.left, unknown.visits.left);
        assert_eq!(known.visits.started, unknown.visits.started);
        let visits = &known.visits;
        for (visit, (left, started)) in visits.left.iter().zip(&visits.started).enumerate() {
            let packet = known
                .packets
                .packet
                .iter()
                .position(|&number| number == visits.packet[visit])
                .unwrap();
            let bytes = f64::from(known.packets.bytes[packet]);
            assert_eq!(
                left - started,
                ((1000.0 + 7.3 * bytes) * 1000.0).round() as u64
            );
        }
    }
}

#[test]
fn a_source_ends_with_its_trace_of_lengths() {
    let mut traces = Traces::default();
    traces.add("lengths", &[100.0, 200.0, 300.0]).unwrap();
    let mut model = single(exponential(2.0), constant(1.0));
    model.sources[0].size_bytes = recorded("lengths");
    // It ends by itself, so that no duration need be given.
    let results = simulate_with(&model, &traced_though_unstable(), &traces);
    assert_eq!(results.replications[0].trace.packets.bytes, [100, 200, 300]);
    let last = results.replications[0].trace.packets.left[2] as f64 / 1e12;
    assert_eq!(results.replications[0].time_s, last);
}
