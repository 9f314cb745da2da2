//! What merged filters cost in the kernel: nanoseconds for each packet, by `BPF_PROG_TEST_RUN`.
//!
//! `cargo run --release --example filter_cost`, as root. Every line is measured once in
//! each round, one behind the other, so that a change of the machine's speed meets all alike.

use std::os::fd::AsFd;
use std::time::Instant;

use parshall_core::filter::classic::Origin;
use parshall_core::filter::emit::{Hook, LinkLayer, TagsBeside, Target};
use parshall_core::filter::{MergedFilter, Subscription};
use parshall_kernel::filter::{Expression, try_out};

use kernel::{Loaded, Surroundings};

#[path = "../tests/filter/kernel.rs"]
#[allow(dead_code, reason = "the tests need more of it")]
mod kernel;

const ROUNDS: usize = 21;
const REPEAT: u32 = 200_000;
const SNAPLEN_BYTES: u32 = 96;

/// The filter of Schneider's thesis, figure 6.5: it looks at every address and accepts.
fn thesis() -> String {
    let mut filter = "ether[6:4]=0x00000000 and ether[10]=0x00 and not tcp".to_owned();
    for (word, network, first) in [("src", 11, 13), ("dst", 99, 13)] {
        for number in 0..19 {
            let ten = (number + 1) * 10;
            let last = first + number;
            filter += &format!(" and not ip {word} {ten}.{network}.12.{last}");
        }
    }
    filter
}

const OVERLAPPING: [&str; 6] = [
    "tcp port 80",
    "tcp",
    "host 10.0.0.1",
    "net 10.0.0.0/8 and tcp",
    "tcp port 80 or udp port 53",
    "tcp portrange 1-1024 and host 10.0.0.1",
];

/// An Ethernet frame with an IPv4 header and two ports.
fn frame(protocol: u8, source: [u8; 4], destination: [u8; 4], bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; bytes];
    frame[11] = 1;
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&(bytes as u16 - 14).to_be_bytes());
    frame[23] = protocol;
    frame[26..30].copy_from_slice(&source);
    frame[30..34].copy_from_slice(&destination);
    frame[34..38].copy_from_slice(&[0x30, 0x39, 0, 80]);
    frame
}

fn merge(expressions: &[String]) -> MergedFilter {
    let subscriptions: Vec<Subscription> = expressions
        .iter()
        .zip(0..)
        .map(|(expression, subscriber)| Subscription {
            subscriber,
            program: Expression::compile(expression, LinkLayer::Ethernet, None)
                .unwrap_or_else(|error| panic!("{error}"))
                .program()
                .clone(),
            snaplen_bytes: SNAPLEN_BYTES,
        })
        .collect();
    MergedFilter::new(&subscriptions).unwrap_or_else(|error| panic!("{error}"))
}

struct Case<'a> {
    name: &'static str,
    loaded: Loaded<'a>,
    frame: &'a [u8],
    /// Instructions, and milliseconds to merge and to load.
    instructions: usize,
    merge_ms: f64,
    load_ms: f64,
    runs_ns: Vec<u32>,
}

fn main() {
    if !kernel::available() {
        return;
    }
    let web = frame(6, [10, 0, 0, 1], [10, 0, 0, 2], 645);
    let thesis_frame = frame(17, [192, 168, 10, 100], [192, 168, 10, 12], 645);
    let one = |text: &str| vec![text.to_owned()];
    let hosts = (1..=64).map(|host| format!("host 10.9.0.{host} and port {}", 1000 + host));
    let sets: [(&str, Vec<String>, &[u8]); 8] = [
        ("everything", one(""), &web),
        ("nothing of it", one("udp port 53"), &web),
        ("the thesis's filter", vec![thesis()], &thesis_frame),
        ("one: tcp port 80", one(OVERLAPPING[0]), &web),
        ("one: portrange and host", one(OVERLAPPING[5]), &web),
        ("six identical", vec![OVERLAPPING[0].to_owned(); 6], &web),
        (
            "six overlapping",
            OVERLAPPING.map(str::to_owned).to_vec(),
            &web,
        ),
        ("64 hosts and ports", hosts.collect(), &web),
    ];
    for hook in [Hook::Xdp { frags: true }, Hook::SchedCls] {
        let around = Surroundings::new(hook);
        let mut cases: Vec<Case<'_>> = sets
            .iter()
            .map(|(name, expressions, frame)| {
                let start = Instant::now();
                let filter = merge(expressions);
                let merge_ms = start.elapsed().as_secs_f64() * 1e3;
                let target = Target {
                    hook,
                    link_layer: LinkLayer::Ethernet,
                    discard: false,
                    origin: Origin::default(),
                    tags_beside: TagsBeside::ALL,
                };
                let instructions = filter.emit(target).unwrap().instructions.len();
                let start = Instant::now();
                let loaded = around.load(&filter, LinkLayer::Ethernet);
                Case {
                    name,
                    loaded,
                    frame,
                    instructions,
                    merge_ms,
                    load_ms: start.elapsed().as_secs_f64() * 1e3,
                    runs_ns: Vec::new(),
                }
            })
            .collect();
        for _ in 0..ROUNDS {
            for case in &mut cases {
                let trial = try_out(case.loaded.program().as_fd(), case.frame, None, REPEAT)
                    .unwrap_or_else(|error| panic!("{}: {error}", case.name));
                case.runs_ns.push(trial.duration_ns);
            }
        }
        println!("{hook:?}: ns a packet, {ROUNDS} rounds of {REPEAT} runs");
        println!("median  least  most  instructions  merge ms  load ms");
        for case in &mut cases {
            case.runs_ns.sort_unstable();
            println!(
                "{:6} {:6} {:5} {:13} {:9.1} {:8.1}  {}",
                case.runs_ns[ROUNDS / 2],
                case.runs_ns[0],
                case.runs_ns[ROUNDS - 1],
                case.instructions,
                case.merge_ms,
                case.load_ms,
                case.name
            );
        }
    }
}
