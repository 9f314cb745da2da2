//! Sizes and gaps of the packets of a trace.

use super::counts;
use crate::sizes::{SizeCounts, TraceLedger, count_trace, trace_gaps_ns};
use crate::trace::Reader;
use std::io::Cursor;

/// A pcap file in memory (link type, packets), captured whole.
fn pcap(link_type: u32, packets: &[Vec<u8>]) -> Vec<u8> {
    let packets: Vec<_> = packets
        .iter()
        .map(|packet| (packet.clone(), packet.len() as u32))
        .collect();
    cut_pcap(link_type, &packets)
}

/// A pcap file in memory (link type, packets: captured bytes, length on the wire).
fn cut_pcap(link_type: u32, packets: &[(Vec<u8>, u32)]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, link_type] {
        file.extend(word.to_le_bytes());
    }
    for (number, (packet, wire_bytes)) in (0_u32..).zip(packets) {
        for word in [number, 5 * number, packet.len() as u32, *wire_bytes] {
            file.extend(word.to_le_bytes());
        }
        file.extend(packet);
    }
    file
}

fn ethernet(ethertype: &[u8], rest: &[u8]) -> Vec<u8> {
    [&[2; 12], ethertype, rest].concat()
}

fn ipv4(length: u16) -> Vec<u8> {
    let mut header = vec![0x45, 0, 0, 0];
    header[2..].copy_from_slice(&length.to_be_bytes());
    header.resize(20, 0);
    header
}

fn ipv6(payload: u16) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0, 0, 0];
    header[4..].copy_from_slice(&payload.to_be_bytes());
    header.resize(40, 0);
    header
}

fn reader(file: Vec<u8>) -> Reader {
    Reader::new(Box::new(Cursor::new(file)), "made.pcap").unwrap()
}

fn count(file: Vec<u8>) -> (SizeCounts, TraceLedger) {
    count_trace(&mut reader(file), |_| true).unwrap()
}

#[test]
fn packets_of_a_trace_are_counted_by_the_length_in_their_header() {
    let (counted, ledger) = count(pcap(
        1,
        &[
            ethernet(&[8, 0], &ipv4(40)),
            ethernet(&[8, 0], &ipv4(1500)),
            ethernet(&[0x81, 0, 0, 5, 8, 0], &ipv4(40)),
            ethernet(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x86, 0xdd], &ipv6(12)),
            ethernet(&[8, 6], &[0; 28]),
            ethernet(&[8, 0], &[0x45, 0]),
            ethernet(&[8, 0], &ipv4(19)),
            vec![2; 5],
        ],
    ));
    assert_eq!(counted, counts(&[(40, 2), (52, 1), (1500, 1)]));
    let expected = TraceLedger {
        seen: 8,
        ipv4: 3,
        ipv6: 1,
        not_ip: 1,
        cut_short: 3,
        length_of_frame: 0,
        lost_by_capture: 0,
    };
    assert_eq!(ledger, expected);
    let (counted, ledger) = count(pcap(101, &[ipv4(99), ipv6(60), vec![0x10], vec![]]));
    assert_eq!(counted, counts(&[(99, 1), (100, 1)]));
    assert_eq!((ledger.not_ip, ledger.cut_short), (1, 1));
    assert_eq!(count(pcap(1, &[])).1.seen, 0);
}

/// An IPv6 header with payload length 0, and a hop-by-hop header of these options.
fn ipv6_with_options(options: &[u8]) -> Vec<u8> {
    let mut packet = ipv6(0);
    packet[6] = 0;
    packet.extend([6, (options.len() / 8) as u8]);
    packet.extend(options);
    packet
}

#[test]
fn length_0_stands_for_the_length_of_the_frame() {
    let mut without_payload = ipv6(0);
    without_payload[6] = 59;
    let jumbo = |bytes: u32| [&[0xc2, 4], &bytes.to_be_bytes()[..]].concat();
    let padded = [&[0, 1, 2, 7, 7][..], &jumbo(70_000), &[0, 1, 0]].concat();
    let cut_option = ipv6_with_options(&jumbo(70_000))[..46].to_vec();
    let (counted, ledger) = count(cut_pcap(
        101,
        &[
            (ipv4(0), 2960),
            (ipv4(0), 200_000),
            (ipv6(0), 9000),
            // Padded by Ethernet.
            (without_payload, 46),
            (ipv6_with_options(&jumbo(70_000)), 70_040),
            (ipv6_with_options(&padded), 70_040),
            // A jumbo payload option of length 0.
            (ipv6_with_options(&jumbo(0)), 65_000),
            (cut_option, 70_041),
            (ipv6_with_options(&[1, 200, 0, 0, 0, 0]), 80_000),
            // Too short, and too long.
            (ipv4(0), 19),
            (ipv6(0), 39),
            (ipv4(0), 4_000_000_000),
            (ipv6_with_options(&jumbo(u32::MAX)), 100),
        ],
    ));
    let expected = [
        (40, 1),
        (2960, 1),
        (9000, 1),
        (65_000, 1),
        (70_040, 2),
        (70_041, 1),
        (80_000, 1),
        (200_000, 1),
    ];
    assert_eq!(counted, counts(&expected));
    assert_eq!((ledger.ipv4, ledger.ipv6), (2, 7));
    assert_eq!((ledger.cut_short, ledger.length_of_frame), (4, 6));
    // The link header and tags are not part of the packet.
    let tagged = ethernet(&[0x81, 0, 0, 5, 8, 0], &ipv4(0));
    let (counted, _) = count(cut_pcap(1, &[(tagged, 18 + 3000)]));
    assert_eq!(counted, counts(&[(3000, 1)]));
}

#[test]
fn counting_can_be_interrupted() {
    let packets: Vec<_> = std::iter::repeat_n(ethernet(&[8, 0], &ipv4(40)), 70_000).collect();
    let stopped = count_trace(&mut reader(pcap(1, &packets)), |_| false).unwrap_err();
    assert_eq!(
        stopped.to_string(),
        "counting was interrupted after 65536 packets"
    );
}

#[test]
fn gaps_of_a_trace_are_differences_of_its_times() {
    // One second and 5 us from packet to packet.
    let packet = ethernet(&[8, 0], &ipv4(40));
    let file = pcap(1, &[packet.clone(), packet.clone(), packet.clone(), packet]);
    assert_eq!(
        trace_gaps_ns(&mut reader(file), 1000).unwrap(),
        (vec![1_000_005_000.0; 3], 0)
    );
}
