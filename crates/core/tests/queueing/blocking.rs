//! Blocking after service: against Markov chains solved numerically, and schedules worked out by hand.

use crate::networks::*;
use parshall_core::queueing::{
    Amount, Blocking, Choice, Frees, Model, Network, RunOptions, StationKind, Traces, Transition,
    run,
};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

fn blocking_to(place: &str) -> Vec<Transition> {
    vec![Transition {
        blocks: true,
        ..Transition::to(place)
    }]
}

/// Poisson arrivals at `first`, of room for `room.0` with those in service; then a queue of a single server, of room
/// for `room.1`, for which they wait after service. Exponential services.
fn tandem(
    kind: StationKind,
    servers: u32,
    rate: f64,
    means: (f64, f64),
    room: (u32, u32),
) -> Model {
    let mut model = single(exponential(1.0 / rate), exponential(means.0));
    model.stations[0].kind = kind;
    model.stations[0].servers = servers;
    model
        .stations
        .push(station("s2", StationKind::NonPreemptive));
    let first = &mut model.queues[0];
    first.capacity_packets = Some(room.0);
    first.frees = Frees::AtEnd;
    first.blocking = Blocking::AfterService;
    first.to = blocking_to("q2");
    let mut second = queue("q2", "s2", exponential(means.1), "out");
    second.capacity_packets = Some(room.1);
    second.frees = Frees::AtEnd;
    model.queues.push(second);
    model
}

/// Measures from the stationary distribution of the tandem.
struct Expected {
    loss: f64,
    lengths: (f64, f64),
    blocked: f64,
}

/// Solves the chain of (packets at work or waiting for it, packets blocked, packets at the second station); `work`
/// is at which rate services of the first station end, by the first two.
fn solve(rate: f64, second: f64, room: (u32, u32), work: impl Fn(u32, u32) -> f64) -> Expected {
    let mut states = Vec::new();
    for next in 0..=room.1 {
        for blocked in 0..=if next == room.1 { room.0 } else { 0 } {
            for open in 0..=room.0 - blocked {
                states.push((open, blocked, next));
            }
        }
    }
    let numbers: BTreeMap<_, _> = states.iter().enumerate().map(|(n, s)| (*s, n)).collect();
    let mut moves: Vec<(usize, usize, f64)> = Vec::new();
    for (number, &(open, blocked, next)) in states.iter().enumerate() {
        let mut to = |state: (u32, u32, u32), rate: f64| {
            if rate > 0.0 {
                moves.push((number, numbers[&state], rate));
            }
        };
        if open + blocked < room.0 {
            to((open + 1, blocked, next), rate);
        }
        let ends = if open > 0 { work(open, blocked) } else { 0.0 };
        if ends > 0.0 && next < room.1 {
            to((open - 1, blocked, next + 1), ends);
        } else if ends > 0.0 {
            to((open - 1, blocked + 1, next), ends);
        }
        if next > 0 && blocked > 0 {
            to((open, blocked - 1, next), second);
        } else if next > 0 {
            to((open, blocked, next - 1), second);
        }
    }
    // Steps of the uniformised chain, at the rate of its fastest state.
    let mut out = vec![0.0; states.len()];
    moves.iter().for_each(|&(from, _, rate)| out[from] += rate);
    let quickest = out.iter().copied().fold(0.0, f64::max) * 1.01;
    let mut chances = vec![1.0 / states.len() as f64; states.len()];
    for _ in 0..20_000 {
        let mut after: Vec<f64> = chances
            .iter()
            .zip(&out)
            .map(|(chance, out)| chance * (1.0 - out / quickest))
            .collect();
        for &(from, to, rate) in &moves {
            after[to] += chances[from] * rate / quickest;
        }
        chances = after;
    }
    let mean = |of: &dyn Fn(&(u32, u32, u32)) -> f64| -> f64 {
        let each = states.iter().zip(&chances);
        each.map(|(state, chance)| of(state) * chance).sum()
    };
    Expected {
        loss: mean(&|state| f64::from(state.0 + state.1 == room.0)),
        lengths: (
            mean(&|state| f64::from(state.0 + state.1)),
            mean(&|state| f64::from(state.2)),
        ),
        blocked: mean(&|state| f64::from(state.1)),
    }
}

