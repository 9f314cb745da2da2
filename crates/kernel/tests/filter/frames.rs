//! Frames as they occur, and as they should not: made from a seed.

use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};

const HOSTS: [[u8; 4]; 7] = [
    [10, 0, 0, 1],
    [10, 0, 0, 2],
    [10, 1, 2, 3],
    [192, 168, 1, 10],
    [224, 0, 0, 5],
    [255, 255, 255, 255],
    [8, 8, 8, 8],
];
const HOSTS_IPV6: [[u8; 16]; 4] = [
    [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2],
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
];
const PORTS: [u16; 12] = [0, 22, 53, 80, 90, 443, 1024, 1500, 4789, 6081, 36412, 65535];
const TAGS: [u16; 4] = [100, 200, 0x2064, 4095];

/// A frame that starts with an Ethernet header.
pub fn ethernet(random: &mut impl Rng) -> Vec<u8> {
    let mut frame = vec![0; 12];
    for address in frame.chunks_mut(6) {
        let known = [2, 0, 0, 0, 0, random.random_range(1..4)];
        address.copy_from_slice(if random.random_ratio(1, 8) {
            &[0xff; 6]
        } else {
            &known
        });
    }
    if random.random_ratio(1, 8) {
        frame[6..12].copy_from_slice(&[0, 0, 0, 0, 0, 1]);
    }
    let tags = *[0, 0, 0, 1, 1, 2, 3].choose(random).unwrap();
    for _ in 0..tags {
        frame.extend(pick(random, &[0x8100_u16, 0x88a8, 0x9100]).to_be_bytes());
        frame.extend(pick(random, &TAGS).to_be_bytes());
    }
    link_payload(random, &mut frame);
    spoil(random, frame)
}

/// A frame that starts with an IP header.
pub fn raw_ip(random: &mut impl Rng) -> Vec<u8> {
    let mut frame = Vec::new();
    if random.random() {
        ipv4(random, &mut frame, 0);
    } else {
        ipv6(random, &mut frame);
    }
    spoil(random, frame)
}

fn pick<T: Copy>(random: &mut impl Rng, choices: &[T]) -> T {
    *choices.choose(random).unwrap()
}

fn link_payload(random: &mut impl Rng, frame: &mut Vec<u8>) {
    match random.random_range(0..16) {
        0..6 => {
            frame.extend([0x08, 0x00]);
            ipv4(random, frame, 0);
        }
        6..10 => {
            frame.extend([0x86, 0xdd]);
            ipv6(random, frame);
        }
        10 => {
            frame.extend(pick(random, &[[8, 6], [0x80, 0x35]]));
            frame.extend([0, 1, 8, 0, 6, 4, 0, random.random_range(1..5)]);
            frame.extend([2, 0, 0, 0, 0, 1]);
            frame.extend(pick(random, &HOSTS));
            frame.extend([0; 6]);
            frame.extend(pick(random, &HOSTS));
        }
        11 | 12 => {
            frame.extend([0x88, 0x47]);
            let labels = random.random_range(1..4);
            for label in 1..=labels {
                let number = pick(random, &[1024_u32, 1025, 100_000]);
                let bottom = u32::from(label == labels);
                frame.extend((number << 12 | bottom << 8 | 64).to_be_bytes());
            }
            ip(random, frame);
        }
        13 => {
            frame.extend([0x88, pick(random, &[0x63, 0x64])]);
            frame.extend([0x11, 0, 0, pick(random, &[7, 8]), 0, 60, 0]);
            frame.extend(pick(random, &[[0x21], [0x57]]));
            ip(random, frame);
        }
        14 => {
            // A length instead of a type: LLC, sometimes with SNAP.
            frame.extend(random.random_range(0..1500_u16).to_be_bytes());
            let services = [
                [0x42, 0x42, 3],
                [0xaa, 0xaa, 3],
                [0xfe, 0xfe, 3],
                [0xe0, 0xe0, 1],
            ];
            frame.extend(pick(random, &services));
            bytes(random, frame, 40);
        }
        _ => {
            frame.extend(pick(random, &[0x88cc_u16, 0x9000, 0x6003, 0x809b, 0]).to_be_bytes());
            bytes(random, frame, 60);
        }
    }
}

fn ip(random: &mut impl Rng, frame: &mut Vec<u8>) {
    if random.random() {
        ipv4(random, frame, 0);
    } else {
        ipv6(random, frame);
    }
}

