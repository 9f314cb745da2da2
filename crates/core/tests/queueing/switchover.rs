//! Polling with times to switch between queues, against closed forms: the pseudo-conservation laws of Boxma
//! and Groenendijk (Journal of Applied Probability 24, 1987, 949-964) if empty queues are visited, too, and
//! the M/G/1 queue with set-up times if not.

use crate::networks::*;
use parshall_core::queueing::{Amount, Model, Policy, RunOptions, Traces, Visited};

const EXHAUSTIVE: u32 = u32::MAX;

/// A cyclic server of queues with Poisson arrivals (per us) and exponential services of 1 us.
fn cyclic(rates: &[f64], batch: u32, switch: Amount, visits: Visited) -> Model {
    let mut model = single(exponential(1.0), exponential(1.0));
    (model.sources, model.queues) = (Vec::new(), Vec::new());
    model.classes = (0..rates.len()).map(|class| format!("c{class}")).collect();
    for (number, rate) in rates.iter().enumerate() {
        let own = format!("q{number}");
        model
            .sources
            .push(source(&format!("c{number}"), exponential(1.0 / rate), &own));
        model.queues.push(queue(&own, "s", exponential(1.0), "out"));
    }
    model.stations[0].policies = policy(Policy::Polling {
        batch,
        budget: None,
        budget_ns: None,
        yield_ns: 0.0,
        visit_ns: switch,
        wake_ns: None,
        visits,
    });
    model
}

fn options() -> RunOptions {
    RunOptions {
        seed: 11,
        duration_ns: Some(400_000.0 * US),
        warm_up_ns: Some(2_000.0 * US),
        replications: 8,
        ..RunOptions::default()
    }
}

/// Mean waits, from arrival to the start of service without switching, us: the sojourn time minus 1 us.
fn waits(model: &Model, options: &RunOptions) -> Vec<f64> {
    let results = simulate(model, options);
    let of = |number: usize| {
        let (queue, class) = (format!("q{number}"), format!("c{number}"));
        estimate(&results, &queue, &class, "sojourn_ns")
            .interval
            .mean
            / US
            - 1.0
    };
    (0..model.queues.len()).map(of).collect()
}

/// Sum of load x mean wait over the queues by the pseudo-conservation law, exponential services of mean 1 us.
fn conserved(rates: &[f64], switch_us: f64, switch_variance: f64, is_exhaustive: bool) -> f64 {
    let load: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    let cycle = switch_us * rates.len() as f64;
    // rho sum(lambda E[S^2]) / (2 (1 - rho)), with E[S^2] = 2, and E[s^2] / (2 E[s]) of the switches of a cycle.
    let switches = (cycle + rates.len() as f64 * switch_variance / cycle) / 2.0;
    let served = load * 2.0 * load / (2.0 * (1.0 - load)) + load * switches;
    if is_exhaustive {
        served + cycle / (2.0 * (1.0 - load)) * (load * load - squares)
    } else {
        served + cycle / (2.0 * (1.0 - load)) * (load * load + squares)
    }
}

#[test]
fn waits_of_two_symmetric_polled_queues_agree_with_the_formula() {
    // lambda E[S^2] / (2 (1 - rho)) + N r (1 - rho / N) / (2 (1 - rho)) = 4 + 1.5; of all queues.
    let rates = [0.4, 0.4];
    let all = waits(
        &cyclic(&rates, EXHAUSTIVE, constant(0.5), Visited::All),
        &options(),
    );
    for wait in &all {
        assert!((wait - 5.5).abs() < 0.1, "{all:?}");
    }
    // The wait to the start of a service of which the visit is a part is shorter.
    let results = simulate(
        &cyclic(&rates, EXHAUSTIVE, constant(0.5), Visited::Nonempty),
        &options(),
    );
    let wait = estimate(&results, "q0", "c0", "wait_ns").interval.mean / US;
    assert!((5.2..5.45).contains(&wait), "{wait}");
}

#[test]
fn polling_of_all_queues_satisfies_pseudo_conservation() {
    let either = Amount::Samples {
        samples: vec![0.0, 0.4 * US, 1.1 * US],
    };
    // Of different rates; exhaustive and, of a stable one, one packet a visit.
    for (rates, batch, switch, switch_us, switch_variance) in [
        (&[0.5, 0.2, 0.1][..], EXHAUSTIVE, constant(0.3), 0.3, 0.0),
        (&[0.1, 0.6][..], EXHAUSTIVE, constant(2.0), 2.0, 0.0),
        (&[0.3][..], EXHAUSTIVE, constant(1.5), 1.5, 0.0),
        (&[0.3, 0.2, 0.1][..], 1, constant(0.2), 0.2, 0.0),
        (&[0.25, 0.25][..], 1, constant(0.5), 0.5, 0.0),
        (&[0.1, 0.6][..], EXHAUSTIVE, exponential(2.0), 2.0, 4.0),
        (&[0.25, 0.25][..], 1, either, 0.5, 0.62 / 3.0),
    ] {
        let found = waits(&cyclic(rates, batch, switch, Visited::All), &options());
        let load: f64 = rates.iter().sum();
        let cycle = switch_us * rates.len() as f64;
        let sum: f64 = rates
            .iter()
            .zip(&found)
            .map(|(rate, wait)| {
                // One packet a visit: sum of rho_i (1 - lambda_i s / (1 - rho)) E[W_i].
                let weight = if batch == 1 {
                    1.0 - rate * cycle / (1.0 - load)
                } else {
                    1.0
                };
                rate * weight * wait
            })
            .sum();
        let expected = conserved(rates, switch_us, switch_variance, batch != 1);
        assert!(
            (sum / expected - 1.0).abs() < 0.02,
            "{rates:?}, batch {batch}: {sum}, expected {expected}"
        );
    }
}

