//! Conservation of packets, and the same results on any number of threads.

use crate::networks::*;
use parshall_core::queueing::{
    Amount, Batch, Blocking, Choice, Frees, Model, Policy, RunOptions, StationKind, Tags,
    Transition, Visited,
};
use proptest::prelude::*;

fn a_policy() -> impl Strategy<Value = Option<Policy>> {
    prop_oneof![
        Just(None),
        Just(Some(Policy::Fcfs)),
        Just(Some(Policy::RoundRobin { quantum_ns: None })),
        Just(Some(Policy::RoundRobin {
            quantum_ns: Some(300.0)
        })),
        Just(Some(Policy::WeightedFair { tags: Tags::Bytes })),
        Just(Some(Policy::Polling {
            batch: 4,
            budget: Some(9),
            budget_ns: None,
            yield_ns: 500.0,
            visit_ns: Amount::Number(10.0),
            wake_ns: None,
            visits: Visited::Nonempty,
        })),
    ]
}

fn a_kind() -> impl Strategy<Value = StationKind> {
    prop_oneof![
        Just(StationKind::NonPreemptive),
        Just(StationKind::PreemptiveResume),
        Just(StationKind::ProcessorSharing),
        Just(StationKind::Delay)
    ]
}

#[derive(Clone, Debug)]
struct Part {
    kind: StationKind,
    servers: u32,
    policy: Option<Policy>,
    queues: Vec<(u32, Option<u32>, bool, f64, u8)>,
}

fn a_part() -> impl Strategy<Value = Part> {
    let queue = (
        0u32..3,
        prop::option::of(1u32..6),
        any::<bool>(),
        0.1f64..1.5,
        any::<u8>(),
    );
    (
        a_kind(),
        1u32..3,
        a_policy(),
        prop::collection::vec(queue, 1..4),
    )
        .prop_map(|(kind, servers, policy, queues)| Part {
            kind,
            servers,
            policy,
            queues,
        })
}

