//! Distributions against theory, and against each other.

use super::Rng;
use super::*;
use proptest::prelude::*;

fn distributions() -> Vec<AnyDistribution> {
    let mut distributions: Vec<AnyDistribution> = [
        "constant:value=3",
        "uniform:low=2,high=10",
        "exponential:mean=4",
        "erlang:stages=3,mean=6",
        "hyperexponential:p=0.2/0.8,mean=10/1",
        "pareto:shape=4,scale=2",
        "weibull:shape=0.7,scale=3",
        "lognormal:mu=1,sigma=0.6",
        "normal:mean=5,deviation=2",
        "geometric:mean=5",
    ]
    .iter()
    .map(|text| text.parse().unwrap())
    .collect();
    distributions.push(
        Empirical::new(vec![3.0, 1.0, 4.0, 1.0, 5.0])
            .unwrap()
            .into(),
    );
    distributions.push(
        Histogram::new(&[0.0, 1.0, 3.0, 4.0, 8.0], &[0.0, 3.0, 0.0, 1.0])
            .unwrap()
            .into(),
    );
    distributions
}

#[test]
fn samples_have_the_mean_and_variance_of_the_distribution() {
    for distribution in distributions() {
        let mut rng = Rng::new(42, 1);
        let count = 400_000;
        let samples: Vec<f64> = (0..count).map(|_| distribution.sample(&mut rng)).collect();
        let mean = samples.iter().sum::<f64>() / f64::from(count);
        let variance = samples
            .iter()
            .map(|sample| (sample - mean) * (sample - mean))
            .sum::<f64>()
            / f64::from(count);
        let error = 5.0 * (distribution.variance() / f64::from(count)).sqrt() + 1e-12;
        assert!(
            (mean - distribution.mean()).abs() < error,
            "{distribution}: mean {mean}, expected {}",
            distribution.mean()
        );
        assert!(
            (variance - distribution.variance()).abs() <= 0.05 * distribution.variance(),
            "{distribution}: variance {variance}, expected {}",
            distribution.variance()
        );
    }
}

#[test]
fn samples_follow_the_distribution_function() {
    for distribution in distributions() {
        let mut rng = Rng::new(43, 1);
        let count = 100_000;
        let mut samples: Vec<f64> = (0..count).map(|_| distribution.sample(&mut rng)).collect();
        samples.sort_by(f64::total_cmp);
        let distance = samples
            .iter()
            .map(|sample| {
                let drawn = samples.partition_point(|other| other <= sample) as f64;
                (distribution.cdf(*sample) - drawn / f64::from(count)).abs()
            })
            .fold(0.0, f64::max);
        // Kolmogorov-Smirnov at a level of 1e-4: 2.23 / sqrt(n).
        assert!(
            distance < 2.23 / f64::from(count).sqrt(),
            "{distribution}: {distance}"
        );
    }
}

#[test]
fn a_quantile_is_the_inverse_of_the_distribution_function() {
    for distribution in distributions() {
        for step in 1..200 {
            let probability = f64::from(step) / 200.0;
            let x = distribution.quantile(probability);
            assert!(
                distribution.cdf(x) >= probability - 1e-12,
                "{distribution}: cdf({x}) for {probability}"
            );
            let before = x - 1e-6 * x.abs().max(1.0);
            assert!(
                distribution.cdf(before) <= probability + 1e-12,
                "{distribution}: cdf({before}) for {probability}"
            );
        }
    }
}

#[test]
fn known_values_match_theory() {
    let normal: AnyDistribution = "normal:mean=0,deviation=1".parse().unwrap();
    assert!((normal.quantile(0.975) - 1.959_963_984_540_054).abs() < 1e-14);
    assert!((normal.quantile(1e-10) + 6.361_340_902_404_056).abs() < 1e-12);
    let erlang: AnyDistribution = "erlang:stages=2,mean=2".parse().unwrap();
    // 1 - 2 / e: two stages of mean 1, at 1.
    assert!((erlang.cdf(1.0) - (1.0 - 2.0 / std::f64::consts::E)).abs() < 1e-15);
    let weibull: AnyDistribution = Weibull::with_mean(0.5, 8.0).unwrap().into();
    // Gamma(3) = 2, so that the scale is half of the mean.
    assert!(
        weibull.to_string().starts_with("weibull:shape=0.5,scale=4"),
        "{weibull}"
    );
    let heavy: AnyDistribution = "pareto:shape=1,scale=1".parse().unwrap();
    assert!(heavy.mean().is_infinite() && heavy.variance().is_infinite());
    // Mean 3 and squared coefficient of variation 4; each branch contributes half of the mean (balanced
    // means, Tijms 1994).
    let often = (1.0 + 0.6_f64.sqrt()) / 2.0;
    let weights = [often, 1.0 - often];
    let balanced = Hyperexponential::new(&weights, &weights.map(|weight| 1.5 / weight)).unwrap();
    assert!((balanced.mean() - 3.0).abs() < 1e-12);
    assert!((balanced.variance() / 9.0 - 4.0).abs() < 1e-12);
    let lognormal = Lognormal::with_moments(5.0, 2.0).unwrap();
    assert!((lognormal.mean() - 5.0).abs() < 1e-12 && (lognormal.variance() - 4.0).abs() < 1e-12);
}

