//! Lists of thousands of primitives, which libpcap would take minutes to compile as a whole.

use std::sync::LazyLock;
use std::time::Instant;

use parshall_core::filter::MergedFilter;
use parshall_core::filter::emit::{Hook, LinkLayer};
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::expressions::{Compiled, expected, merge};
use crate::kernel::{Surroundings, available};
use crate::memory::peak_bytes;
use crate::{frames, same_verdict::HOOKS};

/// What merging may take.
const MERGE_MAX_BYTES: usize = 256 << 20;
const FIRST: u32 = 1_000;
const PORTS: u32 = 2_700;
const ODD: &str = "ip and src portrange 1-39999 \
                   and (tcp[1] & 1 = 1 or udp[1] & 1 = 1 or sctp[1] & 1 = 1)";

fn list(word: &str, operator: &str, items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.map(|item| format!("{word} {item}")).collect();
    items.join(operator)
}

/// A list, what says the same in a few words, which libpcap compiles as a whole, and the filter of the list.
struct Both {
    long: Compiled,
    short: Compiled,
    merged: MergedFilter,
}

/// Made once for all tests: each takes seconds.
static LISTS: LazyLock<Vec<Both>> = LazyLock::new(lists);

fn lists() -> Vec<Both> {
    let ports = || (FIRST..FIRST + PORTS).map(|port| port.to_string());
    let last = FIRST + PORTS - 1;
    let hosts = (0..1_024).map(|host| format!("10.0.{}.{}", host / 256, host % 256));
    let with_or = list("port", " or ", ports());
    let numbers = ports().collect::<Vec<_>>().join(" or ");
    let none_of = list("not tcp port", " and ", ports());
    let net = list("host", " or ", hosts);
    let odd = list(
        "src port",
        " or ",
        (0..20_000).map(|port| (2 * port + 1).to_string()),
    );
    [
        (format!("ip and ({odd})"), ODD.to_owned()),
        (with_or.clone(), format!("portrange {FIRST}-{last}")),
        (
            format!("udp and (dst port {numbers})"),
            format!("udp dst portrange {FIRST}-{last}"),
        ),
        (
            format!("ip and not tcp src port ({numbers})"),
            format!("ip and not tcp src portrange {FIRST}-{last}"),
        ),
        (
            format!("ip and {none_of}"),
            format!("ip and not tcp portrange {FIRST}-{last}"),
        ),
        (
            format!("({net}) and not ({with_or})"),
            format!("net 10.0.0.0/22 and not portrange {FIRST}-{last}"),
        ),
    ]
    .map(|(long, short)| {
        let long = Compiled::list(&long);
        Both {
            short: Compiled::new(&short, LinkLayer::Ethernet),
            merged: merge([&long]),
            long,
        }
    })
    .into()
}

/// A whole frame whose ports and addresses are near the ends of the lists.
fn frame(random: &mut impl Rng) -> Vec<u8> {
    let mut frame = vec![0; 80];
    let ip6 = random.random_ratio(1, 3);
    let protocol = [6, 17, 132, 1][random.random_range(0..4)];
    let ports = if ip6 {
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        frame[14] = 0x60;
        frame[20] = protocol;
        54
    } else {
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[23] = protocol;
        for address in [26, 30] {
            let last = [random.random_range(0..6), random.random()];
            frame[address..address + 2].copy_from_slice(&[10, 0]);
            frame[address + 2..address + 4].copy_from_slice(&last);
        }
        34
    };
    for port in [ports, ports + 2] {
        let number: u16 = random.random_range(0..FIRST as u16 * 5);
        frame[port..port + 2].copy_from_slice(&number.to_be_bytes());
    }
    frame
}

#[test]
fn long_lists_match_like_their_short_forms() {
    let mut random = Pcg64Mcg::seed_from_u64(11);
    let near: Vec<Vec<u8>> = (0..2_000).map(|_| frame(&mut random)).collect();
    let others: Vec<Vec<u8>> = (0..500).map(|_| frames::ethernet(&mut random)).collect();
    for (nth, list) in LISTS.iter().enumerate() {
        let Both {
            long,
            short,
            merged,
        } = list;
        let agree = |frame: &[u8], verdict: bool| {
            let ours = merged.subscribers(frame) != 0;
            assert_eq!(ours, verdict, "list {nth}: {frame:02x?}");
        };
        let mut wanted = 0;
        for frame in &near {
            let verdict = short.wants(frame, false);
            agree(frame, verdict);
            assert_eq!(long.wants(frame, false), verdict);
            wanted += usize::from(verdict);
        }
        assert!((50..1_950).contains(&wanted), "list {nth}: {wanted} wanted");
        // Cut short, a frame is rejected where the long form looks, which is not always where the
        // short one does.
        for frame in &others {
            let verdict = long.wants(frame, false);
            agree(frame, verdict);
        }
    }
}

