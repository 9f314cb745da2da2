//! Coverage of confidence intervals for the known mean of M/M/1, by batches and by replications.

use crate::networks::*;
use parshall_core::queueing::{RunOptions, warm_up};

const RATE: f64 = 0.8;
/// Mean time in the system, us.
const EXPECTED_US: f64 = 5.0;

fn options(seed: u64, customers: f64, parts: u32, by_batches: bool) -> RunOptions {
    RunOptions {
        seed,
        duration_ns: Some(customers / RATE * US),
        warm_up_ns: Some(1000.0 * US),
        replications: parts,
        by_batches,
        threads: Some(1),
        ..RunOptions::default()
    }
}

/// Number of 95 % intervals, of 100, that cover the mean, and number of runs with uncorrelated batches.
fn coverage(customers: f64, parts: u32, by_batches: bool) -> (usize, usize) {
    let model = single(exponential(1.0 / RATE), exponential(1.0));
    let runs = (0..100).map(|seed| {
        let results = simulate(&model, &options(seed, customers, parts, by_batches));
        let interval = estimate(&results, "out", "c", "latency_ns").interval;
        let far = (interval.mean / US - EXPECTED_US).abs();
        (
            far <= interval.half_width.unwrap() / US,
            results.is_uncorrelated,
        )
    });
    let runs: Vec<_> = runs.collect();
    let covered = runs.iter().filter(|run| run.0).count();
    let uncorrelated = runs.iter().filter(|run| run.1 == Some(true));
    (covered, uncorrelated.count())
}

// Of 100 intervals of 95 %, fewer than 88 cover the mean with probability 0.0015.
#[test]
fn intervals_of_long_batches_cover_the_mean() {
    let (covered, uncorrelated) = coverage(100_000.0, 20, true);
    println!("{covered} of 100 intervals cover the mean, {uncorrelated} are uncorrelated");
    assert!(covered >= 88, "{covered}");
    assert!(uncorrelated >= 95, "{uncorrelated}");
}

#[test]
fn intervals_of_replications_cover_the_mean() {
    let (covered, _) = coverage(5_000.0, 20, false);
    println!("{covered} of 100 intervals cover the mean");
    assert!(covered >= 88, "{covered}");
}

#[test]
fn short_batches_are_reported_as_correlated() {
    // A batch of 50 customers is about as long as the autocorrelation time of their waiting times.
    let (covered, uncorrelated) = coverage(5_000.0, 100, true);
    println!("{covered} of 100 intervals cover the mean, {uncorrelated} are uncorrelated");
    assert!(covered < 88, "{covered}");
    assert!(uncorrelated <= 25, "{uncorrelated}");
}

/// Number of intervals, of 100, that cover a utilisation of .9, and number of runs with batches reported as
/// uncorrelated.
fn coverage_of_utilisation(customers_of_batch: f64) -> (usize, usize) {
    let load = 0.9;
    let model = single(exponential(1.0 / load), exponential(1.0));
    let runs = (0..100).map(|seed| {
        let options = RunOptions {
            duration_ns: Some(20.0 * customers_of_batch / load * US),
            warm_up_ns: Some(3000.0 * US),
            ..options(1000 + seed, 0.0, 20, true)
        };
        let results = simulate(&model, &options);
        let interval = estimate(&results, "s", "", "utilisation").interval;
        let is_covered = (interval.mean - load).abs() <= interval.half_width.unwrap();
        (is_covered, results.is_uncorrelated == Some(true))
    });
    let runs: Vec<_> = runs.collect();
    let count = |is: fn(&(bool, bool)) -> bool| runs.iter().filter(|run| is(run)).count();
    (count(|run| run.0), count(|run| run.1))
}

// The autocorrelation time of M/M/1 at .9 is some 190 services: batches of 5000 are long enough, of 500 are not.
#[test]
#[ignore = "ten million customers: make test-long"]
fn long_intervals_of_a_high_utilisation_cover_it() {
    let (covered, uncorrelated) = coverage_of_utilisation(5000.0);
    println!("5000 customers: {covered} of 100 cover it, {uncorrelated} are uncorrelated");
    assert!(covered >= 88, "{covered}");
    assert!(uncorrelated >= 60, "{uncorrelated}");
}

