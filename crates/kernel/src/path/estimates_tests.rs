//! Estimates of traffic that is known, seen in windows whose lengths and gaps depend on it.

use parshall_core::abi::PATH_CODE_COUNT;
use parshall_core::path_log::{TimeHistogram, bucket_from_ns};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::{Estimates, GROUPS, PathEstimate, QUANTILES, Window};

const CODE: usize = 1;
const STEP_S: f64 = 0.01;

/// Packets of each step, and the bucket around which their times are.
struct Traffic {
    packets: Vec<u64>,
    buckets: Vec<usize>,
}

impl Traffic {
    /// Bursts of random lengths, in which packets are ten times as many and take longer; and a slow wave.
    fn bursty(rng: &mut Pcg64, length_s: f64) -> Self {
        let steps = (length_s / STEP_S) as usize;
        let (mut is_burst, mut left) = (false, 0);
        let mut traffic = Self {
            packets: Vec::new(),
            buckets: Vec::new(),
        };
        for step in 0..steps {
            if left == 0 {
                is_burst = !is_burst;
                let mean = if is_burst { 60.0 } else { 180.0 };
                left = 1 + (-mean * (1.0 - rng.random::<f64>()).ln()) as usize;
            }
            left -= 1;
            let wave = 1.0 + 0.5 * (std::f64::consts::TAU * step as f64 / steps as f64).sin();
            let mean = if is_burst { 200.0 } else { 20.0 } * wave;
            // Poisson enough for its purpose.
            let noise: f64 = (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
            traffic
                .packets
                .push((mean + mean.sqrt() * noise).max(0.0) as u64);
            traffic.buckets.push(if is_burst { 100 } else { 60 });
        }
        traffic
    }

    fn histogram(&self, steps: std::ops::Range<usize>, rng: &mut Pcg64) -> TimeHistogram {
        let mut sum = TimeHistogram::default();
        for step in steps {
            let mut bits: u64 = 0;
            for packet in 0..self.packets[step] {
                if packet % 7 == 0 {
                    bits = rng.random();
                }
                // Of three numbers below 8 the sum: most are in the middle.
                let off = (bits & 7) + (bits >> 3 & 7) + (bits >> 6 & 7);
                bits >>= 9;
                sum.counts[self.buckets[step] + off as usize] += 1;
            }
        }
        sum.max_ns = 1 << 40;
        sum
    }

    fn packets(&self, steps: std::ops::Range<usize>) -> u64 {
        self.packets[steps].iter().sum()
    }
}

/// Looks at traffic in windows: what they saw decides on the length of the next, and on when it comes.
fn estimated(traffic: &Traffic, has_spans: bool, rng: &mut Pcg64) -> PathEstimate {
    let steps = traffic.packets.len();
    let mut estimates = Estimates::default();
    let (mut from, mut length, mut stands_for_s, mut span_ends) = (0, 5, 0.0, 0);
    while from + length < steps {
        let until = from + length;
        let mut packets = [0; PATH_CODE_COUNT];
        packets[CODE] = traffic.packets(from..until);
        let mut whole = vec![TimeHistogram::default(); PATH_CODE_COUNT];
        whole[CODE] = traffic.histogram(from..until, rng);
        let window = Window {
            length_s: length as f64 * STEP_S,
            packets,
            whole,
        };
        estimates.add(&window, stands_for_s);
        let rate = packets[CODE].max(1) as usize / length;
        length = (1_500 / rate.max(1)).clamp(5, 50);
        let span_s = 0.0005 * packets[CODE] as f64 + length as f64 * STEP_S;
        stands_for_s = span_s - length as f64 * STEP_S;
        if !has_spans {
            let pause_s = -stands_for_s * (1.0 - rng.random::<f64>()).ln();
            from = until + (pause_s / STEP_S).round() as usize;
            continue;
        }
        let offset_s = stands_for_s * rng.random::<f64>();
        from = until.max(span_ends) + (offset_s / STEP_S).round() as usize;
        span_ends = until.max(span_ends) + (span_s / STEP_S).round() as usize;
    }
    estimates.finish(steps as f64 * STEP_S).remove(0)
}

/// In how many of so many seeds the intervals hold the number of packets, the median and the 99th percentile.
fn check(has_spans: bool, seeds: u64) {
    let mut held = [0; 3];
    let mut ratios = [0.0; 3];
    for seed in 0..seeds {
        let mut rng = Pcg64::seed_from_u64(seed);
        let traffic = Traffic::bursty(&mut rng, 300.0);
        let steps = traffic.packets.len();
        let all = traffic.histogram(0..steps, &mut rng);
        let found = estimated(&traffic, has_spans, &mut rng);
        let packets = traffic.packets(0..steps) as f64;
        held[0] += u64::from((found.low_packets..=found.high_packets).contains(&packets));
        ratios[0] += found.packets / packets / seeds as f64;
        let quantiles = [found.median_ns.unwrap(), found.p99_ns.unwrap()];
        for (at, (part, [value_ns, low_ns, high_ns])) in
            QUANTILES.into_iter().zip(quantiles).enumerate()
        {
            let true_ns = all.quantile_ns(part);
            held[at + 1] += u64::from((low_ns..=high_ns).contains(&true_ns));
            ratios[at + 1] += value_ns / true_ns / seeds as f64;
        }
    }
    for count in held {
        assert!(100 * count >= 88 * seeds, "{held:?} of {seeds}");
    }
    for ratio in ratios {
        assert!((ratio - 1.0).abs() < 0.05, "{ratios:?}");
    }
}

#[test]
fn intervals_of_windows_in_spans_hold_what_the_whole_time_had() {
    check(true, 100);
}

#[test]
fn intervals_of_windows_after_random_pauses_hold_what_the_whole_time_had() {
    check(false, 100);
}

#[test]
#[ignore = "600 simulations: make test-long"]
fn long_intervals_of_windows_hold_what_the_whole_time_had() {
    check(true, 300);
    check(false, 300);
}

#[test]
fn windows_without_pauses_leave_nothing_to_estimate() {
    let mut estimates = Estimates::default();
    for _ in 0..100 {
        let window = Window {
            length_s: 1.0,
            packets: [3; PATH_CODE_COUNT],
            whole: vec![TimeHistogram::default(); PATH_CODE_COUNT],
        };
        estimates.add(&window, 0.0);
    }
    assert_eq!(estimates.finish(100.0), []);
}

#[test]
fn memory_does_not_grow_and_groups_lose_no_window() {
    let mut estimates = Estimates::default();
    let mut window = Window {
        length_s: 1.0,
        packets: std::array::from_fn(|code| if code == CODE { 7 } else { 0 }),
        whole: vec![TimeHistogram::default(); PATH_CODE_COUNT],
    };
    window.whole[CODE].counts[40] = 7;
    window.whole[CODE].max_ns = bucket_from_ns(41);
    for _ in 0..5_000 {
        estimates.add(&window, 1.0);
        assert!(estimates.groups.len() <= GROUPS);
    }
    let sum: u64 = estimates
        .groups
        .iter()
        .map(|group| group[CODE].total())
        .sum();
    assert_eq!(sum, 5_000 * 7 * 2 * super::UNIT as u64);
    let [found] = &estimates.finish(10_000.0)[..] else {
        panic!("one code path had packets");
    };
    assert!((found.packets - 70_000.0).abs() < 1.0, "{found:?}");
    // As uncertain as the ends of its windows: half a thousandth of a second of each second.
    assert!((found.high_packets - found.low_packets - 2.0 * 0.000_5 * 35_000.0).abs() < 0.1);
    // No interval is narrower than the bucket of a quantile.
    let [_, low_ns, high_ns] = found.median_ns.unwrap();
    assert!(low_ns <= bucket_from_ns(40) as f64 && high_ns >= bucket_from_ns(41) as f64);
}

#[test]
fn a_higher_quantile_is_no_smaller() {
    let mut estimates = Estimates::default();
    for number in 0..40 {
        // A hundredth of all packets takes longer, in one window.
        let slow = if number == 7 { 500 } else { 0 };
        let mut window = Window {
            length_s: 0.1,
            packets: std::array::from_fn(|code| if code == CODE { 1_000 + slow } else { 0 }),
            whole: vec![TimeHistogram::default(); PATH_CODE_COUNT],
        };
        window.whole[CODE].counts[40] = 1_000;
        window.whole[CODE].counts[200] = slow;
        window.whole[CODE].max_ns = bucket_from_ns(201);
        estimates.add(&window, 1.0);
    }
    let [found] = &estimates.finish(44.0)[..] else {
        panic!("one code path had packets");
    };
    let ([_, median_low, median_high], [value, low, high]) =
        (found.median_ns.unwrap(), found.p99_ns.unwrap());
    assert!(value >= bucket_from_ns(200) as f64, "{found:?}");
    assert!(low >= median_low && high >= median_high && median_low > 0.0);
}
