//! A budget on hosts that are simulated.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::{Budget, LOOKED_AT_S};

/// What the reader takes without programs, and what it costs to attach and detach them.
const IDLE_SHARE: f64 = 0.001;
const SWITCH_S: f64 = 0.004;
const STEP_S: f64 = 0.025;

struct Outcome {
    /// Time, spent until then, and whether the programs were attached.
    steps: Vec<(f64, f64, bool)>,
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
    let mut budget = Budget::new(share);
    let mut rng = Pcg64::seed_from_u64(seed);
    let (mut now_s, mut spent_s, mut window) = (0.0, SWITCH_S, Some((0.0, SWITCH_S)));
    let mut opens_s = 0.0;
    let mut steps = Vec::new();
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
            let pause = budget.decide(length_s, cost_s, &mut rng);
            if pause.length_s > 0.0 {
                (window, opens_s) = (None, now_s + pause.length_s);
                spent_s += SWITCH_S / 2.0;
            }
        } else if now_s >= opens_s {
            spent_s += SWITCH_S / 2.0;
            window = Some((now_s, spent_s));
        }
    }
    Outcome { steps, budget }
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

/// Hosts of any cost, steady or in waves. Where a window and a pair of switches cost little of ten seconds, hardly any ten
/// seconds exceed the budget by a fifth; otherwise they may by as many windows as chance brings.
#[test]
fn ten_seconds_hardly_ever_cost_more_than_the_budget() {
    let mut rng = Pcg64::seed_from_u64(1);
    let mut over = 0;
    for seed in 0..500 {
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
        let run = simulated(share, 300.0, seed, cost);
        let window = (attached * 0.075 + SWITCH_S) / LOOKED_AT_S;
        let said = format!(
            "{share}, {times} times, {period_s} s, {is_wave}: {}",
            run.worst()
        );
        assert!(run.worst() < 1.5 * share + window, "{said}");
        over += i32::from(run.worst() > 1.2 * share && window < 0.25 * share);
        // And it is made use of.
        let spent = run.steps.last().unwrap().1 / 300.0;
        assert!(times < 2.0 || spent > 0.4 * share, "{spent} of {said}");
    }
    assert!(over <= 5, "{over} of 500");
}
