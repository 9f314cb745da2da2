//! Which primitives may read behind the end of a whole frame.
//!
//! Such a load rejects the frame for the whole filter, so it matters whether it is carried out. libpcap's
//! optimizer drops the tests whose answer changes nothing, which it only sees when it sees all of the
//! expression.

use crate::filter::words::words;

/// Bytes that a header of each protocol has at least.
const HEADER_BYTES: [(&str, u32); 10] = [
    ("ether", 14),
    ("arp", 28),
    ("rarp", 28),
    ("ip", 20),
    ("ip6", 40),
    ("tcp", 20),
    ("udp", 8),
    ("sctp", 12),
    ("icmp", 8),
    ("icmp6", 4),
];
/// Names of offsets: all of them within the headers above.
const OFFSETS: [&str; 5] = ["tcpflags", "icmptype", "icmpcode", "icmp6type", "icmp6code"];

/// Whether a primitive may read what a whole frame does not have, or divide by what may be 0. Arithmetic
/// that is not plainly within a header may.
pub(super) fn may_overrun(primitive: &str) -> bool {
    let words: Vec<&str> = words(primitive)
        .into_iter()
        .map(|(start, end)| &primitive[start..end])
        .collect();
    let is_arithmetic = words.contains(&"[") || words.first() == Some(&"len");
    if is_arithmetic && words.iter().any(|word| matches!(*word, "/" | "%")) {
        return true;
    }
    (0..words.len())
        .filter(|at| words[*at] == "[")
        .any(|at| !is_in_header(&words[..at], &words[at + 1..]))
}

/// Whether `protocol[offset:bytes]` lies within the protocol's header.
fn is_in_header(before: &[&str], behind: &[&str]) -> bool {
    let (Some(protocol), [place, "]", ..]) = (before.last(), behind) else {
        return false;
    };
    let Some((_, header_bytes)) = HEADER_BYTES.iter().find(|(name, _)| name == protocol) else {
        return false;
    };
    if OFFSETS.contains(place) {
        return true;
    }
    let (offset, bytes) = place.split_once(':').unwrap_or((place, "1"));
    match (offset.parse::<u32>(), bytes.parse::<u32>()) {
        (Ok(offset), Ok(bytes)) => offset
            .checked_add(bytes)
            .is_some_and(|end| end <= *header_bytes),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_within_a_header_do_not_overrun() {
        for primitive in [
            "tcp[13] & 2 != 0",
            "tcp[tcpflags] & (tcp-syn|tcp-ack) != 0",
            "ip[6:2] & 0x1fff = 0",
            "ether[0:4] = 5",
            "net 10.0.0.0/8",
            "len > 60",
            "icmp[icmptype] = 8",
        ] {
            assert!(!may_overrun(primitive), "{primitive}");
        }
        for primitive in [
            "tcp[20:4] = 5",
            "tcp[((tcp[12:1] & 0xf0) >> 2):4] = 0x47455420",
            "tcp[18:4] = 5",
            "ether[100] = 1",
            "ip[0x14] = 1",
            "ip[8] / ip[9] = 1",
            "len / (len - 60) = 1",
            "ip[4294967295:4] = 1",
        ] {
            assert!(may_overrun(primitive), "{primitive}");
        }
    }
}