#[test]
fn short_batches_of_a_high_utilisation_are_reported_as_correlated() {
    let (covered, uncorrelated) = coverage_of_utilisation(500.0);
    println!("500 customers: {covered} of 100 cover it, {uncorrelated} are uncorrelated");
    assert!(uncorrelated <= 5, "{uncorrelated}");
}

#[test]
fn batches_divide_one_run_without_gaps() {
    let model = single(exponential(1.0 / RATE), exponential(1.0));
    let results = simulate(&model, &options(3, 10_000.0, 10, true));
    for pair in results.replications.windows(2) {
        assert_eq!(pair[0].balance.inside, pair[1].balance.inside_before);
    }
    let whole = simulate(&model, &options(3, 10_000.0, 1, false));
    let sum = |pick: fn(&parshall_core::queueing::Replication) -> u64| {
        results.replications.iter().map(pick).sum::<u64>()
    };
    assert_eq!(
        sum(|part| part.balance.entered),
        whole.replications[0].balance.entered
    );
    assert_eq!(
        sum(|part| part.balance.left),
        whole.replications[0].balance.left
    );
    assert_eq!(sum(|part| part.events), whole.replications[0].events);
}

#[test]
fn batches_are_added_until_the_interval_is_narrow() {
    let model = single(exponential(1.0 / RATE), exponential(1.0));
    let requested = RunOptions {
        relative_half_width: Some(0.03),
        replications_max: 2000,
        ..options(5, 20_000.0, 10, true)
    };
    let results = simulate(&model, &requested);
    assert_eq!(results.is_precise, Some(true));
    assert!(results.replications.len() > 10);
    let interval = estimate(&results, "out", "c", "latency_ns").interval;
    assert!(interval.half_width.unwrap() <= 0.03 * interval.mean);
    // A precision that is not reached is reported.
    let few = RunOptions {
        replications_max: 12,
        ..requested
    };
    assert_eq!(simulate(&model, &few).is_precise, Some(false));
}

#[test]
fn the_pilot_run_finds_the_warm_up_of_a_filling_queue() {
    // Three packets arrive in 2 us and two are served, so the queue of 2000 is full after 4000 us. A packet
    // that arrives then leaves 2000 us later: from 6000 us on, all latencies are alike.
    let mut model = single(exponential(1.0 / 1.5), constant(1.0));
    model.queues[0].capacity_packets = Some(2000);
    let options = RunOptions {
        duration_ns: Some(100_000.0 * US),
        warm_up_ns: None,
        replications: 2,
        ..RunOptions::default()
    };
    let results = simulate(&model, &options);
    let warm_up_us = results.warm_up_ns / US;
    println!("{warm_up_us} us are left out");
    assert_eq!(results.is_steady, Some(true));
    assert!((5000.0..8000.0).contains(&warm_up_us), "{warm_up_us}");
    let latency = estimate(&results, "out", "c", "latency_ns").interval.mean / US;
    assert!((latency - 2000.0).abs() < 5.0, "{latency}");
    // Without a warm-up, the mean includes the filling.
    let whole = RunOptions {
        warm_up_ns: Some(0.0),
        ..options
    };
    let latency = estimate(&simulate(&model, &whole), "out", "c", "latency_ns")
        .interval
        .mean
        / US;
    assert!(latency < 1970.0, "{latency}");
}

#[test]
fn mser_5_truncates_a_known_series_at_its_transient() {
    let series: Vec<f64> = (0..2000_u32)
        .map(|i| 10.0 - 9.0 * (-f64::from(i) / 40.0).exp() + f64::from(i * 7919 % 101) / 50.0)
        .collect();
    let left_out = warm_up(&series).unwrap();
    assert!((80..400).contains(&left_out), "{left_out}");
}
