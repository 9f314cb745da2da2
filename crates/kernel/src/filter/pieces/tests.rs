//! How filters are cut, and that the pieces say what the whole says.

use parshall_core::filter::emit::LinkLayer;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::*;
use crate::filter::libpcap::run;

fn primitive(text: &str) -> Tree {
    Tree::Primitive(text.into())
}

#[test]
fn operators_bind_alike_and_to_the_left() {
    assert_eq!(
        Parser::parse("port 1 or host 10.0.0.1 && not (net 10.0.0.0/8 || icmp)"),
        Some(Tree::And(vec![
            Tree::Or(vec![primitive("port 1"), primitive("host 10.0.0.1")]),
            Tree::Not(Box::new(Tree::Or(vec![
                primitive("net 10.0.0.0/8"),
                primitive("icmp"),
            ]))),
        ]))
    );
}

#[test]
fn numbers_inherit_the_words_before_them() {
    assert_eq!(
        Parser::parse("src or dst port 80 or 443 or not host 10.0.0.1 or 10.0.0.2"),
        Some(Tree::Or(vec![
            primitive("src or dst port 80"),
            primitive("src or dst port 443"),
            Tree::Not(Box::new(primitive("host 10.0.0.1"))),
            primitive("host 10.0.0.2"),
        ]))
    );
}

#[test]
fn numbers_in_parentheses_stand_behind_the_words_before_these() {
    assert_eq!(
        Parser::parse("tcp and not src or dst port (80 or not 443 and 8080) or udp"),
        Some(Tree::Or(vec![
            Tree::And(vec![
                primitive("tcp"),
                Tree::Not(Box::new(Tree::And(vec![
                    Tree::Or(vec![
                        primitive("src or dst port 80"),
                        Tree::Not(Box::new(primitive("src or dst port 443"))),
                    ]),
                    primitive("src or dst port 8080"),
                ]))),
            ]),
            primitive("udp"),
        ]))
    );
}

#[test]
fn expressions_that_are_not_plain_lists_are_left_to_libpcap() {
    for expression in [
        "",
        "port (80)",
        "port (80 or (81 or 82))",
        "port (80 or tcp)",
        "port (80 or port 81)",
        "port (80 or http)",
        "port (80 or 81) or 82",
        "port (80 or 81",
        "port (80 or 81) 82",
        "port 80 or",
        "port 80 or vlan 5 or port 81",
        "(tcp[0] & 3) = 1 or port 80",
        "tcp or 80",
        "host www or mail",
        "port 80 or (port 81",
        "port 80) or port 81",
        "5 = len or port 80",
    ] {
        assert_eq!(Parser::parse(expression), None, "{expression}");
    }
}

const POOL: [&str; 24] = [
    "port 1",
    "port 2",
    "port 3",
    "4",
    "5-6",
    "tcp port 2",
    "udp src port 3",
    "src or dst port 4",
    "portrange 2-4",
    "tcp",
    "udp",
    "icmp",
    "arp",
    "ip",
    "ip6",
    "ip proto 6",
    "host 10.0.0.1",
    "src host 10.0.0.2",
    "net 10.0.0.0/30",
    "host 2001:db8::1",
    "ether host 02:00:00:00:00:01",
    "tcp[tcpflags] & (tcp-syn|tcp-ack) != 0",
    "ip[8] > 3",
    "less 60",
];

/// Tests of bytes that a whole frame may not have.
const BEHIND: [&str; 10] = [
    "tcp[((tcp[12:1] & 0xf0) >> 2):4] = 0x47455420",
    "tcp[((tcp[12:1] & 0xf0) >> 2):2] = 0",
    "udp[8:4] = 0",
    "udp[20] & 1 = 1",
    "ip[24:2] > 0",
    "ether[100] = 0",
    "ether[70:4] != 7",
    "icmp[8:4] = 0",
    "ip[8] / (ip[9] - 17) = 0",
    "tcp[tcp[12] >> 2] < 9",
];