fn ipv4(random: &mut impl Rng, frame: &mut Vec<u8>, depth: u32) {
    let start = frame.len();
    let option_words = pick(random, &[0_usize, 0, 0, 1, 3, 10]);
    frame.extend([0x45 + option_words as u8, pick(random, &[0, 0, 3, 33])]);
    frame.extend([0, 0]);
    frame.extend(random.random_range(0..1500_u16).to_be_bytes());
    let fragment = pick(random, &[0, 0, 0, 0x4000, 0x2000, 0x2010, 0x0010]);
    frame.extend(u16::to_be_bytes(fragment));
    let protocol = pick(random, &[6, 6, 6, 17, 17, 1, 2, 132, 47, 50, 51, 58]);
    frame.extend([pick(random, &[1, 5, 64, 128, 255]), protocol]);
    frame.extend(random.random::<u16>().to_be_bytes());
    frame.extend(pick(random, &HOSTS));
    frame.extend(pick(random, &HOSTS));
    bytes(random, frame, option_words * 4);
    transport(random, frame, protocol, depth);
    let total = (frame.len() - start) as u16;
    frame[start + 2..start + 4].copy_from_slice(&total.to_be_bytes());
}

fn ipv6(random: &mut impl Rng, frame: &mut Vec<u8>) {
    let flow = pick(random, &[0_u32, 0, 0xabcde]);
    frame.extend((0x6000_0000 | flow).to_be_bytes());
    let length_at = frame.len();
    frame.extend([0, 0]);
    let protocol = pick(random, &[6, 6, 17, 58, 132, 59]);
    let extensions: Vec<u8> = (0..pick(random, &[0, 0, 0, 1, 2]))
        .map(|_| pick(random, &[0, 43, 44, 60, 51]))
        .collect();
    let next = |at: usize| extensions.get(at).copied().unwrap_or(protocol);
    frame.extend([next(0), pick(random, &[1, 64, 255])]);
    frame.extend(pick(random, &HOSTS_IPV6));
    frame.extend(pick(random, &HOSTS_IPV6));
    for at in 0..extensions.len() {
        frame.extend([next(at + 1), 0]);
        bytes(random, frame, 6);
    }
    transport(random, frame, protocol, 0);
    let length = (frame.len() - length_at - 36) as u16;
    frame[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
}

fn transport(random: &mut impl Rng, frame: &mut Vec<u8>, protocol: u8, depth: u32) {
    let start = frame.len();
    match protocol {
        6 => {
            ports(random, frame);
            frame.extend(random.random_range(0..3_u32).to_be_bytes());
            frame.extend(random.random::<u32>().to_be_bytes());
            let words = pick(random, &[5_u8, 5, 8, 15]);
            frame.extend([words << 4, pick(random, &[2, 0x12, 0x10, 0x18, 4, 1, 0])]);
            frame.extend([pick(random, &[0, 0xff]), 0, 0, 0, 0, 0]);
            bytes(random, frame, usize::from(words) * 4 - 20);
            if random.random() {
                frame.extend(b"GET / HTTP/1.1\r\n");
            }
        }
        17 => {
            ports(random, frame);
            let geneve = random.random_ratio(1, 3) && depth == 0;
            if geneve {
                frame.truncate(start + 2);
                frame.extend(6081_u16.to_be_bytes());
            }
            let length_at = frame.len();
            frame.extend([0; 4]);
            if geneve {
                let option_words = pick(random, &[0_u8, 1, 3]);
                frame.extend([option_words, 0]);
                let inner = pick(random, &[0x6558_u16, 0x0800, 0x86dd]);
                frame.extend(inner.to_be_bytes());
                frame.extend([0, 0, 10, 0]);
                bytes(random, frame, usize::from(option_words) * 4);
                if inner == 0x6558 {
                    frame.extend([2; 12]);
                    frame.extend([8, 0]);
                }
                ipv4(random, frame, depth + 1);
            } else {
                bytes(random, frame, 24);
            }
            let length = (frame.len() - start) as u16;
            frame[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
        }
        132 => {
            ports(random, frame);
            bytes(random, frame, 12);
        }
        1 | 58 => {
            frame.extend([pick(random, &[0, 8, 128, 135]), pick(random, &[0, 1])]);
            bytes(random, frame, 30);
        }
        2 => frame.extend([0x16, 0, 0, 0, 224, 0, 0, 5]),
        _ => bytes(random, frame, 20),
    }
    if random.random_ratio(1, 6) {
        let more = random.random_range(100..1200);
        bytes(random, frame, more);
    }
}

fn ports(random: &mut impl Rng, frame: &mut Vec<u8>) {
    frame.extend(pick(random, &PORTS).to_be_bytes());
    frame.extend(pick(random, &PORTS).to_be_bytes());
}

/// Bytes that are often 0, as they are in headers.
fn bytes(random: &mut impl Rng, frame: &mut Vec<u8>, count: usize) {
    let zero = random.random();
    frame.extend((0..count).map(|_| if zero { 0 } else { random.random::<u8>() }));
}

/// Cuts one frame in four short, and changes a byte of one in four.
fn spoil(random: &mut impl Rng, mut frame: Vec<u8>) -> Vec<u8> {
    if random.random_ratio(1, 4) {
        let most = frame.len().min(90);
        frame.truncate(random.random_range(1..=most));
    }
    if random.random_ratio(1, 4) {
        let at = random.random_range(0..frame.len().min(80));
        frame[at] = random.random();
    }
    frame
}
