//! Gap distributions: means, shapes, reproducible draws.

use super::*;

fn gaps(distribution: &GapDistribution, seed: u64, count: usize) -> Vec<f64> {
    let mut rng = Rng::new(seed, 0);
    let mut process = distribution.start(&mut rng);
    (0..count).map(|_| process.next_gap_ns(&mut rng)).collect()
}

fn mean(gaps: &[f64]) -> f64 {
    gaps.iter().sum::<f64>() / gaps.len() as f64
}

#[test]
fn every_distribution_has_its_documented_mean() {
    // (distribution, relative tolerance): means of heavy tails converge slowly.
    let cases = [
        ("fixed:mean=1us", 1e-12),
        ("poisson:mean=1us", 0.01),
        ("weibull:shape=0.5,mean=1us", 0.02),
        ("weibull:shape=2,scale=3us", 0.01),
        ("pareto:shape=3,mean=1us", 0.02),
        ("lognormal:variation=1,mean=1us", 0.02),
        ("uniform:low=0,high=2us", 0.01),
        // Negative gaps become 0.
        ("uniform:low=-1us,high=3us", 0.01),
        ("normal:mean=1us,deviation=1us", 0.01),
        ("bursts:size=8,inside=100ns,period=1ms", 1e-9),
        ("bursts:size=8,period=1ms,pause=exponential", 0.02),
        ("onoff:slot=100ns", 0.02),
        ("onoff:sources=1,slot=1us,on=10,off=1,gap=1", 0.01),
        ("pareto-onoff:sources=64,on-shape=1.9,off-shape=1.9", 0.05),
        ("poisson:mean=1us + bursts:size=16,period=100us", 0.01),
        (
            "fixed:mean=1us+uniform:low=0,high=1e+1us + onoff:slot=1us",
            0.02,
        ),
    ];
    for (text, tolerance) in cases {
        let distribution = GapDistribution::parse(text, None).unwrap();
        let found = mean(&gaps(&distribution, 7, 400_000));
        let expected_value = distribution.mean_gap_ns();
        assert!(
            (found / expected_value - 1.0).abs() < tolerance,
            "{text}: mean {found}, expected_value {expected_value}"
        );
    }
}

#[test]
fn a_rate_scales_every_distribution() {
    for text in [
        "fixed",
        "poisson",
        "weibull:shape=0.7",
        "pareto:shape=1.4",
        "lognormal:variation=0.5",
        "uniform:low=0,high=2us",
        "normal:mean=1us,deviation=2us",
        "bursts:size=4",
        "bursts:size=4,inside=10ns,period=1s",
        "onoff",
        "pareto-onoff",
        "poisson + bursts:size=16",
        "poisson:mean=1us + onoff:slot=1us",
        "poisson:mean=1us + onoff",
    ] {
        let distribution = GapDistribution::parse(text, Some(1234.5)).unwrap();
        let expected_value = distribution.mean_gap_ns();
        assert!(
            (expected_value - 1234.5).abs() < 1e-6,
            "{text}: {expected_value}"
        );
    }
}

