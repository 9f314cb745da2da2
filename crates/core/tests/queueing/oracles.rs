//! Closed formulas. Each value must lie inside a narrow 99 % confidence interval of 20 independent
//! replications.

use crate::networks::*;
use parshall_core::queueing::{
    Amount, Frees, Model, Policy, RunOptions, StationKind, Tags, Transition,
};

const REPLICATIONS: u32 = 20;

fn options(customers: f64, rate: f64) -> RunOptions {
    RunOptions {
        seed: 20020428,
        duration_ns: Some(customers / rate * US),
        warm_up_ns: Some(2000.0 * US),
        replications: REPLICATIONS,
        confidence: 0.99,
        ..RunOptions::default()
    }
}

/// Checks an expectation, in the model's unit (1 us, or none), against an estimate.
#[track_caller]
fn holds(
    model: &Model,
    options: &RunOptions,
    expectations: &[(&str, &str, &str, f64)],
    narrow: f64,
) {
    let results = simulate(model, options);
    for &(place, class, measure, expected) in expectations {
        let interval = estimate(&results, place, class, measure).interval;
        let unit = if measure.ends_with("_ns") { US } else { 1.0 };
        let (mean, half_width) = (interval.mean / unit, interval.half_width.unwrap() / unit);
        println!(
            "{measure} of {class:?} at {place}: {mean:.6} +- {half_width:.6}, expected {expected}"
        );
        assert!(
            (mean - expected).abs() <= half_width,
            "{measure} of {class:?} at {place}: {mean} +- {half_width}, expected {expected}"
        );
        assert!(
            half_width < narrow * expected,
            "{measure} at {place}: {mean} +- {half_width} is too wide"
        );
    }
}

#[test]
fn m_m_1() {
    let model = single(exponential(1.25), exponential(1.0));
    holds(
        &model,
        &options(150_000.0, 0.8),
        &[
            ("out", "c", "latency_ns", 5.0),
            ("q", "", "length", 4.0),
            ("s", "", "utilisation", 0.8),
        ],
        0.04,
    );
}

#[test]
fn m_m_1_tail() {
    let results = simulate(
        &single(exponential(1.25), exponential(1.0)),
        &options(150_000.0, 0.8),
    );
    // P(T > t) = exp(-(mu - lambda) t); 8 million customers leave an error of a few 1e-4, and the
    // histogram's digits one of as many.
    for t_us in [5.0, 10.0, 20.0] {
        let expected = f64::exp(-0.2 * t_us);
        let ccdf = &results.latencies[0].ccdf;
        let at = ccdf.partition_point(|point| point.0 <= t_us * US);
        let (before, after) = (ccdf[at - 1], ccdf[at]);
        let part = (t_us * US - before.0) / (after.0 - before.0);
        let found = before.1 + part * (after.1 - before.1);
        assert!(
            (found - expected).abs() < 0.02 * expected,
            "P(T > {t_us}) = {found}, expected {expected}"
        );
    }
}

#[test]
fn m_d_1() {
    let model = single(exponential(1.25), constant(1.0));
    holds(
        &model,
        &options(120_000.0, 0.8),
        &[("q", "c", "wait_ns", 2.0)],
        0.04,
    );
}

#[test]
fn m_g_1_with_uniform_services() {
    let service = Amount::Text("uniform:low=0,high=2000".into());
    let model = single(exponential(1.25), service);
    holds(
        &model,
        &options(120_000.0, 0.8),
        &[("q", "c", "wait_ns", 8.0 / 3.0)],
        0.04,
    );
}

#[test]
fn m_m_1_k() {
    for (places, rho, loss, customers) in [
        (10, 0.8, 0.023493, 100_000.0),
        (50, 0.95, 0.0041507, 400_000.0),
    ] {
        let mut model = single(exponential(1.0 / rho), exponential(1.0));
        model.queues[0].capacity_packets = Some(places);
        model.queues[0].frees = Frees::AtEnd;
        holds(
            &model,
            &options(customers, rho),
            &[("q", "c", "loss", loss)],
            0.15,
        );
    }
}