/// Random networks without cycles, with random routes, clones, changes of class, blocking and losses.
fn a_network() -> impl Strategy<Value = Model> {
    prop::collection::vec(a_part(), 1..4).prop_map(|parts| {
        let mut model = Model {
            name: "random".into(),
            classes: vec!["a".into(), "b".into()],
            sinks: vec!["out".into()],
            ..Model::default()
        };
        for (number, part) in parts.iter().enumerate() {
            let name = format!("s{number}");
            let mut station = station(&name, part.kind);
            // A delay serves all its packets at once.
            if part.kind != StationKind::Delay {
                station.servers = part.servers;
            }
            let is_shared = matches!(
                part.kind,
                StationKind::ProcessorSharing | StationKind::Delay
            );
            if let (Some(shared), false) = (&part.policy, is_shared) {
                station.policies = policy(shared.clone());
                station.policies[0].priority = part.queues[0].0;
            }
            model.stations.push(station);
            for (index, (priority, capacity, at_end, service, bits)) in
                part.queues.iter().enumerate()
            {
                let mut queue = queue(
                    &format!("q{number}.{index}"),
                    &name,
                    exponential(*service),
                    "out",
                );
                queue.priority = *priority;
                queue.capacity_packets = *capacity;
                queue.frees = if *at_end {
                    Frees::AtEnd
                } else {
                    Frees::AtStart
                };
                if bits & 1 == 1 && !is_shared {
                    queue.batch = Some(Batch {
                        packets: 3,
                        cost_ns: 50.0,
                    });
                }
                model.queues.push(queue);
            }
        }
        let names: Vec<String> = model
            .queues
            .iter()
            .map(|queue| queue.name.clone())
            .collect();
        let bits: Vec<u8> = parts
            .iter()
            .flat_map(|part| part.queues.iter().map(|queue| queue.4))
            .collect();
        let stations: Vec<String> = model
            .queues
            .iter()
            .map(|queue| queue.station.clone())
            .collect();
        for (at, queue) in model.queues.iter_mut().enumerate() {
            let Some(next) = names.get(at + 1) else {
                continue;
            };
            let is_shared = model.stations.iter().any(|s| {
                s.name == queue.station
                    && matches!(s.kind, StationKind::ProcessorSharing | StationKind::Delay)
            });
            let has_quantum = model.stations.iter().any(|s| {
                s.name == queue.station
                    && s.policies.iter().any(|level| {
                        matches!(
                            level.policy,
                            Policy::RoundRobin {
                                quantum_ns: Some(_)
                            }
                        )
                    })
            });
            // A packet that waits for room in another queue of its own station would deadlock.
            let is_after = !stations[at + 1].eq(&stations[at]) && bits[at] & 64 != 0;
            let mut first = Transition::to(next);
            match bits[at] >> 1 & 3 {
                0 => {
                    first.blocks =
                        queue.batch.is_none() && (is_after || !is_shared && !has_quantum);
                    if first.blocks && is_after {
                        queue.blocking = Blocking::AfterService;
                    }
                }
                1 => {
                    if queue.batch.is_none() && is_after {
                        first.blocks = true;
                        queue.blocking = Blocking::AfterService;
                    }
                    first.to[0].probability = 0.25;
                    first.to.push(Choice {
                        place: "out".into(),
                        probability: 0.75,
                    });
                }
                2 => first.becomes = Some("b".into()),
                _ => (),
            }
            queue.to = vec![first];
            if bits[at] >> 3 & 3 == 0 {
                queue.to.push(Transition {
                    becomes: Some("a".into()),
                    ..Transition::to("out")
                });
            }
        }
        model.sources = vec![
            source("a", exponential(1.0), &names[0]),
            source("b", exponential(2.0), &names[0]),
        ];
        for source in &mut model.sources {
            source.size_bytes =
                parshall_core::queueing::Amount::Text("uniform:low=64,high=1500".into());
        }
        model
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn every_packet_has_left_or_was_lost_or_is_inside(model in a_network(), seed in any::<u64>()) {
        let options = RunOptions {
            seed,
            duration_ns: Some(2000.0 * US),
            warm_up_ns: Some(300.0 * US),
            replications: 3,
            threads: Some(1),
            allow_unstable: true,
            ..RunOptions::default()
        };
        let one = simulate(&model, &options);
        for replication in &one.replications {
            let balance = replication.balance;
            prop_assert_eq!(
                balance.inside_before + balance.entered + balance.cloned,
                balance.left + balance.lost + balance.inside
            );
            prop_assert!(balance.entered > 0);
            let lost: u64 = replication.queues.iter().map(|queue| queue.lost).sum();
            let left: u64 = replication.sinks.iter().map(|sink| sink.packets + sink.clones).sum();
            prop_assert_eq!((lost, left), (balance.lost, balance.left));
            for (queue, length) in model.queues.iter().zip(&replication.lengths) {
                if let (Some(capacity), Frees::AtEnd) = (queue.capacity_packets, queue.frees) {
                    prop_assert!(length.longest <= u64::from(capacity), "{} held {}", queue.name, length.longest);
                }
            }
            for (station, load) in model.stations.iter().zip(&replication.stations) {
                if station.kind != StationKind::Delay {
                    prop_assert!(load.utilisation <= 1.0 + 1e-12);
                }
            }
        }
        // The same on three threads and with a trace, to the last bit.
        for (threads, trace) in [(3, false), (1, true)] {
            let other = simulate(&model, &RunOptions { threads: Some(threads), trace, ..options.clone() });
            for (first, second) in one.replications.iter().zip(&other.replications) {
                prop_assert_eq!(serde_json::to_string(first).unwrap(), serde_json::to_string(second).unwrap());
            }
        }
    }

    #[test]
    fn traces_have_every_packet_and_visit_when_sources_end(model in a_network()) {
        let mut model = model;
        model.sources.iter_mut().for_each(|source| source.packets = Some(500));
        let options = RunOptions { allow_unstable: true, ..traced() };
        let results = simulate(&model, &options);
        let replication = &results.replications[0];
        prop_assert_eq!(replication.balance.entered, 1000);
        prop_assert_eq!(replication.balance.inside, 0);
        prop_assert_eq!(replication.trace.packets.packet.len() as u64, replication.balance.left + replication.balance.lost);
        let visits: u64 = replication.queues.iter().map(|queue| queue.arrived).sum();
        prop_assert_eq!(replication.trace.visits.packet.len() as u64, visits);
    }
}

#[test]
fn thirty_constant_stations_delay_by_the_sum_of_their_services() {
    let mut model = single(constant(1.0), constant(0.5));
    model.sources[0].packets = Some(100);
    for number in 1..30 {
        model
            .stations
            .push(station(&format!("s{number}"), StationKind::NonPreemptive));
        let last = model.queues.len() - 1;
        model.queues[last].to = vec![Transition::to(&format!("q{number}"))];
        model.queues.push(queue(
            &format!("q{number}"),
            &format!("s{number}"),
            constant(0.5),
            "out",
        ));
    }
    let results = simulate(&model, &traced());
    let packets = &results.replications[0].trace.packets;
    assert_eq!(packets.left.len(), 100);
    assert!(
        packets
            .born
            .iter()
            .zip(&packets.left)
            .all(|(born, left)| left - born == 15_000_000)
    );
}