#[test]
fn scaling_keeps_the_gaps_inside_a_burst() {
    let distribution = GapDistribution::parse("bursts:size=3,inside=50ns", Some(1000.0)).unwrap();
    assert_eq!(
        gaps(&distribution, 1, 6),
        [50.0, 50.0, 2900.0, 50.0, 50.0, 2900.0]
    );
    let error = GapDistribution::parse("bursts:size=3,inside=50ns", Some(10.0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "distribution bursts: period is 30 ns; expected more than (size - 1) * inside"
    );
}

#[test]
fn recorded_gaps_repeat_in_order() {
    let distribution = GapDistribution::recorded(vec![1.0, 0.0, 5.0]).unwrap();
    assert_eq!(gaps(&distribution, 1, 5), [1.0, 0.0, 5.0, 1.0, 0.0]);
    let twice = distribution.with_mean_gap_ns(4.0).unwrap();
    assert_eq!(gaps(&twice, 1, 3), [2.0, 0.0, 10.0]);
}

#[test]
fn on_off_traffic_is_burstier_than_poisson() {
    // Index of dispersion of counts over windows of 100 mean gaps: 1 for Poisson.
    let dispersion = |text: &str| {
        let distribution = GapDistribution::parse(text, Some(1.0)).unwrap();
        let mut counts = vec![0.0; 2000];
        let mut now = 0.0;
        for gap in gaps(&distribution, 3, 190_000) {
            now += gap;
            let window = (now / 100.0) as usize;
            if window < counts.len() {
                counts[window] += 1.0;
            }
        }
        let filled = &counts[..1500];
        let average = mean(filled);
        filled
            .iter()
            .map(|count| (count - average) * (count - average))
            .sum::<f64>()
            / filled.len() as f64
            / average
    };
    let poisson = dispersion("poisson");
    assert!((0.85..1.15).contains(&poisson), "{poisson}");
    assert!(dispersion("onoff") > 3.0);
    assert!(dispersion("pareto-onoff") > 3.0);
    assert!(dispersion("fixed") < 0.1);
}

#[test]
fn pareto_on_off_counts_have_the_theoretical_hurst_parameter() {
    // Variance of the mean of m windows falls as m^(2H-2): slower than 1/m.
    let distribution =
        GapDistribution::parse("pareto-onoff:sources=16,on-shape=1.4,off-shape=1.4", None).unwrap();
    let window_ns = 1e6;
    let mut counts = vec![0.0; 1 << 14];
    let mut now = 0.0;
    let mut rng = Rng::new(5, 0);
    let mut process = distribution.start(&mut rng);
    loop {
        now += process.next_gap_ns(&mut rng);
        let window = (now / window_ns) as usize;
        if window >= counts.len() {
            break;
        }
        counts[window] += 1.0;
    }
    let variance = |m: usize| {
        let means: Vec<f64> = counts.chunks(m).map(mean).collect();
        let average = mean(&means);
        mean(
            &means
                .iter()
                .map(|value| (value - average) * (value - average))
                .collect::<Vec<_>>(),
        )
    };
    let hurst = 1.0 + (variance(512) / variance(8)).ln() / (64.0_f64).ln() / 2.0;
    // Theory: (3 - 1.4) / 2 = 0.8; Poisson would give 0.5.
    assert!((0.68..0.95).contains(&hurst), "{hurst}");
}

/// The mean of each of many short runs, relative to the distribution's.
fn means_of_runs(text: &str, runs: u64, count: usize) -> Vec<f64> {
    let distribution = GapDistribution::parse(text, None).unwrap();
    (0..runs)
        .map(|seed| mean(&gaps(&distribution, seed, count)) / distribution.mean_gap_ns())
        .collect()
}

fn deviation(values: &[f64]) -> f64 {
    let average = mean(values);
    let squares: Vec<f64> = values
        .iter()
        .map(|value| (value - average).powi(2))
        .collect();
    mean(&squares).sqrt()
}

#[test]
fn short_runs_of_on_off_sources_have_the_requested_mean() {
    for text in [
        "onoff:slot=100ns",
        "onoff:sources=2,on=50,off=450,gap=1,slot=100ns",
        "pareto-onoff:sources=2,on-shape=2.5,off-shape=2.5",
        "pareto-onoff:sources=4,on=1ms,off=9ms,on-shape=3,off-shape=3",
    ] {
        for count in [1, 20, 200] {
            let means = means_of_runs(text, 20_000, count);
            let chance = deviation(&means) / (means.len() as f64).sqrt();
            let found = mean(&means);
            assert!(
                (found - 1.0).abs() < 4.0 * chance,
                "{text}: {count} gaps: {found}, by chance {chance}"
            );
        }
    }
}

#[test]
fn mean_spread_matches_the_spread_over_many_runs() {
    for (text, runs, count, tolerance) in [
        ("poisson:mean=1us", 2000, 100, 0.1),
        ("erlang:stages=4,mean=1us", 2000, 100, 0.1),
        ("bursts:size=8,period=1ms,pause=exponential", 2000, 800, 0.1),
        ("onoff:slot=100ns", 1000, 4000, 0.15),
        ("fixed:mean=1us + erlang:stages=2,mean=3us", 2000, 400, 0.1),
        (
            "onoff:sources=1,on=10,off=90,gap=2,slot=100ns",
            1000,
            4000,
            0.15,
        ),
    ] {
        let found = deviation(&means_of_runs(text, runs, count));
        let distribution = GapDistribution::parse(text, None).unwrap();
        let expected = distribution.mean_spread(count as u64).unwrap();
        assert!(
            (expected / found - 1.0).abs() < tolerance,
            "{text}: {count} gaps: expected {expected}, found {found}"
        );
    }
    let spread = |text: &str| GapDistribution::parse(text, None).unwrap().mean_spread(100);
    assert_eq!(spread("fixed:mean=1us"), Some(0.0));
    assert_eq!(spread("pareto:shape=1.5,mean=1us"), None);
    assert_eq!(spread("pareto-onoff"), None);
    assert_eq!(
        GapDistribution::recorded(vec![1.0, 2.0])
            .unwrap()
            .mean_spread(9),
        None
    );
}

#[test]
fn equal_seeds_give_equal_gaps() {
    for text in [
        "poisson",
        "onoff",
        "pareto-onoff",
        "bursts:size=2,pause=exponential",
        "poisson + pareto-onoff",
    ] {
        let distribution = GapDistribution::parse(text, Some(100.0)).unwrap();
        assert_eq!(
            gaps(&distribution, 9, 1000),
            gaps(&distribution, 9, 1000),
            "{text}"
        );
        assert_ne!(
            gaps(&distribution, 9, 1000),
            gaps(&distribution, 10, 1000),
            "{text}"
        );
    }
}

#[test]
fn messages_say_what_is_expected() {
    for (text, message) in [
        (
            "poisson",
            "\"poisson\": the mean is missing; expected mean=TIME, or a rate (--rate, --pps)",
        ),
        (
            "fixed:mean=0",
            "distribution fixed: mean is 0; expected a finite number > 0",
        ),
        (
            "onoff:sources=0,slot=1us",
            "distribution onoff: sources is 0; expected 1 to 4096",
        ),
        (
            "pareto-onoff:sources=1,on=1ns,off=1ns,on-shape=1.5,off-shape=1.5,gap=1s",
            "distribution pareto-onoff: gap is 1000000000; expected at most 1000 mean on periods",
        ),
        (
            "onoff:on=5,off=1e10,gap=4,slot=1ns",
            "distribution onoff: off is 10000000000; expected at most 10^9 times the mean on period",
        ),
        (
            "normal:mean=-5ns,deviation=1ns",
            "distribution gap: mean is -5; expected a finite number > 0",
        ),
        (
            "poisson:mean=1us + none",
            "distribution superposed: one source is none; expected sources with gaps",
        ),
        (
            "poisson:mean=1us + bursts:size=8",
            "\"bursts:size=8\": period is missing; expected NAME:KEY=VALUE,..., for example poisson:mean=2us or \
             bursts:size=8,period=1ms",
        ),
        (
            "pareto:shape=1,mean=2us",
            "distribution pareto: shape is 1; expected a finite number > 1, since with less the mean is infinite",
        ),
    ] {
        assert_eq!(
            GapDistribution::parse(text, None).unwrap_err().to_string(),
            message
        );
    }
    let unknown = GapDistribution::parse("foisson:mean=1", None)
        .unwrap_err()
        .to_string();
    assert!(
        unknown.starts_with("gap distribution \"foisson\": unknown; expected one of none, fixed"),
        "{unknown}"
    );
    assert!(GapDistribution::none().with_mean_gap_ns(5.0).is_err());
    assert!(GapDistribution::recorded(vec![0.0, 0.0]).is_err());
    assert!(GapDistribution::recorded(vec![-1.0, 2.0]).is_err());
}

#[test]
fn times_without_units_are_rejected() {
    for (text, key) in [
        ("poisson:mean=1", "mean is 1"),
        ("fixed:1", "mean is 1"),
        ("exponential:mean=5e3", "mean is 5e3"),
        ("weibull:shape=2,scale=3", "scale is 3"),
        ("hyperexponential:p=0.1/0.9,mean=50us/1", "mean is 1"),
        ("uniform:low=0,high=2", "high is 2"),
        ("bursts:size=2,inside=5,period=1ms", "inside is 5"),
        ("bursts:size=2,period=1", "period is 1"),
        ("onoff:slot=100", "slot is 100"),
        ("pareto-onoff:gap=10", "gap is 10"),
    ] {
        assert_eq!(
            GapDistribution::parse(text, None).unwrap_err().to_string(),
            format!(
                "{text:?}: {key}, a time without a unit; expected ns, us, ms or s behind the number, for example 2us"
            )
        );
    }
    // Numbers that are no times have no unit, and 0 needs none.
    for text in [
        "bursts:size=2,inside=0,period=1ms",
        "onoff:slot=1us,on=10,off=1,gap=1",
    ] {
        GapDistribution::parse(text, None).unwrap();
    }
}

#[test]
fn gaps_follow_the_distribution_function() {
    for text in [
        "poisson:mean=500ns",
        "weibull:shape=0.6,mean=500ns",
        "bursts:size=5,period=1us,pause=exponential",
    ] {
        let distribution = GapDistribution::parse(text, None).unwrap();
        let mut drawn = gaps(&distribution, 11, 50_000);
        drawn.sort_by(f64::total_cmp);
        for probability in [0.1, 0.5, 0.85, 0.9, 0.99] {
            let x = drawn[(probability * drawn.len() as f64) as usize];
            let share = drawn.partition_point(|gap| *gap <= x) as f64 / drawn.len() as f64;
            let expected_value = distribution.cdf(x).unwrap();
            assert!(
                (expected_value - share).abs() < 0.01,
                "{text} at {x}: {expected_value}, drawn {share}"
            );
        }
    }
}

/// Poisson sources together are a Poisson source.
#[test]
fn poisson_sources_together_have_exponential_gaps() {
    let text = "poisson:mean=2us + poisson:mean=3us + poisson:mean=6us";
    let mut drawn = gaps(&GapDistribution::parse(text, None).unwrap(), 3, 50_000);
    drawn.sort_by(f64::total_cmp);
    for probability in [0.05, 0.5, 0.9, 0.99] {
        let found = drawn[(probability * drawn.len() as f64) as usize];
        let expected = -1000.0 * f64::ln(1.0 - probability);
        assert!(
            (found / expected - 1.0).abs() < 0.03,
            "{probability}: {found}, {expected}"
        );
    }
}

/// Two sources of one period keep their distance, wherever they start.
#[test]
fn equal_gaps_together_alternate() {
    let text = "fixed:mean=1us + fixed:mean=1us";
    let drawn = gaps(&GapDistribution::parse(text, None).unwrap(), 3, 9);
    assert!(
        drawn.iter().all(|gap| (0.0..1000.0).contains(gap)),
        "{drawn:?}"
    );
    for pair in drawn.windows(2) {
        assert!((pair[0] + pair[1] - 1000.0).abs() < 1e-6, "{drawn:?}");
    }
}

#[test]
fn a_rate_gives_sources_equal_shares_or_those_of_their_means() {
    for (text, share) in [
        ("poisson + bursts:size=16", 0.5),
        ("poisson + bursts:size=16,period=1s", 0.5),
        ("poisson:mean=1us + bursts:size=16,period=48us", 0.25),
    ] {
        let drawn = gaps(
            &GapDistribution::parse(text, Some(100.0)).unwrap(),
            3,
            160_000,
        );
        // Packets of a burst have no gap but the first.
        let inside = drawn.iter().filter(|gap| **gap < 1e-6).count() as f64;
        let found = inside * 16.0 / 15.0 / drawn.len() as f64;
        assert!((found - share).abs() < 0.01, "{text}: {found}");
    }
}

#[test]
fn several_sources_may_be_64() {
    let of = |sources: usize| vec!["poisson"; sources].join(" + ");
    assert!(GapDistribution::parse(&of(64), Some(100.0)).is_ok());
    let error = GapDistribution::parse(&of(65), Some(100.0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "distribution superposed: number of sources is 65; expected 1 to 64"
    );
}