const QUALIFIED: [&str; 6] = [
    "port",
    "src or dst port",
    "udp dst port",
    "ip proto",
    "src host",
    "ether proto",
];

/// Numbers in parentheses.
fn values(random: &mut impl Rng, depth: u32) -> String {
    let mut list = String::new();
    for nth in 0..random.random_range(1..9) {
        if nth > 0 {
            list += [" or ", " or ", " and ", "||"].choose(random).unwrap();
        }
        list += ["", "", "", "not ", "!"].choose(random).unwrap();
        if depth > 0 && random.random_ratio(1, 20) {
            list += &values(random, depth - 1);
        } else {
            list += ["1", "2", "3", "6", "17", "0x800"].choose(random).unwrap();
        }
    }
    format!("({list})")
}

/// A list of primitives that libpcap understands, most of them understood here, too.
fn list(random: &mut impl Rng, depth: u32) -> String {
    let operator = *[" or ", " and "].choose(random).unwrap();
    let mut list = String::new();
    for nth in 0..random.random_range(1..6) {
        if nth > 0 {
            let other = *[" and ", " or ", " || ", "&&"].choose(random).unwrap();
            list += if random.random_ratio(1, 5) {
                other
            } else {
                operator
            };
        }
        list += ["", "", "", "not ", "!"].choose(random).unwrap();
        if random.random_ratio(1, 8) {
            list += BEHIND.choose(random).unwrap();
        } else if random.random_ratio(1, 6) {
            list += &format!(
                "{} {}",
                QUALIFIED.choose(random).unwrap(),
                values(random, depth)
            );
        } else if depth > 0 && random.random_ratio(1, 4) {
            list += &format!("({})", self::list(random, depth - 1));
        } else {
            list += POOL.choose(random).unwrap();
        }
    }
    list
}

fn frame(random: &mut impl Rng) -> Vec<u8> {
    let mut frame = vec![0; 80];
    random.fill(&mut frame[30..]);
    frame[5] = random.random_range(0..3);
    frame[0] = 2;
    let protocol = *[1, 6, 6, 17, 17, 132].choose(random).unwrap();
    let (kind, ports) = *[([8, 0], 34), ([8, 0], 34), ([0x86, 0xdd], 54), ([8, 6], 42)]
        .choose(random)
        .unwrap();
    frame[12..14].copy_from_slice(&kind);
    if ports == 54 {
        frame[14] = 0x60;
        frame[20] = protocol;
        frame[22..38].copy_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    } else {
        frame[14] = 0x45;
        frame[21] = u8::from(random.random_ratio(1, 8));
        frame[22] = random.random_range(0..8);
        frame[23] = protocol;
        for address in [26, 30] {
            frame[address..address + 4].copy_from_slice(&[10, 0, 0, random.random_range(0..5)]);
        }
    }
    for port in [ports, ports + 2] {
        frame[port..port + 2].copy_from_slice(&[0, random.random_range(0..8)]);
    }
    frame.truncate(random.random_range(58..=80));
    frame
}