#[test]
fn blocking_tandems_agree_with_their_markov_chains() {
    let (rate, means, room) = (1.2, (0.8, 1.0), (6, 2));
    let first = 1.0 / means.0;
    type Work = Box<dyn Fn(u32, u32) -> f64>;
    let cases: [(StationKind, u32, Work); 5] = [
        (
            StationKind::NonPreemptive,
            1,
            Box::new(move |_, blocked| if blocked > 0 { 0.0 } else { first }),
        ),
        (
            StationKind::NonPreemptive,
            3,
            Box::new(move |open, blocked| f64::from(open.min(3 - blocked)) * first),
        ),
        (
            StationKind::PreemptiveResume,
            1,
            Box::new(move |_, blocked| if blocked > 0 { 0.0 } else { first }),
        ),
        (
            StationKind::ProcessorSharing,
            1,
            Box::new(move |_, _| first),
        ),
        (
            StationKind::Delay,
            1,
            Box::new(move |open, _| f64::from(open) * first),
        ),
    ];
    for (kind, servers, work) in cases {
        let expected = solve(rate, 1.0 / means.1, room, work);
        let options = RunOptions {
            seed: 5,
            duration_ns: Some(300_000.0 * US),
            warm_up_ns: Some(1_000.0 * US),
            replications: 6,
            ..RunOptions::default()
        };
        let results = simulate(&tandem(kind, servers, rate, means, room), &options);
        let get = |place: &str, class: &str, measure: &str| {
            estimate(&results, place, class, measure).interval.mean
        };
        let shown = format!("{kind:?} of {servers}");
        for (found, expected) in [
            (get("q", "c", "loss"), expected.loss),
            (get("q", "", "length"), expected.lengths.0),
            (get("q2", "", "length"), expected.lengths.1),
            (
                get("s", "", "blocked") * f64::from(servers),
                expected.blocked,
            ),
            (
                get("out", "c", "throughput_pps"),
                (1.0 - expected.loss) * rate * 1e6,
            ),
        ] {
            assert!(
                (found / expected - 1.0).abs() < 0.015,
                "{shown}: {found}, expected {expected}"
            );
        }
        // The second queue loses no packets.
        assert_eq!(get("q2", "c", "loss"), 0.0);
    }
}

fn written(gaps: &[f64], model: &mut Model) -> Vec<u64> {
    let mut traces = Traces::default();
    traces.add("gaps", gaps).unwrap();
    model.sources[0].gap_ns = recorded("gaps");
    let results = simulate_with(model, &traced(), &traces);
    results.replications[0].trace.packets.left.clone()
}

#[test]
fn a_blocked_server_serves_no_packet() {
    // 1 ns, then 10 ns behind one place: the first leaves at 11; the second, served at 2, moves on at 11 and leaves
    // at 21; the third is served only from 11 on.
    let mut model = tandem(StationKind::NonPreemptive, 1, 1.0, (1.0, 1.0), (9, 1));
    model.queues[0].service[0].time_ns = Amount::Number(1.0);
    model.queues[1].service[0].time_ns = Amount::Number(10.0);
    assert_eq!(
        written(&[0.0, 0.0, 0.0], &mut model),
        [11_000, 21_000, 31_000]
    );
    let options = RunOptions {
        replications: 1,
        ..RunOptions::default()
    };
    let mut traces = Traces::default();
    traces.add("gaps", &[0.0, 0.0, 0.0]).unwrap();
    let results = simulate_with(&model, &options, &traces);
    let load = &results.replications[0].stations[0];
    // 3 ns of 31 at work; blocked from 2 to 11 and from 12 to 21.
    assert!((load.utilisation - 3.0 / 31.0).abs() < 1e-12);
    assert!((load.blocked.unwrap() - 18.0 / 31.0).abs() < 1e-12);
}

