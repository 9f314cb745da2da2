//! Web10G's account: events added up per flow, and polled.

use super::*;

pub(super) fn web10g_lines(
    records: &[TcpStateRecord],
    flows: &[FlowRow],
    every_ns: Option<u64>,
) -> Vec<Vec<String>> {
    let mut out = Vec::new();
    convert(
        log_with(records, flows, &Ledger::default()),
        Format::Web10g,
        &mut out,
        ConvertOptions { every_ns },
    )
    .unwrap();
    let written = String::from_utf8(out).unwrap();
    assert!(!written.contains(|char: char| char.is_ascii_lowercase()));
    written
        .lines()
        .map(|line| line.split(',').map(str::to_string).collect())
        .collect()
}

#[test]
fn web10g_accumulates_per_flow() {
    let mut records = vec![
        TcpStateRecord {
            gso_segs: 3,
            payload_bytes: 4344,
            ..packet(1, 1_000_000)
        },
        packet(2, 2_000_000),
        TcpStateRecord {
            snd_una: 2448,
            ..incoming(1, 3_000_000)
        },
        TcpStateRecord {
            event: 2,
            ca_state: 3,
            direction: 2,
            ..packet(1, 4_000_000)
        },
        TcpStateRecord {
            event: 1,
            ca_state: 3,
            total_retrans: 1,
            ..packet(1, 5_000_000)
        },
        TcpStateRecord {
            ca_state: 3,
            total_retrans: 1,
            snd_una: 2448,
            ..packet(1, 6_000_000)
        },
    ];
    records[5].cwnd_segments = 7;
    let lines = web10g_lines(&records, &[flow(1, true), flow(2, false)], None);
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().all(|line| line.len() == 123));
    let last = &lines[3];
    let value = |number: usize| last[number - 1].as_str();
    assert_eq!(
        &last[..6],
        [
            "1700000000.006000",
            "1",
            "2001:0DB8:0000:0000:0000:0000:0000:0001",
            "5001",
            "2001:0DB8:0000:0000:0000:0000:0000:ABCD",
            "80"
        ]
    );
    assert_eq!(
        [value(7), value(8), value(9), value(11), value(12)],
        ["4", "4", "5792", "1", "1448"]
    );
    assert_eq!([value(13), value(14)], ["1", "0"]);
    assert_eq!(
        [
            value(20),
            value(23),
            value(24),
            value(25),
            value(26),
            value(27)
        ],
        ["1448", "20", "220", "1", "10136", "2147483647"]
    );
    assert_eq!(
        [
            value(46),
            value(48),
            value(57),
            value(76),
            value(82),
            value(92)
        ],
        ["3", "19", "14480", "5", "3", "1"]
    );
    assert_eq!(
        [value(67), value(70), value(71), value(75)],
        ["1", "9", "7", "1"]
    );
    assert_eq!(
        [value(108), value(109), value(111), value(112)],
        ["2448", "3896", "1448", "1448"]
    );
    assert_eq!(lines[1][6], "1");
}

#[test]
fn web10g_polls_the_state_as_of_each_instant() {
    let ms = 1_000_000;
    let records = [
        packet(1, 10 * ms),
        TcpStateRecord {
            cwnd_segments: 20,
            ..packet(1, 12 * ms + 500_000)
        },
        TcpStateRecord {
            event: 3,
            state: 7,
            direction: 2,
            ..packet(1, 13 * ms + 200_000)
        },
        packet(2, 16 * ms),
    ];
    let lines = web10g_lines(&records, &[flow(1, false), flow(2, false)], Some(ms));
    let seen: Vec<(&str, &str, &str)> = lines
        .iter()
        .map(|line| (line[0].as_str(), line[1].as_str(), line[25].as_str()))
        .collect();
    assert_eq!(
        seen,
        [
            ("1700000000.011000", "1", "14480"),
            ("1700000000.012000", "1", "14480"),
            ("1700000000.013000", "1", "28960"),
            ("1700000000.014000", "1", "14480"),
            ("1700000000.016000", "2", "14480"),
        ]
    );
}

/// A handshake that came to nothing has no socket, so no row tells of its close.
#[test]
fn a_flow_that_ended_without_a_close_is_seen_once_more() {
    let ms = 1_000_000;
    let mut handshake = flow(1, false);
    handshake.ended = true;
    handshake.last_time_ns = OFFSET_NS + 12_500_000;
    let records = [
        TcpStateRecord {
            state: 12,
            ..incoming(1, 10 * ms)
        },
        packet(2, 20 * ms),
    ];
    let lines = web10g_lines(&records, &[handshake, flow(2, false)], Some(ms));
    let seen: Vec<(&str, &str)> = lines
        .iter()
        .map(|line| (line[0].as_str(), line[1].as_str()))
        .collect();
    assert_eq!(
        seen,
        [
            ("1700000000.011000", "1"),
            ("1700000000.012000", "1"),
            ("1700000000.013000", "1"),
            ("1700000000.020000", "2"),
        ]
    );
}