/// A whole frame: as long as its headers say, or padded to 60 bytes.
fn whole_frame(random: &mut impl Rng) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    let payload = *[0, 0, 2, 6, 30, 100, 400].choose(random).unwrap();
    let protocol = *[1, 6, 6, 6, 17, 17, 2, 132].choose(random).unwrap();
    let kind = *[0x0800_u16, 0x0800, 0x0800, 0x86dd, 0x0806, 0x9205, 0x88cc]
        .choose(random)
        .unwrap();
    frame.extend(kind.to_be_bytes());
    match kind {
        0x0800 => {
            let options = *[0_u8, 0, 0, 2].choose(random).unwrap();
            frame.extend([0x45 + options, 0, 0, 0, 0, 0]);
            frame.extend(
                *[[0, 0], [0x40, 0], [0x20, 0], [0, 9]]
                    .choose(random)
                    .unwrap(),
            );
            frame.extend([64, protocol, 0, 0]);
            for _ in 0..2 {
                frame.extend([10, 0, 0, random.random_range(0..64)]);
            }
            frame.extend(vec![0; usize::from(options) * 4]);
        }
        0x86dd => {
            frame.extend([0x60, 0, 0, 0, 0, 0, protocol, 64]);
            frame.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1].repeat(2));
        }
        0x0806 => {
            frame.extend([
                0,
                1,
                8,
                0,
                6,
                4,
                0,
                1,
                2,
                0,
                0,
                0,
                0,
                1,
                10,
                0,
                0,
                3,
                0,
                0,
                0,
                0,
                0,
                0,
                10,
                0,
                0,
                random.random_range(0..64),
            ]);
        }
        _ => {}
    }
    if matches!(kind, 0x0800 | 0x86dd) {
        let ports = [0, random.random_range(0..99), 0, random.random_range(0..99)];
        match protocol {
            6 => {
                frame.extend(ports);
                frame.extend([
                    0,
                    0,
                    0,
                    1,
                    0,
                    0,
                    0,
                    2,
                    *[0x50, 0x80].choose(random).unwrap(),
                    0x18,
                    0,
                    9,
                    0,
                    0,
                    0,
                    0,
                ]);
                if frame[frame.len() - 8] == 0x80 {
                    frame.extend([1; 12]);
                }
            }
            17 => frame.extend([&ports[..], &[0, 8, 0, 0]].concat()),
            132 => frame.extend([&ports[..], &[0; 8]].concat()),
            _ => frame.extend([8, 0, 0, 0, 0, 0, 0, 0]),
        }
    }
    match random.random() {
        true => frame.extend(vec![0; payload]),
        false => frame.extend((0..payload).map(|_| random.random::<u8>())),
    }
    frame.resize(frame.len().max(*[42, 60, 60].choose(random).unwrap()), 0);
    frame
}

/// Verdicts that were compared.
#[derive(Default)]
struct Verdicts {
    runs: u32,
    /// Of these, those that accept the frame.
    accepted: u32,
}

impl Verdicts {
    /// Our program must have the verdict of libpcap's.
    fn compare(
        &mut self,
        ours: &[ClassicInstruction],
        theirs: &[ClassicInstruction],
        frame: &[u8],
        text: &str,
    ) {
        // SAFETY: both programs were compiled by libpcap, or put together of such: no jump
        // leaves them, and they end with returns.
        let (ours, theirs) = unsafe { (run(ours, frame), run(theirs, frame)) };
        assert_eq!(ours != 0, theirs != 0, "{text}: {frame:02x?}");
        self.accepted += u32::from(theirs != 0);
        self.runs += 1;
    }

    /// A test in which nearly all verdicts are the same would show little.
    fn check_both_occur(&self) {
        let Self { runs, accepted } = self;
        assert!(
            (runs / 10..runs / 10 * 9).contains(accepted),
            "{accepted} of {runs} accepted"
        );
    }
}

/// Taken apart as far as it goes, a list has the verdict that libpcap gives it as a whole, also where a test asks for
/// bytes that a frame does not have.
#[test]
fn lists_in_pieces_have_the_verdict_of_the_whole() {
    let mut random = Pcg64Mcg::seed_from_u64(1);
    let mut compiler = Compiler::new(LinkLayer::Ethernet, None).unwrap();
    let (mut apart, mut verdicts) = (0, Verdicts::default());
    for _ in 0..1_000 {
        let expression = list(&mut random, 2);
        let whole = compiler.compile(&CString::new(expression.as_str()).unwrap());
        let pieces = compile_above(&mut compiler, &expression, 1);
        let whole = match whole {
            Ok(whole) => whole,
            Err(message) => {
                assert_eq!(pieces, None, "{expression}: libpcap says {message}");
                continue;
            }
        };
        let Some(pieces) = pieces else { continue };
        apart += 1;
        for nth in 0..40 {
            let frame = match nth % 2 {
                0 => frame(&mut random),
                _ => whole_frame(&mut random),
            };
            verdicts.compare(&pieces, &whole, &frame, &expression);
        }
    }
    assert!(apart > 300, "only {apart} lists were taken apart");
    verdicts.check_both_occur();
}
