//! Properties of the emulated link, for arbitrary arrivals and shapes.

use parshall_kernel::relay::{Channel, Fate, JitterDistribution, Shape};
use proptest::prelude::*;

/// Gaps in nanoseconds and frame sizes in bytes, from bursts to long pauses.
fn arrivals() -> impl Strategy<Value = Vec<(u64, u32)>> {
    let gap = prop_oneof![Just(0), 0_u64..2_000, 0_u64..2_000_000];
    prop::collection::vec((gap, 14_u32..9_018), 1..400).prop_map(|steps| {
        steps
            .into_iter()
            .scan(1_000_u64, |now, (gap, bytes)| {
                *now += gap;
                Some((*now, bytes))
            })
            .collect()
    })
}

fn shapes() -> impl Strategy<Value = Shape> {
    (
        prop::option::of(1_000_u64..10_000_000_000),
        0_u32..40,
        0_u64..50_000_000,
        prop_oneof![Just(0), 0_u64..5_000_000],
        any::<bool>(),
        prop_oneof![Just(0.0), Just(1.0), 0.0..1.0_f64],
        prop::option::of(1_u32..100),
        prop::option::of(1_u64..200_000),
    )
        .prop_map(
            |(rate_bps, overhead_bytes, delay_ns, jitter_ns, normal, loss, packets, bytes)| Shape {
                rate_bps,
                overhead_bytes,
                delay_ns,
                jitter_ns,
                jitter_distribution: if normal {
                    JitterDistribution::Normal
                } else {
                    JitterDistribution::Uniform
                },
                loss_probability: loss,
                queue_packets: packets,
                queue_bytes: bytes,
                ..Shape::default()
            },
        )
}

fn run(shape: &Shape, seed: u64, arrivals: &[(u64, u32)]) -> Vec<Fate> {
    let mut channel = Channel::new(shape.clone(), seed, 0).unwrap();
    arrivals
        .iter()
        .map(|&(at, bytes)| channel.offer(at, bytes))
        .collect()
}

fn departures(fates: &[Fate]) -> Vec<u64> {
    fates
        .iter()
        .filter_map(|fate| match fate {
            Fate::Departs { at_ns } => Some(*at_ns),
            _ => None,
        })
        .collect()
}

/// The textbook, in rational numbers (numerators over the rate) and with the queue counted anew
/// for every frame: slow, and written without looking at the fast one.
fn textbook(shape: &Shape, arrivals: &[(u64, u32)]) -> Vec<Option<u64>> {
    let rate = u128::from(shape.rate_bps.unwrap());
    let mut finished: Vec<(u128, u64)> = Vec::new();
    arrivals
        .iter()
        .map(|&(at, bytes)| {
            let size = u64::from(bytes) + u64::from(shape.overhead_bytes);
            let now = u128::from(at) * rate;
            let inside: Vec<_> = finished.iter().filter(|(end, _)| *end > now).collect();
            let limit_packets = shape
                .queue_packets
                .map_or(usize::MAX, |limit| limit as usize);
            let limit_bytes = shape.queue_bytes.unwrap_or(u64::MAX);
            let inside_bytes: u64 = inside.iter().map(|(_, size)| size).sum();
            if inside.len() >= limit_packets || inside_bytes + size > limit_bytes {
                return None;
            }
            let start = finished.last().map_or(now, |(end, _)| (*end).max(now));
            let end = start + u128::from(size) * 8 * 1_000_000_000;
            finished.push((end, size));
            Some(u64::try_from(end.div_ceil(rate)).unwrap() + shape.delay_ns)
        })
        .collect()
}