#[test]
fn parsing_the_displayed_text_gives_the_same_distribution() {
    for distribution in distributions().into_iter().take(10) {
        assert_eq!(
            distribution.to_string().parse::<AnyDistribution>().unwrap(),
            distribution
        );
    }
}

#[test]
fn a_seed_gives_the_sequence_of_the_reference_implementation() {
    let mut rng = Rng::new(1, 0);
    let first: Vec<u64> = (0..3).map(|_| rng.bits()).collect();
    assert_eq!(first, FIRST_BITS);
    let exponential: AnyDistribution = "exponential:mean=1".parse().unwrap();
    assert_eq!(
        exponential.sample(&mut Rng::new(1, 0)).to_bits(),
        FIRST_EXPONENTIAL
    );
    assert_ne!(Rng::new(1, 1).bits(), first[0]);
    assert_ne!(Rng::new(2, 0).bits(), first[0]);
}

// Calculated by another program from the definitions of SplitMix64 and PCG64.
const FIRST_BITS: [u64; 3] = [
    1_655_086_585_577_374_761,
    13_941_165_539_302_350_022,
    7_769_531_143_496_551_889,
];
const FIRST_EXPONENTIAL: u64 = 0x3fb8_10c1_e212_07b5;

#[test]
fn messages_name_parameter_value_and_expectation() {
    for (text, message) in [
        (
            "exponential:mean=-1",
            "distribution exponential: mean is -1; expected a finite number > 0",
        ),
        (
            "uniform:low=2,high=2",
            "distribution uniform: high is 2; expected a number above low",
        ),
        (
            "erlang:stages=0,mean=1",
            "distribution erlang: stages is 0; expected 1 to 4096",
        ),
        (
            "geometric:mean=0.5",
            "distribution geometric: mean is 0.5; expected a finite number >= 1",
        ),
    ] {
        assert_eq!(
            text.parse::<AnyDistribution>().unwrap_err().to_string(),
            message
        );
    }
    for text in [
        "",
        "unknown",
        "exponential",
        "exponential:mean=x",
        "exponential:mean=1,mean=2",
        "exponential:mean=1,more=2",
        "exponential:1,2",
        "constant:inf",
        "hyperexponential:p=1/2,mean=1",
        "hyperexponential:p=0,mean=1",
        "uniform:low=nan,high=2",
        "erlang:stages=-1,mean=2",
    ] {
        let message = text.parse::<AnyDistribution>().unwrap_err().to_string();
        assert!(
            message.contains("expected") && !message.contains('\n'),
            "{text}: {message}"
        );
    }
}

#[test]
fn times_with_units_are_read_as_ns() {
    for (text, value) in [
        ("7", 7.0),
        ("7ns", 7.0),
        ("2.5us", 2500.0),
        ("1ms", 1e6),
        ("3s", 3e9),
    ] {
        assert_eq!(
            format!("constant:{text}")
                .parse::<AnyDistribution>()
                .unwrap()
                .mean(),
            value
        );
    }
}

proptest! {
    #[test]
    fn parsing_never_panics(text in "[a-z]{0,12}(:[a-z]{0,6}=?[-0-9./a-z]{0,8}(,[a-z]{0,6}=[0-9.e-]{0,8}){0,3})?") {
        let _ = text.parse::<AnyDistribution>();
        let _ = GapDistribution::parse(&text, None);
        let _ = GapDistribution::parse(&text, Some(10.0));
    }

    #[test]
    fn below_returns_less_than_its_bound(seed: u64, bound in 1_u64..) {
        let mut rng = Rng::new(seed, 3);
        for _ in 0..20 {
            prop_assert!(rng.below(bound) < bound);
        }
    }

    #[test]
    fn histogram_samples_lie_in_nonempty_bins(
        widths in prop::collection::vec(0.001_f64..100.0, 1..20),
        counts in prop::collection::vec(0_u32..50, 20),
        seed: u64,
    ) {
        let mut bounds = vec![-5.0];
        for width in &widths {
            bounds.push(bounds[bounds.len() - 1] + width);
        }
        let counts: Vec<f64> = counts[..widths.len()].iter().map(|count| f64::from(*count)).collect();
        prop_assume!(counts.iter().any(|count| *count > 0.0));
        let distribution = Histogram::new(&bounds, &counts).unwrap();
        let mut rng = Rng::new(seed, 0);
        for _ in 0..50 {
            let sample = distribution.sample(&mut rng);
            let bin = bounds.partition_point(|bound| *bound <= sample).clamp(1, widths.len()) - 1;
            // A draw may be exactly the bound of a nonempty bin.
            let touches = counts[bin] > 0.0
                || (bin > 0 && counts[bin - 1] > 0.0 && sample - bounds[bin] < 1e-9)
                || (bin + 1 < counts.len() && counts[bin + 1] > 0.0 && bounds[bin + 1] - sample < 1e-9);
            prop_assert!(touches, "{} in bin {}", sample, bin);
        }
    }
}