#[test]
fn long_lists_pass_the_verifier() {
    if !available() {
        return;
    }
    let mut random = Pcg64Mcg::seed_from_u64(12);
    let frames: Vec<Vec<u8>> = (0..200).map(|_| frame(&mut random)).collect();
    for hook in HOOKS
        .into_iter()
        .filter(|hook| *hook != Hook::Xdp { frags: false })
    {
        let around = Surroundings::new(hook);
        for Both { short, merged, .. } in LISTS.iter() {
            let loaded = around.load(merged, LinkLayer::Ethernet);
            for frame in frames.iter().filter(|frame| loaded.takes(frame)) {
                assert_eq!(
                    loaded.verdict(frame),
                    expected([short], frame, false),
                    "{frame:02x?}"
                );
            }
        }
    }
}

/// Ports without neighbours: what the pieces of the list ask again is asked once, and each port is
/// looked up among all.
#[test]
fn long_lists_test_each_value_once() {
    let ports = 1_000;
    let odd = (0..ports).map(|port| (2 * port + 1).to_string());
    let filter = merge([&Compiled::list(&list("port", " or ", odd))]);
    // Source and destination, behind IPv4 and behind IPv6; a search halves as often as it compares.
    let needed = 4 * 2 * ports;
    assert!(
        filter.questions() < needed + needed / 20,
        "{} questions for {ports} ports",
        filter.questions()
    );
}

/// A random list of some tens to thousands of ports, hosts or networks.
fn random_list(random: &mut impl Rng, items: usize) -> String {
    let word = *["port", "tcp port", "udp dst port", "host", "src net"]
        .choose(random)
        .unwrap();
    let operator = *[" or ", " or ", " and not "].choose(random).unwrap();
    let items = (0..items).map(|_| match word {
        "host" => format!(
            "10.0.{}.{}",
            random.random_range(0..8),
            random.random::<u8>()
        ),
        "src net" => format!(
            "10.{}.{}.0/24",
            random.random::<u8>(),
            random.random::<u8>()
        ),
        _ => random.random_range(1..u16::MAX).to_string(),
    });
    let first = if operator == " or " { "" } else { "not " };
    format!("{first}{}", list(word, operator, items))
}

/// Lists of any length beside short filters: merging ends, within the memory that it may take, and every
/// filter keeps its verdict.
#[test]
fn long_lists_beside_short_filters_are_merged_in_bounds() {
    let mut random = Pcg64Mcg::seed_from_u64(13);
    let frames: Vec<Vec<u8>> = (0..300).map(|_| frame(&mut random)).collect();
    let short = [
        "tcp port 80",
        "udp port 53",
        "icmp",
        "",
        "ip6",
        "host 10.0.0.1",
    ]
    .map(Compiled::list);
    let odd = (1001..1200).step_by(2).map(|port: u32| port.to_string());
    let mut sets = vec![vec![Compiled::list(&list("port", " or ", odd))]];
    for (lists, items) in [
        (1, [100, 300]),
        (1, [40, 1_000]),
        (2, [60, 100]),
        (3, [20, 100]),
        (8, [40, 300]),
        (16, [60, 1_000]),
        (58, [2, 8]),
        (58, [20, 40]),
    ] {
        let lists = (0..lists).map(|_| {
            let items = *items.choose(&mut random).unwrap();
            Compiled::list(&random_list(&mut random, items))
        });
        sets.push(lists.collect());
    }
    for (nth, lists) in sets.iter().enumerate() {
        let mut filters: Vec<&Compiled> = short.iter().chain(lists).collect();
        filters.shuffle(&mut random);
        let started = Instant::now();
        let (merged, peak_bytes) = peak_bytes(|| merge(filters.iter().copied()));
        println!(
            "set {nth}: {} filters, {} stages, {} questions, {:?}, {} MiB",
            filters.len(),
            merged.stages(),
            merged.questions(),
            started.elapsed(),
            peak_bytes >> 20
        );
        assert!(
            peak_bytes < MERGE_MAX_BYTES,
            "set {nth}: {peak_bytes} bytes"
        );
        for frame in &frames {
            let (subscribers, _) = expected(filters.iter().copied(), frame, false);
            assert_eq!(
                merged.subscribers(frame),
                subscribers,
                "set {nth}: {frame:02x?}"
            );
        }
    }
}
