//! Polling by a server that takes time to wake, against the M/G/1 queue with set-up times.

use crate::networks::*;
use parshall_core::queueing::{Amount, Model, Policy, RunOptions, StationKind, Traces, Visited};

/// Poisson arrivals (per us) at a server with exponential services of 1 us and a time to wake.
fn sleeper(rate: f64, wake_ns: Amount, batch: u32) -> Model {
    let mut model = single(exponential(1.0 / rate), exponential(1.0));
    model.stations[0].policies = policy(polling(wake_ns, batch, Visited::Nonempty));
    model
}

fn polling(wake_ns: Amount, batch: u32, visits: Visited) -> Policy {
    Policy::Polling {
        batch,
        budget: None,
        budget_ns: None,
        yield_ns: 0.0,
        visit_ns: Amount::Number(0.0),
        wake_ns: Some(wake_ns),
        visits,
    }
}

/// Mean wait until service without the time to wake, us.
fn wait_us(model: &Model) -> f64 {
    let options = RunOptions {
        seed: 12,
        duration_ns: Some(400_000.0 * US),
        warm_up_ns: Some(2_000.0 * US),
        replications: 8,
        ..RunOptions::default()
    };
    let results = simulate(model, &options);
    let name = &model.queues[0].name;
    let class = &model.classes[0];
    estimate(&results, name, class, "sojourn_ns").interval.mean / US - 1.0
}

#[test]
fn waits_agree_with_the_queue_with_set_up_times() {
    // Each time to wake, load and batch.
    agree_with_set_up_times(|case| [0, 1, 4, 9, 14, 23].contains(&case));
}

#[test]
#[ignore = "24 simulations: make test-long"]
fn long_waits_agree_with_the_queue_with_set_up_times() {
    agree_with_set_up_times(|_| true);
}

fn agree_with_set_up_times(is_wanted: impl Fn(usize) -> bool) {
    // W = lambda E[S^2] / (2 (1 - rho)) + (2 E[D] + lambda E[D^2]) / (2 (1 + lambda E[D])): Welch, Operations
    // Research 12 (1964), 736-752; Takagi, Queueing Analysis 1 (1991), 2.2. Whatever the batch: the server wakes once.
    let samples = Amount::Samples {
        samples: vec![1.0 * US, 9.0 * US],
    };
    let histogram = Amount::Histogram {
        bounds: vec![0.0, 4.0 * US],
        counts: vec![1.0],
    };
    let mut case = 0..;
    for (wake, mean, square) in [
        (Amount::Number(8.0 * US), 8.0, 64.0),
        (exponential(8.0), 8.0, 128.0),
        (samples, 5.0, 41.0),
        (histogram, 2.0, 16.0 / 3.0),
    ] {
        for rate in [0.05, 0.3, 0.8] {
            for batch in [1, 64] {
                if !case.next().is_some_and(&is_wanted) {
                    continue;
                }
                let found = wait_us(&sleeper(rate, wake.clone(), batch));
                let expected = 2.0 * rate / (2.0 * (1.0 - rate))
                    + (2.0 * mean + rate * square) / (2.0 * (1.0 + rate * mean));
                assert!(
                    (found / expected - 1.0).abs() < 0.03,
                    "{wake:?}, rate {rate}, batch {batch}: {found}, expected {expected}"
                );
            }
        }
    }
}

#[test]
fn only_the_first_packet_after_an_idle_time_waits_for_the_wake_up() {
    // Wake-ups of 100 ns, services of 10. The first leaves at 110; the second, which comes at 50, at 120. The third
    // comes at 250 to a server that sleeps, the fourth at 255.
    let mut traces = Traces::default();
    traces.add("gaps", &[0.0, 50.0, 200.0, 5.0]).unwrap();
    let mut model = single(recorded("gaps"), Amount::Number(10.0));
    model.stations[0].policies = policy(polling(Amount::Number(100.0), 1, Visited::Nonempty));
    let results = simulate_with(&model, &traced(), &traces);
    assert_eq!(
        results.replications[0].trace.packets.left,
        [110_000, 120_000, 360_000, 370_000]
    );
}

#[test]
fn a_preempted_wake_up_is_resumed() {
    // The wake-up begins at 0 and takes 100; noise takes the server from 50 to 80; the service ends at 140.
    let mut traces = Traces::default();
    traces.add("gaps", &[0.0]).unwrap();
    traces.add("noise", &[50.0]).unwrap();
    let mut model = single(recorded("gaps"), Amount::Number(10.0));
    model.classes.push("noise".into());
    model.stations[0].kind = StationKind::PreemptiveResume;
    model.queues[0].priority = 1;
    model.stations[0].policies = policy(polling(Amount::Number(100.0), 1, Visited::Nonempty));
    model.stations[0].policies[0].priority = 1;
    model
        .sources
        .push(source("noise", recorded("noise"), "stalls"));
    let station = model.stations[0].name.clone();
    model
        .queues
        .push(queue("stalls", &station, Amount::Number(30.0), "out"));
    let results = simulate_with(&model, &traced(), &traces);
    assert_eq!(
        results.replications[0].trace.packets.left,
        [80_000, 140_000]
    );
}

#[test]
fn a_wake_up_needs_a_server_that_sleeps() {
    let mut model = sleeper(0.5, Amount::Number(1.0), 1);
    model.stations[0].policies = policy(polling(Amount::Number(1.0), 1, Visited::All));
    let text = refused(&model);
    assert!(text.contains("wake_ns") && text.contains("sleep"), "{text}");
    let gaps = Amount::Text("poisson:mean=1us".into());
    let text = refused(&sleeper(0.5, gaps, 1));
    assert!(text.contains("wake_ns") && text.contains("gap"), "{text}");
    let text = refused(&sleeper(0.5, Amount::Number(-1.0), 1));
    assert!(text.contains("wake_ns"), "{text}");
}
