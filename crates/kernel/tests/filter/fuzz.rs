//! Random filters on random frames: ours against libpcap's interpreter. Three seconds of them, or
//! as many as `PARSHALL_FUZZ_S` says; `PARSHALL_FUZZ_ROUND` starts at a round that failed. A million, for the most part
//! in user space, when the slow tests run; `PARSHALL_FUZZ_CAPTURES` names a directory of capture files, whose frames
//! are then among them.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use parshall_core::filter::classic::{FrameView, Origin};
use parshall_core::filter::emit::{Hook, LinkLayer};
use parshall_core::filter::{FilterError, MergedFilter};
use parshall_core::trace::{LINK_TYPE_ETHERNET, LINK_TYPE_RAW, Reader};
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::expressions::{Compiled, all, expected, subscribe};
use crate::kernel::{Loaded, Surroundings, available, is_tagged};
use crate::witness::Handle;
use crate::{classic_programs, frames};

const SECONDS: u64 = 3;
const MANY_FILTERS: usize = 1_000_000;
/// Of so many rounds of the many, one runs in the kernel, which verifies each program.
const ROUNDS_IN_KERNEL: u64 = 50;
const CAPTURED_BYTES_MAX: usize = 2000;

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value}: expected a number"))
    })
}

/// A number that an expression compares with.
fn number(random: &mut impl Rng) -> u32 {
    *[
        0,
        1,
        5,
        6,
        17,
        64,
        80,
        1024,
        0x800,
        0x0a00_0001,
        random.random(),
    ]
    .choose(random)
    .unwrap()
}

/// Arithmetic of the filter language.
fn arithmetic(random: &mut impl Rng, depth: u32) -> String {
    let protocol = *["ether", "ip", "ip6", "tcp", "udp"].choose(random).unwrap();
    match random.random_range(0..if depth == 0 { 3 } else { 8 }) {
        0 => {
            let width = *["", ":1", ":2", ":4"].choose(random).unwrap();
            format!("{protocol}[{}{width}]", random.random_range(0..40))
        }
        1 => number(random).to_string(),
        2 => "len".to_owned(),
        3 => format!("{protocol}[{} & 63]", arithmetic(random, depth - 1)),
        4 => format!("{protocol}[{}]", arithmetic(random, depth - 1)),
        _ => {
            let operator = *["+", "-", "*", "&", "|", "^", ">>", "<<", "/", "%"]
                .choose(random)
                .unwrap();
            let (left, right) = (arithmetic(random, depth - 1), arithmetic(random, depth - 1));
            format!("({left} {operator} {right})")
        }
    }
}

/// A combination of what stands in the data files and of arithmetic.
fn expression(random: &mut impl Rng, known: &[String], depth: u32) -> String {
    match random.random_range(0..if depth == 0 { 3 } else { 6 }) {
        0 | 1 => format!("({})", known.choose(random).unwrap()),
        2 => {
            let relation = *["=", "!=", ">", "<", ">=", "<="].choose(random).unwrap();
            let left = arithmetic(random, 2);
            let right = if random.random() {
                number(random).to_string()
            } else {
                arithmetic(random, 2)
            };
            format!("({left} {relation} {right})")
        }
        3 => format!("not {}", expression(random, known, depth - 1)),
        _ => {
            let word = *["and", "or"].choose(random).unwrap();
            let left = expression(random, known, depth - 1);
            let right = expression(random, known, depth - 1);
            format!("({left} {word} {right})")
        }
    }
}

/// One filter and what to call it in a message; `None` when libpcap refuses the expression, or it cannot be merged.
/// With a live handle, every other one has the view of a packet socket.
fn filter(
    random: &mut impl Rng,
    known: &[String],
    link_layer: LinkLayer,
    live: Option<&Handle>,
) -> Option<Compiled> {
    let live = live.filter(|_| link_layer == LinkLayer::Ethernet && random.random());
    let filter = if random.random_ratio(1, 3) {
        let view = match live {
            Some(_) => FrameView::Untagged,
            None => FrameView::Whole,
        };
        let program = classic_programs::program(random, view);
        let mut text = String::new();
        for instruction in &program {
            let _ = write!(
                text,
                "\n{:#04x} {} {} {:#x}",
                instruction.code, instruction.jt, instruction.jf, instruction.k
            );
        }
        Some(Compiled::program(text, &program, view))
    } else {
        let text = expression(random, known, 3);
        match live {
            Some(live) => Compiled::on_socket(&text, live),
            None => Compiled::or_refused(&text, link_layer, None).ok(),
        }
    };
    filter.filter(|filter| filter.program.view() == FrameView::Whole || filter.can_be_merged())
}

fn has_tag_beside(loaded: &Loaded<'_>, link_layer: LinkLayer, frame: &[u8]) -> bool {
    link_layer == LinkLayer::Ethernet && loaded.has_tag_beside(frame)
}

/// Frames of capture files by their link layer, in the order of [`known`].
type Captured = [Vec<Vec<u8>>; 2];

/// The frames of the files in a directory that the environment names, none without it.
fn captured() -> Captured {
    let mut found = Captured::default();
    let Some(directory) = std::env::var_os("PARSHALL_FUZZ_CAPTURES") else {
        return found;
    };
    let entries = std::fs::read_dir(&directory).expect("PARSHALL_FUZZ_CAPTURES names a directory");
    for path in entries.map(|entry| entry.unwrap().path()) {
        let Ok(mut reader) = Reader::open(&path) else {
            continue;
        };
        // Damaged files end early.
        while let Ok(Some(packet)) = reader.next() {
            let (interface, frame) = (packet.interface as usize, packet.captured.to_vec());
            let link_type = reader.interfaces().get(interface).map(|one| one.link_type);
            let kind = match link_type {
                Some(LINK_TYPE_ETHERNET) => 0,
                Some(LINK_TYPE_RAW) => 1,
                _ => continue,
            };
            if (1..=CAPTURED_BYTES_MAX).contains(&frame.len()) {
                found[kind].push(frame);
            }
        }
    }
    assert!(
        found.iter().any(|frames| !frames.is_empty()),
        "no frames in {}",
        directory.display()
    );
    found
}