#[test]
fn m_d_1_k_has_room_for_k_packets_besides_the_server() {
    for (waiting, loss) in [(10, 0.0023534), (50, 3.005e-4)] {
        // With 50 waiting places, only a load as high as .95 gives a measurable loss.
        let rho = if waiting == 10 { 0.8 } else { 0.95 };
        let mut model = single(exponential(1.0 / rho), constant(1.0));
        model.queues[0].capacity_packets = Some(waiting);
        holds(
            &model,
            &options(500_000.0, rho),
            &[("q", "c", "loss", loss)],
            0.4,
        );
    }
}

/// Two classes at a station, with exponential and with constant services; `expected` has the measure of each class.
fn two_classes(kind: StationKind, measure: &str, expected: [[f64; 2]; 2]) {
    for (service, expected) in [exponential(1.0), constant(1.0)].into_iter().zip(expected) {
        let classes = [
            (exponential(2.5), service.clone()),
            (exponential(2.5), service),
        ];
        let model = prioritised(kind, &classes);
        let expected = [
            ("q0", "c0", measure, expected[0]),
            ("q1", "c1", measure, expected[1]),
        ];
        holds(&model, &options(150_000.0, 0.8), &expected, 0.06);
    }
}

#[test]
fn two_classes_without_preemption() {
    let waits = [[1.3333333, 6.6666667], [0.6666667, 3.3333333]];
    two_classes(StationKind::NonPreemptive, "wait_ns", waits);
}

#[test]
fn two_classes_with_preemption() {
    let sojourns = [[1.6666667, 8.3333333], [1.3333333, 5.0]];
    two_classes(StationKind::PreemptiveResume, "sojourn_ns", sojourns);
}

#[test]
fn tandem() {
    let mut model = single(exponential(1.25), exponential(1.0));
    model
        .stations
        .push(station("s2", StationKind::NonPreemptive));
    model.queues[0].to = vec![Transition::to("q2")];
    model
        .queues
        .push(queue("q2", "s2", exponential(0.8), "out"));
    holds(
        &model,
        &options(120_000.0, 0.8),
        &[("out", "c", "latency_ns", 5.0 + 1.0 / 0.45)],
        0.04,
    );
}

#[test]
fn processor_sharing_is_insensitive_to_the_service_distribution() {
    // Services of 0.4 and 1.6 with probability 1/2 each: mean 1, and T(x) = x / (1 - rho) for both.
    let mut model = single(exponential(1.25), constant(1.0));
    model.stations[0].kind = StationKind::ProcessorSharing;
    model.classes = vec!["short".into(), "long".into()];
    model.sources = vec![
        source("short", exponential(2.5), "short"),
        source("long", exponential(2.5), "long"),
    ];
    model.queues = vec![
        queue("short", "s", constant(0.4), "out"),
        queue("long", "s", constant(1.6), "out"),
    ];
    let expected = [
        ("short", "short", "sojourn_ns", 2.0),
        ("long", "long", "sojourn_ns", 8.0),
        // Each queue's part of the server's time is its load.
        ("short", "", "utilisation", 0.4 * 0.4),
        ("long", "", "utilisation", 0.4 * 1.6),
    ];
    holds(&model, &options(150_000.0, 0.8), &expected, 0.04);
}

#[test]
fn processor_sharing_with_exponential_services() {
    let mut model = single(exponential(1.25), exponential(1.0));
    model.stations[0].kind = StationKind::ProcessorSharing;
    holds(
        &model,
        &options(150_000.0, 0.8),
        &[
            ("out", "c", "latency_ns", 5.0),
            ("s", "", "utilisation", 0.8),
        ],
        0.04,
    );
}

#[test]
fn several_servers() {
    for (servers, rate, wait) in [(2, 1.6, 1.7777778), (4, 3.2, 0.74554)] {
        let mut model = single(exponential(1.0 / rate), exponential(1.0));
        model.stations[0].servers = servers;
        holds(
            &model,
            &options(200_000.0, rate),
            &[("q", "c", "wait_ns", wait)],
            0.06,
        );
    }
}