#[test]
fn a_long_idle_time_leaves_the_server_anywhere() {
    // Some 3000 switches between two packets: they wait for the rest of a switch and, half of them, for another one.
    let rates = [0.0005, 0.0005];
    let options = RunOptions {
        duration_ns: Some(4_000_000.0 * US),
        ..options()
    };
    let found = waits(
        &cyclic(&rates, EXHAUSTIVE, exponential(0.3), Visited::All),
        &options,
    );
    let expected = conserved(&rates, 0.3, 0.09, true) / 0.001;
    let mean = (found[0] + found[1]) / 2.0;
    assert!((mean / expected - 1.0).abs() < 0.025, "{mean} {expected}");
}

#[test]
fn a_single_polled_queue_has_set_up_times() {
    // M/G/1 with a set-up D when a busy period begins: W = lambda E[S^2] / (2 (1 - rho)) +
    // (2 E[D] + lambda E[D^2]) / (2 (1 + lambda E[D])) (Takagi, Queueing Analysis 1, 1991, 2.2).
    let (rate, mean) = (0.6, 2.0);
    for (switch, square) in [(constant(mean), 4.0), (exponential(mean), 8.0)] {
        let model = cyclic(&[rate], EXHAUSTIVE, switch, Visited::Nonempty);
        let found = waits(&model, &options())[0];
        let expected = 2.0 * rate / (2.0 * (1.0 - rate))
            + (2.0 * mean + rate * square) / (2.0 * (1.0 + rate * mean));
        assert!((found / expected - 1.0).abs() < 0.02, "{found} {expected}");
    }
    // One packet a visit: every service takes D longer, an M/G/1 queue of S + D.
    let (rate, switch_us) = (0.4, 1.0);
    let model = cyclic(&[rate], 1, constant(switch_us), Visited::Nonempty);
    let found = waits(&model, &options())[0];
    let expected = rate * 5.0 / (2.0 * (1.0 - rate * 2.0)) + switch_us;
    assert!((found / expected - 1.0).abs() < 0.02, "{found} {expected}");
}

#[test]
fn an_idle_polling_server_keeps_switching_queues() {
    // It goes around q0, q1, q2 in steps of 10 ns from time 0 on, and is at q1 at 10, at q2 at 20, at q0 at 30...
    // c0 comes at 34: the server, which has left q0 at 30, passes q1 at 40 and q2 at 50 and is back at 60; it serves
    // until 65. c2 comes at 61: the server is at q1 at 75 and at q2 at 85. c1 comes at 200: after 88 (the service of
    // c2 takes 3) it has gone by q0 at 98, q1 at 108 and so on; at 198 it is at q1, at 228 again.
    let ends_ns = [65, 88, 229];
    // Recorded switches of 10, 30 and 5 ns: it is at q1 at 10, at q2 at 40, at q0 at 45, serves until 50, is at q1 at 60,
    // at q2 at 90, serves until 93, and is at q0 at 98, at q1 at 108; at 198 it is at q1, at 243 again.
    let recorded_ends_ns = [50, 93, 244];
    for (switch, ends_ns) in [
        (constant(0.01), ends_ns),
        (recorded("switches"), recorded_ends_ns),
    ] {
        let mut model = cyclic(&[1.0, 1.0, 1.0], EXHAUSTIVE, switch, Visited::All);
        let mut traces = Traces::default();
        traces.add("switches", &[10.0, 30.0, 5.0]).unwrap();
        for (number, (at, work)) in [(34.0, 5.0), (200.0, 1.0), (61.0, 3.0)]
            .into_iter()
            .enumerate()
        {
            traces.add(&format!("gaps{number}"), &[at]).unwrap();
            traces.add(&format!("work{number}"), &[work]).unwrap();
            model.sources[number].gap_ns = recorded(&format!("gaps{number}"));
            model.queues[number].service[0].time_ns = recorded(&format!("work{number}"));
        }
        let results = simulate_with(&model, &traced(), &traces);
        assert_eq!(
            results.replications[0].trace.packets.left,
            ends_ns.map(|end_ns| end_ns * 1000)
        );
        // Three arrivals, three services, and the switches while a packet waits: no events while all queues are empty.
        assert!(results.replications[0].events < 20);
    }
}

#[test]
fn times_to_switch_are_times() {
    let gaps = Amount::Text("poisson:mean=1us".into());
    let table = Amount::Table {
        bytes: vec![64.0, 1500.0],
        values: vec![1.0, 2.0],
    };
    for (switch, visits, wrong) in [
        (gaps, Visited::Nonempty, "gap process"),
        (table, Visited::All, "table"),
        (Amount::Number(-1.0), Visited::All, "-1"),
    ] {
        let text = refused(&cyclic(&[0.4], 1, switch, visits));
        assert!(text.contains("visit_ns") && text.contains(wrong), "{text}");
    }
}

#[test]
fn visits_to_all_queues_need_one_server_and_one_priority() {
    let mut model = cyclic(&[0.4, 0.4], 1, constant(0.1), Visited::All);
    model.queues[1].priority = 1;
    let text = refused(&model);
    assert!(
        text.contains("visits") && text.contains("one priority"),
        "{text}"
    );
    let mut model = cyclic(&[0.4, 0.4], 1, constant(0.1), Visited::All);
    model.stations[0].servers = 2;
    assert!(refused(&model).contains("one server"));
    let mut model = cyclic(&[0.4, 0.4], 1, constant(0.1), Visited::All);
    if let Policy::Polling { budget, .. } = &mut model.stations[0].policies[0].policy {
        *budget = Some(3);
    }
    assert!(refused(&model).contains("budget"));
}