/// Expressions of the data files, by their link layer.
fn known() -> [(LinkLayer, Vec<String>); 2] {
    [LinkLayer::Ethernet, LinkLayer::RawIp].map(|link_layer| {
        let texts = all(link_layer).into_iter().map(|compiled| compiled.text);
        (link_layer, texts.collect())
    })
}

#[derive(Default)]
struct Tally {
    filters: usize,
    refused: usize,
    wanted: usize,
}

impl Tally {
    fn check(&self, rounds: u64) {
        println!(
            "{rounds} rounds, {} filters, {} sets refused, {} frames wanted by somebody",
            self.filters, self.refused, self.wanted
        );
        assert!(self.filters > 100, "{} filters are no test", self.filters);
        assert!(
            self.refused * 10 < self.filters,
            "{} were refused",
            self.refused
        );
        assert!(
            self.wanted > 100,
            "{} frames wanted are no test",
            self.wanted
        );
    }
}

fn round(
    seed: u64,
    known: &[String],
    link_layer: LinkLayer,
    around: Option<&Surroundings>,
    live: Option<&Handle>,
    captured: &[Vec<u8>],
    tally: &mut Tally,
) {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let most = *[1, 4, 16, 64].choose(&mut random).unwrap();
    let filters: Vec<Compiled> = (0..random.random_range(1..=most))
        .filter_map(|_| filter(&mut random, known, link_layer, live))
        .collect();
    if filters.is_empty() {
        return;
    }
    tally.filters += filters.len();
    let merged = match MergedFilter::new(&subscribe(&filters)) {
        Ok(merged) => merged,
        Err(FilterError::Program { .. }) => {
            tally.refused += 1;
            return;
        }
        Err(error) => panic!("round {seed}: {error}"),
    };
    let loaded = around.map(|around| around.load(&merged, link_layer));
    for _ in 0..40 {
        let frame = match (captured.choose(&mut random), link_layer) {
            (Some(frame), _) if random.random() => frame.clone(),
            (_, LinkLayer::Ethernet) => frames::ethernet(&mut random),
            (_, LinkLayer::RawIp) => frames::raw_ip(&mut random),
        };
        // The kernel drops frames that end within a tag.
        let has_tag = link_layer == LinkLayer::Ethernet && is_tagged(&frame);
        if has_tag && frame.len() < 20 {
            continue;
        }
        for tag_is_beside in [false, true].into_iter().filter(|one| has_tag || !one) {
            let wanted = expected(&filters, &frame, tag_is_beside);
            tally.wanted += usize::from(wanted.0 != 0);
            let names = |found: u64| -> Vec<&String> {
                let wrong = (0..filters.len()).filter(|at| (found ^ wanted.0) >> at & 1 != 0);
                wrong.map(|at| &filters[at].text).collect()
            };
            let found = merged.subscribers_at(&frame, Origin::default(), tag_is_beside);
            assert_eq!(
                found,
                wanted.0,
                "round {seed}, {tag_is_beside}: {:#?} on {frame:02x?}",
                names(found)
            );
            if let Some(loaded) = &loaded
                && loaded.takes(&frame)
                && has_tag_beside(loaded, link_layer, &frame) == tag_is_beside
            {
                let found = loaded.verdict(&frame);
                let names = names(found.0);
                assert_eq!(
                    found, wanted,
                    "round {seed}, in the kernel: {names:#?} on {frame:02x?}"
                );
            }
        }
    }
}

#[test]
fn random_filters_on_random_frames() {
    let in_kernel = available();
    let hooks = [
        Hook::Xdp { frags: true },
        Hook::Xdp { frags: false },
        Hook::SchedCls,
    ];
    let live = in_kernel.then(Handle::live);
    let around = hooks.map(|hook| in_kernel.then(|| Surroundings::new(hook)));
    let (known, captured) = (known(), captured());
    let seconds = from_environment("PARSHALL_FUZZ_S", SECONDS);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut seed = from_environment("PARSHALL_FUZZ_ROUND", 0);
    let mut tally = Tally::default();
    while Instant::now() < end {
        let kind = usize::from(seed % 4 == 3);
        let (link_layer, known) = &known[kind];
        let around = around[seed as usize % hooks.len()].as_ref();
        round(
            seed,
            known,
            *link_layer,
            around,
            live.as_ref(),
            &captured[kind],
            &mut tally,
        );
        seed += 1;
    }
    tally.check(seed);
}

#[test]
#[ignore = "slow by nature"]
fn long_a_million_random_filters() {
    let in_kernel = available();
    let live = in_kernel.then(Handle::live);
    let around = in_kernel.then(|| Surroundings::new(Hook::SchedCls));
    let (known, captured) = (known(), captured());
    // Others than those of the quick test.
    let first = from_environment("PARSHALL_FUZZ_ROUND", 1 << 32);
    let mut seed = first;
    let mut tally = Tally::default();
    while tally.filters < MANY_FILTERS {
        let kind = usize::from(seed % 4 == 3);
        let (link_layer, known) = &known[kind];
        round(
            seed,
            known,
            *link_layer,
            around
                .as_ref()
                .filter(|_| seed.is_multiple_of(ROUNDS_IN_KERNEL)),
            live.as_ref(),
            &captured[kind],
            &mut tally,
        );
        seed += 1;
    }
    tally.check(seed - first);
}