proptest! {
    #[test]
    fn frames_keep_their_order_and_never_leave_early(
        shape in shapes(), seed: u64, arrivals in arrivals()
    ) {
        let mut channel = Channel::new(shape, seed, 1).unwrap();
        let mut latest = 0;
        for (at, bytes) in arrivals {
            if let Fate::Departs { at_ns } = channel.offer(at, bytes) {
                prop_assert!(at_ns >= at && at_ns >= latest);
                latest = at_ns;
            }
        }
    }

    #[test]
    fn delay_is_exact_without_rate_and_jitter(
        delay_ns in 0_u64..1_000_000_000, arrivals in arrivals()
    ) {
        let shape = Shape { delay_ns, ..Shape::default() };
        let expected: Vec<u64> = arrivals.iter().map(|(at, _)| at + delay_ns).collect();
        prop_assert_eq!(departures(&run(&shape, 1, &arrivals)), expected);
    }

    #[test]
    fn queue_and_rate_match_lindley(shape in shapes(), arrivals in arrivals()) {
        let mut shape = Shape { jitter_ns: 0, loss_probability: 0.0, ..shape };
        shape.rate_bps.get_or_insert(1_000_000);
        shape = shape.checked().unwrap();
        let expected = textbook(&shape, &arrivals);
        for (fate, expected) in run(&shape, 1, &arrivals).into_iter().zip(expected) {
            prop_assert_eq!(fate, expected.map_or(Fate::QueueDropped, |at_ns| Fate::Departs { at_ns }));
        }
    }

    #[test]
    fn rate_is_never_exceeded_over_any_interval(
        rate_bps in 1_000_u64..10_000_000_000, arrivals in arrivals()
    ) {
        let shape = Shape { rate_bps: Some(rate_bps), queue_packets: Some(1000), ..Shape::default() };
        let sizes: Vec<u64> = arrivals.iter().map(|(_, bytes)| u64::from(*bytes)).collect();
        let out = departures(&run(&shape, 1, &arrivals));
        prop_assert_eq!(out.len(), sizes.len());
        for first in 0..out.len() {
            let mut bits = 0_u128;
            for last in first + 1..out.len() {
                bits += u128::from(sizes[last] * 8);
                // A departure is rounded up by less than one nanosecond.
                let room = u128::from(out[last] - out[first] + 1) * u128::from(rate_bps);
                prop_assert!(bits * 1_000_000_000 <= room);
            }
        }
    }

    #[test]
    fn equal_seeds_give_equal_fates(shape in shapes(), seed: u64, arrivals in arrivals()) {
        prop_assert_eq!(run(&shape, seed, &arrivals), run(&shape, seed, &arrivals));
    }

    #[test]
    fn jitter_does_not_shift_the_losses(shape in shapes(), seed: u64, arrivals in arrivals()) {
        let steady = Shape { jitter_ns: 0, ..shape.clone() };
        let lost = |fates: Vec<Fate>| -> Vec<bool> {
            fates.iter().map(|fate| *fate == Fate::LossDropped).collect()
        };
        prop_assert_eq!(lost(run(&shape, seed, &arrivals)), lost(run(&steady, seed, &arrivals)));
    }

    #[test]
    fn queue_never_exceeds_its_capacity(shape in shapes(), arrivals in arrivals()) {
        let mut channel = Channel::new(shape, 1, 0).unwrap();
        let bound = channel.shape().queue_packets.map_or(usize::MAX, |limit| limit as usize);
        for (at, bytes) in arrivals {
            channel.offer(at, bytes);
        }
        prop_assert!(channel.queue_peak_packets() <= bound);
    }
}

#[test]
fn a_burst_leaves_as_many_frames_as_the_queue_holds() {
    let shape = Shape {
        rate_bps: Some(1_000_000),
        queue_packets: Some(50),
        ..Shape::default()
    };
    let fates = run(&shape, 1, &[(5, 1500); 80]);
    assert_eq!(departures(&fates).len(), 50);
    assert!(fates[50..].iter().all(|fate| *fate == Fate::QueueDropped));
}

#[test]
fn loss_and_jitter_follow_their_distributions() {
    let frames: Vec<(u64, u32)> = (0..200_000).map(|i| (i * 100_000_000, 100)).collect();
    for (jitter_distribution, expected_sd) in [
        (JitterDistribution::Uniform, 1.0 / 3.0_f64.sqrt()),
        (JitterDistribution::Normal, 1.0),
    ] {
        let shape = Shape {
            delay_ns: 20_000_000,
            jitter_ns: 1_000_000,
            jitter_distribution,
            loss_probability: 0.1,
            ..Shape::default()
        };
        let mut channel = Channel::new(shape, 7, 0).unwrap();
        let delays: Vec<f64> = frames
            .iter()
            .filter_map(|&(at, bytes)| match channel.offer(at, bytes) {
                Fate::Departs { at_ns } => Some((at_ns - at) as f64 / 1e6),
                _ => None,
            })
            .collect();
        let count = delays.len() as f64;
        // Five standard deviations of the binomial: 5 sqrt(200000 * 0.1 * 0.9) = 671.
        assert!(
            (count - 180_000.0).abs() < 671.0,
            "{count} of 200000 passed"
        );
        let mean = delays.iter().sum::<f64>() / count;
        let sd = (delays
            .iter()
            .map(|delay| (delay - mean).powi(2))
            .sum::<f64>()
            / count)
            .sqrt();
        assert!((mean - 20.0).abs() < 0.02, "mean {mean} ms");
        assert!(
            (sd - expected_sd).abs() < 0.02,
            "standard deviation {sd} ms"
        );
    }
}

#[test]
fn the_two_directions_draw_different_numbers() {
    let shape = Shape {
        loss_probability: 0.5,
        ..Shape::default()
    };
    let fates = |direction| {
        let mut channel = Channel::new(shape.clone(), 3, direction).unwrap();
        (0..64).map(|at| channel.offer(at, 60)).collect::<Vec<_>>()
    };
    assert_ne!(
        fates(0)
            .iter()
            .map(|fate| *fate == Fate::LossDropped)
            .collect::<Vec<_>>(),
        fates(1)
            .iter()
            .map(|fate| *fate == Fate::LossDropped)
            .collect::<Vec<_>>()
    );
}

#[test]
fn parameters_outside_their_range_are_refused_by_name() {
    for (shape, name) in [
        (
            Shape {
                rate_bps: Some(0),
                ..Shape::default()
            },
            "rate_bps 0",
        ),
        (
            Shape {
                loss_probability: 1.5,
                ..Shape::default()
            },
            "loss_probability 1.5",
        ),
        (
            Shape {
                loss_probability: f64::NAN,
                ..Shape::default()
            },
            "loss_probability NaN",
        ),
        (
            Shape {
                queue_packets: Some(0),
                ..Shape::default()
            },
            "queue_packets 0",
        ),
        (
            Shape {
                delay_ns: u64::MAX,
                ..Shape::default()
            },
            "delay_ns",
        ),
    ] {
        let message = Channel::new(shape, 1, 0).unwrap_err().to_string();
        assert!(message.contains(name), "{message}");
    }
}