#[test]
fn the_packet_blocked_longest_leaves_first_at_any_station() {
    // Three stations before one place; served at 3, 2 and 1 behind a packet that stays until 20.
    let mut model = single(constant(1.0), Amount::Number(10.0));
    let mut traces = Traces::default();
    (model.sources, model.queues, model.stations) = (vec![], vec![], vec![]);
    model.classes.clear();
    for (number, work) in [3.0, 2.0, 1.0, 0.5].into_iter().enumerate() {
        let (class, own, at) = (
            format!("c{number}"),
            format!("q{number}"),
            format!("s{number}"),
        );
        traces.add(&class, &[0.0]).unwrap();
        model.sources.push(source(&class, recorded(&class), &own));
        model.classes.push(class);
        model
            .stations
            .push(station(&at, StationKind::NonPreemptive));
        let mut each = queue(&own, &at, Amount::Number(work), "out");
        each.to = blocking_to("last");
        each.blocking = Blocking::AfterService;
        model.queues.push(each);
    }
    model
        .stations
        .push(station("t", StationKind::NonPreemptive));
    let mut last = queue("last", "t", Amount::Number(10.0), "out");
    last.capacity_packets = Some(1);
    last.frees = Frees::AtEnd;
    model.queues.push(last);
    let results = simulate_with(&model, &traced(), &traces);
    assert_eq!(results.replications[0].trace.packets.class, [3, 2, 1, 0]);
}

/// Two queues that send half of their packets to each other.
fn cycle(room: u32) -> Model {
    let mut model = single(exponential(1.0), exponential(0.3));
    model
        .stations
        .push(station("s2", StationKind::NonPreemptive));
    let mut second = queue("q2", "s2", exponential(0.3), "out");
    let half = |place: &str| {
        let choice = |place: &str| Choice {
            place: place.into(),
            probability: 0.5,
        };
        vec![Transition {
            to: vec![choice(place), choice("out")],
            blocks: true,
            ..Transition::to(place)
        }]
    };
    model.queues[0].to = half("q2");
    second.to = half("q");
    model.queues.push(second);
    for queue in &mut model.queues {
        queue.capacity_packets = Some(room);
        queue.frees = Frees::AtEnd;
        queue.blocking = Blocking::AfterService;
    }
    model
}

#[test]
fn a_deadlock_ends_the_run_with_the_names_of_its_queues() {
    let network = Network::new(cycle(1), &Traces::default(), false).unwrap();
    let options = RunOptions {
        duration_ns: Some(1e9),
        warm_up_ns: Some(0.0),
        ..RunOptions::default()
    };
    let error = run(&network, &options, &AtomicBool::new(false)).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("q -> q2 -> q") || text.contains("q2 -> q -> q2"),
        "{text}"
    );
    assert!(text.contains("deadlock") && !text.contains('\n'), "{text}");
    // A server that waits for room in another queue of its own station.
    let mut own = tandem(StationKind::NonPreemptive, 1, 1.0, (0.5, 0.1), (9, 1));
    own.stations.truncate(1);
    own.queues[1].station = "s".into();
    own.queues[1].priority = 1;
    let network = Network::new(own, &Traces::default(), false).unwrap();
    let text = run(&network, &options, &AtomicBool::new(false))
        .unwrap_err()
        .to_string();
    assert!(text.contains("queues q -> q wait"), "{text}");
    // With room for all arrivals no deadlock is possible.
    let mut model = cycle(50);
    model.sources[0].packets = Some(40);
    let done = simulate(
        &model,
        &RunOptions {
            replications: 3,
            ..RunOptions::default()
        },
    );
    assert!(done.replications.iter().all(|one| one.balance.left == 40));
    // Of two that block before service, as before, the cycle itself is refused.
    let mut model = cycle(1);
    for queue in &mut model.queues {
        queue.blocking = Blocking::BeforeService;
        queue.to.iter_mut().for_each(|way| way.to.truncate(1));
        queue.to[0].to[0].probability = 1.0;
    }
    model.queues[1].to.push(Transition::to("out"));
    assert!(refused(&model).contains("form a cycle"));
}

#[test]
fn invalid_blocking_after_service_is_refused() {
    let mut model = tandem(StationKind::Delay, 1, 1.0, (1.0, 1.0), (5, 1));
    model.queues[0].blocking = Blocking::BeforeService;
    let text = refused(&model);
    assert!(
        text.contains("after-service") && text.contains("share"),
        "{text}"
    );
    let mut model = tandem(StationKind::NonPreemptive, 1, 1.0, (1.0, 1.0), (5, 1));
    model.queues[0].to[0].blocks = false;
    assert!(refused(&model).contains("blocks = true"));
}

