//! Every expression of the data files, alone and merged with others, gives libpcap's verdict.

use parshall_core::filter::emit::{Hook, LinkLayer};
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::expressions::{Compiled, all, expected, merge};
use crate::frames;
use crate::kernel::{Loaded, Surroundings, available};

pub const HOOKS: [Hook; 3] = [
    Hook::Xdp { frags: true },
    Hook::Xdp { frags: false },
    Hook::SchedCls,
];

fn frames(link_layer: LinkLayer, count: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    (0..count)
        .map(|_| match link_layer {
            LinkLayer::Ethernet => frames::ethernet(&mut random),
            LinkLayer::RawIp => frames::raw_ip(&mut random),
        })
        .collect()
}

#[test]
fn each_expression_in_user_space() {
    for link_layer in [LinkLayer::Ethernet, LinkLayer::RawIp] {
        let frames = frames(link_layer, 3_000, 1);
        let mut never = Vec::new();
        for compiled in all(link_layer) {
            let filter = merge([&compiled]);
            let mut matched = 0;
            for frame in &frames {
                let wanted = compiled.wants(frame, false);
                matched += usize::from(wanted);
                assert_eq!(
                    filter.subscribers(frame),
                    u64::from(wanted),
                    "{}: {frame:02x?}",
                    compiled.text
                );
                assert_eq!(compiled.program.run(frame) != 0, wanted);
            }
            if matched == 0 {
                never.push(compiled.text);
            }
        }
        // A test of filters that nothing matches would show little.
        assert!(never.len() < 40, "no frame matches {never:#?}");
    }
}

/// Calls `check` with every expression alone, loaded for a hook, and frames that it takes.
fn each_expression(hook: Hook, seed: u64, mut check: impl FnMut(&Loaded<'_>, &Compiled, &[u8])) {
    let around = Surroundings::new(hook);
    for link_layer in [LinkLayer::Ethernet, LinkLayer::RawIp] {
        let frames = frames(link_layer, 120, seed);
        for compiled in all(link_layer) {
            let filter = merge([&compiled]);
            let loaded = around.load(&filter, link_layer);
            for frame in frames.iter().filter(|frame| loaded.takes(frame)) {
                check(&loaded, &compiled, frame);
            }
        }
    }
}

#[test]
fn each_expression_in_the_kernel() {
    if !available() {
        return;
    }
    for hook in HOOKS {
        each_expression(hook, 2, |loaded, compiled, frame| {
            assert_eq!(
                loaded.verdict(frame),
                expected([compiled], frame, false),
                "{hook:?} {}: {frame:02x?}",
                compiled.text
            );
        });
    }
}

/// Headers may lie in any buffer, also half in one and half in the next.
#[test]
fn each_expression_when_the_frame_lies_in_several_buffers() {
    if !available() {
        return;
    }
    let mut random = Pcg64Mcg::seed_from_u64(5);
    each_expression(Hook::Xdp { frags: true }, 6, |loaded, compiled, frame| {
        let linear_bytes = random.random_range(14..=frame.len().min(100)) as u32;
        assert_eq!(
            loaded.verdict_when_linear(frame, Some(linear_bytes)),
            expected([compiled], frame, false),
            "{linear_bytes} bytes linear, {}: {frame:02x?}",
            compiled.text
        );
    });
}

#[test]
fn sets_of_filters_in_user_space_and_in_the_kernel() {
    random_sets(9);
}

#[test]
#[ignore = "120 sets: make test-long"]
fn long_many_sets_of_filters_in_user_space_and_in_the_kernel() {
    random_sets(60);
}

/// So many sets of each link layer, at each hook in turn.
fn random_sets(rounds: usize) {
    let mut random = Pcg64Mcg::seed_from_u64(3);
    let in_kernel = available();
    let around = HOOKS.map(|hook| in_kernel.then(|| Surroundings::new(hook)));
    for link_layer in [LinkLayer::Ethernet, LinkLayer::RawIp] {
        let compiled = all(link_layer);
        let frames = frames(link_layer, 250, 4);
        for round in 0..rounds {
            let size = match round {
                0 => 64,
                1 => 2,
                _ => random.random_range(1..=64_usize),
            };
            let mut chosen: Vec<&Compiled> = compiled.iter().collect();
            chosen.shuffle(&mut random);
            chosen.truncate(size);
            // Some are there several times.
            while chosen.len() < size {
                chosen.push(chosen.choose(&mut random).unwrap());
            }
            let filter = merge(chosen.iter().copied());
            let loaded = around[round % HOOKS.len()]
                .as_ref()
                .map(|around| around.load(&filter, link_layer));
            for frame in &frames {
                let (subscribers, snaplen) = expected(chosen.iter().copied(), frame, false);
                assert_eq!(filter.subscribers(frame), subscribers, "{frame:02x?}");
                assert_eq!(filter.snaplen_bytes(subscribers), snaplen);
                if let Some(loaded) = &loaded
                    && loaded.takes(frame)
                {
                    assert_eq!(
                        loaded.verdict(frame),
                        (subscribers, snaplen),
                        "{frame:02x?}"
                    );
                }
            }
        }
    }
}
