//! A budget on hosts that are simulated.

use parshall_core::abi::PATH_CODE_COUNT;
use parshall_core::path_log::TimeHistogram;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::super::estimates::{Estimates, Window};
use super::{Budget, LOOKED_AT_S, STEP};

const CODE: usize = 1;

/// What the reader takes without programs, and what it costs to attach and detach them where it costs little.
const IDLE_SHARE: f64 = 0.001;
const SWITCH_S: f64 = 0.004;

const STEP_S: f64 = STEP.as_millis() as f64 / 1e3;

struct Outcome {
    /// Time, spent until then, and whether the programs were attached.
    steps: Vec<(f64, f64, bool)>,
    /// From, until, and for which time without windows it stands.
    windows: Vec<(f64, f64, f64)>,
    budget: Budget,
}

impl Outcome {
    fn worst(&self) -> f64 {
        let mut from = 0;
        let mut worst: f64 = 0.0;
        for &(now_s, spent_s, _) in &self.steps {
            while now_s - self.steps[from].0 > LOOKED_AT_S {
                from += 1;
            }
            if now_s >= LOOKED_AT_S {
                worst = worst.max((spent_s - self.steps[from].1) / LOOKED_AT_S);
            }
        }
        worst
    }

    fn attached(&self, from_s: f64, until_s: f64) -> f64 {
        let of = |step: &&(f64, f64, bool)| step.0 >= from_s && step.0 < until_s;
        let steps: Vec<_> = self.steps.iter().filter(of).collect();
        steps.iter().filter(|step| step.2).count() as f64 / steps.len() as f64
    }
}

/// Runs a budget where attached programs take a share of a CPU that depends on the time.
fn simulated(share: f64, length_s: f64, seed: u64, cost_share: impl Fn(f64) -> f64) -> Outcome {
    simulated_where_switches_cost(SWITCH_S, share, length_s, seed, cost_share)
}

fn simulated_where_switches_cost(
    switch_s: f64,
    share: f64,
    length_s: f64,
    seed: u64,
    cost_share: impl Fn(f64) -> f64,
) -> Outcome {
    let mut budget = Budget::new(share);
    budget.attached(switch_s / 2.0);
    let mut rng = Pcg64::seed_from_u64(seed);
    let (mut now_s, mut spent_s, mut window) = (0.0, switch_s, Some((0.0, switch_s)));
    let mut opens_s = 0.0;
    let mut stands_for_s = 0.0;
    let (mut steps, mut windows) = (Vec::new(), Vec::new());
    while now_s < length_s {
        now_s += STEP_S;
        spent_s += IDLE_SHARE * STEP_S;
        if window.is_some() {
            spent_s += cost_share(now_s) * STEP_S;
        }
        budget.spend(now_s, spent_s, window.is_some());
        steps.push((now_s, spent_s, window.is_some()));
        if let Some((from_s, before_s)) = window {
            let (length_s, cost_s) = (now_s - from_s, spent_s - before_s);
            if !budget.ends(length_s, cost_s) {
                continue;
            }
            window = Some((now_s, spent_s));
            windows.push((from_s, now_s, stands_for_s));
            let pause = budget.decide(length_s, cost_s, &mut rng);
            stands_for_s = pause.stands_for_s;
            if pause.length_s > 0.0 {
                (window, opens_s) = (None, now_s + pause.length_s);
                spent_s += switch_s / 2.0;
            }
        } else if now_s >= opens_s {
            spent_s += switch_s / 2.0;
            window = Some((now_s, spent_s));
        }
    }
    Outcome {
        steps,
        windows,
        budget,
    }
}

#[test]
fn what_costs_little_is_always_measured() {
    let run = simulated(0.01, 60.0, 1, |_| 0.005);
    assert_eq!(run.attached(0.0, 60.0), 1.0);
}

#[test]
fn ten_times_the_traffic_is_measured_for_less_time_and_all_of_it_afterwards() {
    let cost = |now_s: f64| {
        if (100.0..200.0).contains(&now_s) {
            0.06
        } else {
            0.006
        }
    };
    let run = simulated(0.01, 300.0, 1, cost);
    let busy = run.attached(110.0, 200.0);
    assert!((0.05..0.2).contains(&busy), "{busy}");
    assert_eq!(run.attached(0.0, 100.0), 1.0);
    assert_eq!(run.attached(215.0, 300.0), 1.0);
    assert!(run.worst() < 1.2 * 0.01, "{}", run.worst());
    let account = run.budget.account();
    assert!(
        (account.cost_share_max / run.worst() - 1.0).abs() < 0.1,
        "{account:?}, {}",
        run.worst()
    );
}

/// Traffic in phases, of which some cost nearly the budget: when more comes, ten seconds are nearly full. To attach and
/// detach the programs took 15 ms where this was seen to go wrong.
#[test]
fn windows_that_follow_a_time_without_pauses_find_room() {
    for switch_s in [0.004, 0.01, 0.015, 0.02] {
        for often in [0.005, 0.008, 0.012, 0.016] {
            for seed in 0..20 {
                let cost = |now_s: f64| match now_s % 180.0 {
                    0.0..20.0 => 0.0001,
                    60.0..100.0 => 5.0 * often,
                    140.0..150.0 => 8.0 * often,
                    150.0..180.0 => 0.6 * often,
                    _ => often,
                };
                let run = simulated_where_switches_cost(switch_s, 0.01, 540.0, seed, cost);
                let worst = run.worst() / 0.01;
                assert!(worst < 1.2, "{switch_s}, {often}, {seed}: {worst}");
            }
        }
    }
}