#[test]
fn blocked_clones_count_their_waits_as_latency() {
    // A packet and its clone leave together when there is room for the clone: at 1 the first, whose clone is served
    // until 11; the second packet waits for that until 11, its clone until 21.
    let mut model = tandem(StationKind::NonPreemptive, 1, 1.0, (1.0, 1.0), (9, 1));
    model.queues[0].service[0].time_ns = Amount::Number(1.0);
    model.queues[1].service[0].time_ns = Amount::Number(10.0);
    model.queues[0].to = vec![Transition::to("gone"), blocking_to("q2").remove(0)];
    model.sinks.push("gone".into());
    let mut traces = Traces::default();
    traces.add("gaps", &[0.0, 0.0]).unwrap();
    model.sources[0].gap_ns = recorded("gaps");
    let options = RunOptions {
        replications: 1,
        ..RunOptions::default()
    };
    let results = simulate_with(&model, &options, &traces);
    let get = |place: &str, measure: &str| estimate(&results, place, "c", measure).interval.mean;
    assert_eq!(get("gone", "latency_ns"), 6.0);
    assert_eq!(get("out", "clone_latency_ns"), 16.0);
    assert_eq!(results.clone_latencies.len(), 1);
    assert_eq!(results.clone_latencies[0].packets, 2);
    assert_eq!(results.clone_latencies[0].sink, "out");
}

/// Queues with a station each, and for each of them the two that it leads to, after service.
fn pairs(leads: &[[String; 2]]) -> Model {
    let mut model = single(exponential(100.0), exponential(0.3));
    model.stations.clear();
    model.queues.clear();
    model.sources[0].to = vec![Transition::to("q0")];
    for (number, places) in leads.iter().enumerate() {
        let own = format!("s{number}");
        model
            .stations
            .push(station(&own, StationKind::NonPreemptive));
        let mut queue = queue(&format!("q{number}"), &own, exponential(0.3), "out");
        queue.to = blocking_to("out");
        queue.to[0].to = places
            .iter()
            .map(|place| Choice {
                place: place.clone(),
                probability: 0.5,
            })
            .collect();
        queue.capacity_packets = Some(4);
        queue.blocking = Blocking::AfterService;
        model.queues.push(queue);
    }
    model
}

fn block_before(model: &mut Model, queue: usize, to: &str) {
    model.queues[queue].blocking = Blocking::BeforeService;
    model.queues[queue].to = blocking_to(to);
}

#[test]
fn only_cycles_that_block_before_service_are_refused() {
    let name = |number: usize| format!("q{number}");
    // Two cycles of two, and a queue between them.
    let leads = [
        [name(1), "out".into()],
        [name(0), name(2)],
        [name(3), "out".into()],
        [name(4), "out".into()],
        [name(3), "out".into()],
    ];
    let mut model = pairs(&leads);
    Network::new(model.clone(), &Traces::default(), false).unwrap();
    // It is on neither cycle.
    block_before(&mut model, 2, "q3");
    Network::new(model.clone(), &Traces::default(), false).unwrap();
    block_before(&mut model, 4, "q3");
    let text = refused(&model);
    assert!(text.contains("q4 -> q3 -> q4"), "{text}");
}

#[test]
fn a_cycle_of_ten_thousand_stations_is_checked() {
    let count = 10_000;
    let leads: Vec<[String; 2]> = (1..=count)
        .map(|next| [format!("q{}", next % count), "out".into()])
        .collect();
    let mut model = pairs(&leads);
    Network::new(model.clone(), &Traces::default(), false).unwrap();
    block_before(&mut model, 7_000, "q7001");
    assert!(refused(&model).contains("form a cycle"));
}

#[test]
fn the_stability_check_includes_the_rate_factor() {
    let mut model = single(exponential(1.0), exponential(0.6));
    Network::new(model.clone(), &Traces::default(), false).unwrap();
    model.sources[0].rate_factor = 2.0;
    let text = refused(&model);
    assert!(text.contains("1.2"), "{text}");
    // Gaps of 1 us would be of 0.01 ns.
    model.sources[0].rate_factor = 1e5;
    let text = refused(&model);
    assert!(text.contains("gap_ns") && text.contains("0.01"), "{text}");
    for factor in [0.0, -1.0, 1e-10, 1e10, f64::INFINITY, f64::NAN] {
        model.sources[0].rate_factor = factor;
        let text = refused(&model);
        assert!(text.contains("rate_factor"), "{text}");
    }
}
