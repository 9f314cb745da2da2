//! Intervals of the 99th percentile of M/M/1: they cover it, or are not given because replications are too short.

use crate::networks::*;
use parshall_core::queueing::RunOptions;

const RUNS: u64 = 100;

/// What `RUNS` runs say of the 99th percentile.
struct Found {
    /// Intervals that were given.
    known: usize,
    /// Of these, those that cover it.
    covered: usize,
    /// Mean estimate, over the percentile.
    level: f64,
}

/// Runs M/M/1 with a mean service of 1 us, its first customers in the steady state after a long warm-up.
fn found(load: f64, customers: f64, parts: u32, by_batches: bool) -> Found {
    let model = single(exponential(1.0 / load), exponential(1.0));
    // The time in the system is exponential with this mean.
    let expected_us = -(0.01_f64.ln()) / (1.0 - load);
    let mut found = Found {
        known: 0,
        covered: 0,
        level: 0.0,
    };
    for seed in 0..RUNS {
        let batches = if by_batches { f64::from(parts) } else { 1.0 };
        let options = RunOptions {
            seed,
            duration_ns: Some(batches * customers / load * US),
            warm_up_ns: Some(3000.0 * US),
            replications: parts,
            by_batches,
            threads: Some(1),
            ..RunOptions::default()
        };
        let results = simulate(&model, &options);
        let interval = estimate(&results, "out", "", "p99_ns").interval;
        let far_us = (interval.mean / US - expected_us).abs();
        found.level += interval.mean / US / expected_us / RUNS as f64;
        assert_eq!(
            results.is_long_enough,
            Some(interval.half_width.is_some()),
            "the results say why there is none"
        );
        if let Some(half_width) = interval.half_width {
            found.known += 1;
            found.covered += usize::from(far_us <= half_width / US);
        }
    }
    println!(
        "load {load}, {parts} of {customers} customers: {} known, {} cover it, level {:.3}",
        found.known, found.covered, found.level
    );
    found
}

// Of 100 intervals of 95 %, fewer than 86 cover it with probability 0.0004.
#[test]
fn intervals_of_long_replications_cover_the_percentile() {
    check_replications(0.5, 4_000.0, 8);
}

#[test]
#[ignore = "ten million customers: make test-long"]
fn long_intervals_of_replications_cover_the_percentile_of_a_higher_load() {
    check_replications(0.8, 20_000.0, 5);
}

fn check_replications(load: f64, customers: f64, parts: u32) {
    let found = found(load, customers, parts, false);
    assert!(found.known >= 85, "{}", found.known);
    assert!(found.covered * 100 >= 86 * found.known, "{}", found.covered);
    assert!((found.level - 1.0).abs() < 0.02, "{}", found.level);
}

#[test]
fn intervals_of_long_batches_cover_the_percentile() {
    let found = found(0.5, 4_000.0, 10, true);
    assert!(found.known >= 85, "{}", found.known);
    assert!(found.covered * 100 >= 86 * found.known, "{}", found.covered);
}

/// The mean of the replications' own percentiles is 18 % too low here.
#[test]
fn replications_that_are_too_short_say_so() {
    for by_batches in [false, true] {
        let found = found(0.9, 5_000.0, 5, by_batches);
        assert!(found.known <= 5, "{}", found.known);
        assert!((found.level - 1.0).abs() < 0.1, "{}", found.level);
    }
}

#[test]
fn a_pilot_of_few_packets_does_not_say_that_it_is_steady() {
    let model = single(exponential(1.0 / 1.05), exponential(1.0));
    let steady = |customers: f64| {
        let options = RunOptions {
            duration_ns: Some(customers / 1.05 * US),
            warm_up_ns: None,
            allow_unstable: true,
            ..RunOptions::default()
        };
        simulate(&model, &options).is_steady
    };
    assert_eq!(steady(40.0), None);
    assert_eq!(
        steady(100_000.0),
        Some(false),
        "its queue grows all the time"
    );
}

#[test]
fn a_single_replication_has_no_interval_and_no_verdict() {
    let model = single(exponential(2.0), exponential(1.0));
    let options = RunOptions {
        duration_ns: Some(1000.0 * US),
        warm_up_ns: Some(0.0),
        replications: 1,
        ..RunOptions::default()
    };
    let results = simulate(&model, &options);
    assert_eq!(results.is_long_enough, None);
    let interval = estimate(&results, "out", "", "p99_ns").interval;
    assert!(interval.half_width.is_none() && interval.mean > 0.0);
}