/// Hosts of any cost, steady or in waves, on which attaching and detaching takes little, or up to a fifth of what ten
/// seconds may cost.
#[test]
fn no_ten_seconds_cost_a_fifth_more_than_the_budget() {
    let mut rng = Pcg64::seed_from_u64(1);
    for seed in 0..1_000 {
        let share: f64 = rng.random_range(0.005..0.1);
        let times: f64 = rng.random_range(0.1..40.0);
        let period_s: f64 = rng.random_range(5.0..200.0);
        let is_wave = rng.random();
        let attached: f64 = (share * times).min(2.0);
        let cost = |now_s: f64| {
            let phase = std::f64::consts::TAU * now_s / period_s;
            attached
                * if is_wave {
                    0.5 + 0.5 * phase.sin()
                } else {
                    1.0
                }
        };
        let takes_little = seed % 2 == 0;
        let switch_s = match takes_little {
            true => SWITCH_S,
            false => rng.random_range(0.0..0.2) * share * LOOKED_AT_S,
        };
        let run = simulated_where_switches_cost(switch_s, share, 300.0, seed, cost);
        let said = format!(
            "{share}, {times} times, {period_s} s, {is_wave}, {switch_s} s: {}",
            run.worst()
        );
        // What the shortest window and its switches cost, of what ten seconds may.
        let window = (attached * 0.075 + switch_s) / (share * LOOKED_AT_S);
        assert!(run.worst() < (1.2_f64).max(0.9 + window) * share, "{said}");
        // And it is made use of.
        let spent = run.steps.last().unwrap().1 / 300.0;
        let used = if takes_little { 0.4 } else { 0.25 };
        assert!(times < 2.0 || spent > used * share, "{spent} of {said}");
    }
}

/// Bursts in which packets are ten times as many, and a slow wave: what a window saw decides on the next, and yet the
/// mean estimate is within a few percent, where it was 6 to 8 % too low before the rest of a span was left out.
#[test]
fn estimates_from_the_windows_of_a_budget_are_those_of_the_traffic() {
    check_estimates(100);
}

#[test]
#[ignore = "900 simulations: make test-long"]
fn long_estimates_from_the_windows_of_a_budget_are_those_of_the_traffic() {
    check_estimates(300);
}

fn check_estimates(seeds: u64) {
    for burst_s in [0.6, 3.0, 10.0] {
        let (mut held, mut ratio) = (0, 0.0);
        for seed in 0..seeds {
            let mut rng = Pcg64::seed_from_u64(seed);
            let per_s = bursty(&mut rng, burst_s);
            let at = |now_s: f64| per_s[(now_s / STEP_S).round() as usize];
            let cost = |now_s: f64| 3e-6 * at(now_s);
            let run = simulated_where_switches_cost(0.015, 0.01, 300.0, seed, cost);
            let packets = |from_s: f64, until_s: f64| -> f64 {
                let steps = run.steps.iter().map(|step| step.0);
                let within = steps.filter(|&now_s| now_s > from_s && now_s <= until_s);
                within.map(|now_s| at(now_s) * STEP_S).sum()
            };
            let mut estimates = Estimates::default();
            for &(from_s, until_s, stands_for_s) in &run.windows {
                let mut window = Window {
                    length_s: until_s - from_s,
                    packets: [0; PATH_CODE_COUNT],
                    whole: vec![TimeHistogram::default(); PATH_CODE_COUNT],
                };
                window.packets[CODE] = packets(from_s, until_s) as u64;
                estimates.add(&window, stands_for_s);
            }
            let until_s = run.steps.last().unwrap().0;
            let found = &estimates.finish(until_s)[0];
            let all = packets(0.0, until_s);
            held += u64::from((found.low_packets..=found.high_packets).contains(&all));
            ratio += found.packets / all / seeds as f64;
        }
        assert!((0.94..1.06).contains(&ratio), "{burst_s} s: {ratio}");
        assert!(100 * held >= 85 * seeds, "{burst_s} s: {held} of {seeds}");
    }
}

/// Packets a second in each step of five minutes.
fn bursty(rng: &mut Pcg64, burst_s: f64) -> Vec<f64> {
    let (mut is_burst, mut left) = (false, 0);
    let steps = (300.0 / STEP_S) as usize + 2;
    let of_step = |step| {
        if left == 0 {
            is_burst = !is_burst;
            let mean_s = if is_burst { burst_s } else { 3.0 * burst_s };
            left = 1 + (-mean_s / STEP_S * (1.0 - rng.random::<f64>()).ln()) as usize;
        }
        left -= 1;
        let wave = 1.0 + 0.5 * (std::f64::consts::TAU * step as f64 / steps as f64).sin();
        wave * if is_burst { 20_000.0 } else { 2_000.0 }
    };
    (0..steps).map(of_step).collect()
}