#[test]
fn erlang_loss() {
    // M/M/5/5 with 3 erlang: B(5, 3) = 0.11005.
    let mut model = single(exponential(1.0 / 3.0), exponential(1.0));
    model.stations[0].servers = 5;
    model.queues[0].capacity_packets = Some(5);
    model.queues[0].frees = Frees::AtEnd;
    holds(
        &model,
        &options(120_000.0, 3.0),
        &[("q", "c", "loss", 0.110054)],
        0.04,
    );
}

#[test]
fn a_delay_has_no_queue() {
    let mut model = single(exponential(0.5), exponential(3.0));
    model.stations[0].kind = StationKind::Delay;
    let expected = [
        ("out", "c", "latency_ns", 3.0),
        ("s", "", "utilisation", 6.0),
        ("q", "", "utilisation", 6.0),
    ];
    holds(&model, &options(200_000.0, 2.0), &expected, 0.01);
}

#[test]
fn feedback_with_probability_multiplies_the_visits() {
    // Jackson: each visit ends with probability 1/2, so 2 visits; rho = .4 x 2 = .8, T = 1/(mu/2 - .4) = 10.
    let mut model = single(exponential(2.5), exponential(1.0));
    model.queues[0].to[0].to[0].probability = 0.5;
    let back = parshall_core::queueing::Choice {
        place: "q".into(),
        probability: 0.5,
    };
    model.queues[0].to[0].to.push(back);
    holds(
        &model,
        &options(120_000.0, 0.4),
        &[("out", "c", "latency_ns", 10.0)],
        0.06,
    );
}

#[test]
fn weighted_fair_queueing_gives_max_min_fair_shares() {
    // Capacity 1; c0 requests .1 and gets it; c1 and c2 request 1 each and share the rest 1 : 2.
    let gaps = [10.0, 1.0, 1.0];
    let classes: Vec<_> = gaps
        .iter()
        .map(|&gap| (exponential(gap), constant(1.0)))
        .collect();
    let mut model = prioritised(StationKind::NonPreemptive, &classes);
    for (number, queue) in model.queues.iter_mut().enumerate() {
        queue.priority = 0;
        queue.weight = [1.0, 1.0, 2.0][number];
        queue.capacity_packets = Some(100);
    }
    model.stations[0].policies = policy(Policy::WeightedFair { tags: Tags::Time });
    let results = simulate(&model, &options(200_000.0, 1.0));
    for (class, share) in [("c0", 0.1), ("c1", 0.3), ("c2", 0.6)] {
        let found = estimate(&results, "out", class, "throughput_pps")
            .interval
            .mean
            / 1e6;
        assert!(
            (found - share).abs() < 0.003,
            "{class}: {found}, expected {share}"
        );
    }
}

#[test]
fn fair_shares_are_in_the_unit_of_the_tags() {
    // Lengths 1 : 3 and services as long as the packets: equal shares of bytes or of time are 3 : 1
    // packets, equal shares of packets are 1 : 1.
    for (tags, ratio) in [(Tags::Bytes, 3.0), (Tags::Time, 3.0), (Tags::Packets, 1.0)] {
        let classes = [
            (constant(0.9), constant(1.0)),
            (constant(0.9), constant(3.0)),
        ];
        let mut model = prioritised(StationKind::NonPreemptive, &classes);
        for number in 0..2 {
            model.queues[number].priority = 0;
            model.queues[number].capacity_packets = Some(50);
            model.sources[number].size_bytes = Amount::Number([500.0, 1500.0][number]);
        }
        model.stations[0].policies = policy(Policy::WeightedFair { tags });
        let results = simulate(&model, &options(50_000.0, 1.0));
        let rate = |class| {
            estimate(&results, "out", class, "throughput_pps")
                .interval
                .mean
        };
        let found = rate("c0") / rate("c1");
        assert!(
            (found - ratio).abs() < 0.01 * ratio,
            "{tags:?}: {found}, expected {ratio}"
        );
    }
}
