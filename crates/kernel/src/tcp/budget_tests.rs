//! A budget on hosts that are simulated with other costs than it begins with.

use super::{Budget, Meter, PACKET_HOOKS, STEPS_OF_ACCOUNT, Setting, TCP_HOOK_COUNT, Timed};
use proptest::prelude::*;

/// Costs of a host, nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Host {
    skip_ns: [f64; PACKET_HOOKS],
    log_ns: [f64; PACKET_HOOKS],
    record_ns: f64,
    /// Of the reader without records, as a share of one CPU.
    idle_share: f64,
    /// Of the reader, to begin or end a pause, seconds.
    switch_s: f64,
}

const HOST: Host = Host {
    skip_ns: [80.0, 160.0],
    log_ns: [190.0, 420.0],
    record_ns: 310.0,
    idle_share: 0.0015,
    switch_s: 4e-4,
};

struct Run {
    budget: Budget,
    /// Cost of each step, as a share of one CPU, and the setting in it.
    steps: Vec<(f64, Setting)>,
}

/// Runs a host whose packets a second are a function of the step, in steps of a tenth of a second.
fn run(host: Host, share: f64, steps: usize, packets_per_s: impl Fn(usize) -> f64) -> Run {
    let mut budget = Budget::new(share, 7);
    let mut meter = Meter::default();
    let mut done = Vec::new();
    let mut has_switched = false;
    // Parts of packets that are carried on to the next step.
    let mut left = [0.0; PACKET_HOOKS];
    for step in 0..steps {
        let Setting {
            packets_per_log,
            observes,
        } = budget.setting();
        // Steps come late now and then.
        let step_s = if step % 17 == 3 { 0.13 } else { 0.1 };
        meter.time_s += step_s;
        let (mut cpu_s, mut records) = (0.0, 0.0);
        let mut timed = [Timed::default(); TCP_HOOK_COUNT];
        for hook in 0..PACKET_HOOKS {
            if !observes {
                continue;
            }
            let seen = (packets_per_s(step) * step_s / 2.0).floor();
            let due = seen / f64::from(packets_per_log) + left[hook];
            left[hook] = due.fract();
            let due = due.floor();
            let ns = (seen - due) * host.skip_ns[hook] + due * host.log_ns[hook];
            meter.seen[hook] += seen as u64;
            meter.due[hook] += due as u64;
            timed[hook] = Timed {
                runs: seen as u64,
                // The kernel's clock takes time, too.
                run_ns: (1.1 * ns) as u64,
                seen: seen as u64,
                due: due as u64,
            };
            cpu_s += 1e-9 * ns;
            records += due;
        }
        // The kernel times the programs in one step of ten.
        if step % 10 == 0 {
            budget.time(&timed);
        }
        let mut reader_s = host.idle_share * step_s + 1e-9 * host.record_ns * records;
        if has_switched {
            reader_s += host.switch_s;
        }
        meter.reader_cpu_s += reader_s;
        done.push(((cpu_s + reader_s) / step_s, budget.setting()));
        budget.decide(meter);
        has_switched = budget.setting().observes != observes;
    }
    Run {
        budget,
        steps: done,
    }
}

/// The largest share in ten seconds.
fn largest(steps: &[(f64, Setting)]) -> f64 {
    let sums = steps.windows(STEPS_OF_ACCOUNT);
    sums.map(|window| window.iter().map(|step| step.0).sum::<f64>() / window.len() as f64)
        .fold(0.0, f64::max)
}

#[test]
fn what_fits_is_logged_whole() {
    let run = run(HOST, 0.01, 600, |_| 5_000.0);
    assert!(run.steps.iter().all(|(_, setting)| *setting
        == Setting {
            packets_per_log: 1,
            observes: true
        }));
    assert_eq!(run.budget.account().changes, 0);
}

#[test]
fn ten_times_the_traffic_stays_within_the_budget_and_what_was_thinned_comes_back() {
    let traffic = |step: usize| match step {
        0..300 => 0.0,
        300..900 => 12_000.0,
        900..1500 => 120_000.0,
        1500..2400 => 12_000.0,
        _ => 1_000.0,
    };
    let run = run(HOST, 0.01, 3000, traffic);
    assert!(largest(&run.steps) <= 0.012, "{}", largest(&run.steps));
    let account = run.budget.account();
    assert!((account.cost_share_max - largest(&run.steps)).abs() < 0.001);
    // In the middle of the flood, and some time after it.
    assert!(run.steps[1200..1300].iter().any(|step| !step.1.observes));
    assert!(run.steps[2390].1.packets_per_log <= 2 && run.steps[2990].1.packets_per_log == 1);
    // Of what may be spent in the flood, most is.
    let spent: f64 = run.steps[1000..1500].iter().map(|step| step.0).sum::<f64>() / 500.0;
    assert!(spent > 0.006, "{spent}");
}

#[test]
fn packets_that_are_skipped_are_never_left_unobserved_where_they_fit() {
    // Skipping alone takes 0.6 % of a CPU here.
    let run = run(HOST, 0.01, 600, |_| 50_000.0);
    assert!(run.steps.iter().all(|(_, setting)| setting.observes));
    assert!(largest(&run.steps) <= 0.012);
}

#[test]
fn a_burst_on_a_slow_host_stays_near_the_budget_although_nothing_was_timed_before() {
    let slower = 2.845;
    let host = Host {
        skip_ns: HOST.skip_ns.map(|ns| ns * slower),
        log_ns: HOST.log_ns.map(|ns| ns * slower),
        record_ns: HOST.record_ns * slower,
        ..HOST
    };
    let share = 0.005;
    let most = 10.0 * share / (800e-9 * slower);
    // Too few packets to time them, then so many that logging each would take ten times the budget.
    let traffic = |step: usize| if step < 62 { most / 240.0 } else { most };
    let run = run(host, share, 160, traffic);
    assert!(
        largest(&run.steps) <= 1.2 * share,
        "{}",
        largest(&run.steps) / share
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// Bursts of any rate and length, on hosts that are up to three times slower or faster than expected.
    #[test]
    fn ten_seconds_never_cost_much_more_than_the_budget(
        rates in prop::collection::vec((0.0..6.0f64, 1..200usize), 1..30),
        slower in 0.33..3.0f64,
        share in prop::sample::select(vec![0.005, 0.01, 0.05, 0.2]),
    ) {
        let host = Host {
            skip_ns: HOST.skip_ns.map(|ns| ns * slower),
            log_ns: HOST.log_ns.map(|ns| ns * slower),
            record_ns: HOST.record_ns * slower,
            ..HOST
        };
        // Up to so many that logging each would take ten times the budget.
        let most = 10.0 * share / (800e-9 * slower);
        let lengths: Vec<(f64, usize)> = rates
            .into_iter()
            .map(|(magnitude, steps)| (most / 10_f64.powf(magnitude), steps))
            .collect();
        let steps: usize = lengths.iter().map(|one| one.1).sum();
        let traffic = |step: usize| {
            let mut at = 0;
            for (rate, length) in &lengths {
                at += length;
                if step < at {
                    return *rate;
                }
            }
            0.0
        };
        let run = run(host, share, steps, traffic);
        // A step may cost ten times the budget before that is known: of ten seconds, the tenth part of one.
        prop_assert!(largest(&run.steps) <= 1.35 * share, "{}", largest(&run.steps) / share);
        let most = run.steps.iter().map(|step| step.1.packets_per_log).max();
        prop_assert!(most <= Some(1024));
        prop_assert!(run.steps.iter().all(|step| step.1.packets_per_log.is_power_of_two()));
    }
}
