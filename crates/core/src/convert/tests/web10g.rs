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
        ConvertOptions {
            every_ns,
            ..Default::default()
        },
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

/// Time, number of the connection, and congestion window of each line.
fn polls(lines: &[Vec<String>]) -> Vec<(&str, &str, &str)> {
    lines
        .iter()
        .map(|line| (line[0].as_str(), line[1].as_str(), line[25].as_str()))
        .collect()
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
    assert_eq!(
        polls(&lines),
        [
            ("1700000000.011000", "1", "14480"),
            ("1700000000.012000", "1", "14480"),
            ("1700000000.013000", "1", "28960"),
            ("1700000000.014000", "1", "14480"),
            ("1700000000.016000", "2", "14480"),
        ]
    );
}

/// A failed handshake has no socket, and Web10G shows no connection before it is established.
#[test]
fn a_handshake_is_not_seen() {
    let ms = 1_000_000;
    let mut handshake = flow(1, false);
    handshake.ended = true;
    handshake.last_time_ns = OFFSET_NS + 12_500_000;
    let records = [
        TcpStateRecord {
            state: 12,
            cwnd_segments: 0,
            srtt_us_x8: 0,
            ..incoming(1, 10 * ms)
        },
        TcpStateRecord {
            state: 2,
            pkt_flags: 2,
            ..packet(2, 19 * ms)
        },
        packet(2, 20 * ms),
        TcpStateRecord {
            state: 12,
            ..incoming(2, 20 * ms + 1000)
        },
    ];
    let flows = [handshake.clone(), flow(2, false)];
    let lines = web10g_lines(&records, &flows, None);
    assert_eq!(lines.len(), 1);
    assert_eq!((lines[0][1].as_str(), lines[0][6].as_str()), ("2", "2"));
    let lines = web10g_lines(&records, &flows, Some(ms));
    assert_eq!(
        polls(&lines),
        [
            ("1700000000.020000", "2", "14480"),
            ("1700000000.021000", "2", "14480")
        ]
    );
}

/// `DupAcksOut` and `DupAckEpisodes` count acknowledgements sent, `ECESent` segments with ECE.
#[test]
fn acknowledgements_are_counted_on_the_side_that_rfc_4898_names() {
    let out = |time_ns, pkt_ack, rcv_wnd_bytes, pkt_flags| TcpStateRecord {
        pkt_ack,
        rcv_wnd_bytes,
        pkt_flags,
        payload_bytes: 0,
        ..packet(1, time_ns)
    };
    let records = [
        out(1, 100, 5000, 0x10),
        out(2, 100, 5000, 0x50),
        out(3, 100, 5000, 0x50),
        // Another window, then another number: no duplicates.
        out(4, 100, 6000, 0x10),
        out(5, 200, 6000, 0x50),
        out(6, 200, 6000, 0x10),
        TcpStateRecord {
            pkt_ack: 1000,
            pkt_flags: 0x50,
            ..incoming(1, 7)
        },
    ];
    let lines = web10g_lines(&records, &[flow(1, false)], None);
    let last = lines.last().unwrap();
    let value = |number: usize| last[number - 1].as_str();
    assert_eq!([value(62), value(64), value(66)], ["2", "3", "2"]);
    assert_eq!([value(61), value(83)], ["1", "1"]);
}

/// `ElapsedSecs` ends with the last segment; `StartTimeStamp` counts microseconds, as Web10G's kernel has it.
#[test]
fn elapsed_time_ends_with_the_last_segment() {
    let second = 1_000_000_000;
    let records = [packet(1, second + 5000), packet(2, 5 * second)];
    let lines = web10g_lines(&records, &[flow(1, false), flow(2, false)], Some(second));
    let last = lines.iter().rfind(|line| line[1] == "1").unwrap();
    assert_eq!(last[0], "1700000005.000005");
    assert_eq!(last[16..19], ["1", "5", "1700000000000000"]);
}

/// A timeout is a congestion signal even if the window was reduced before.
#[test]
fn a_timeout_in_recovery_is_a_signal_of_its_own() {
    let changes = [(2, 3), (3, 4), (4, 0), (5, 4)].map(|(time_ns, to)| change(time_ns, to));
    let records = [&[packet(1, 1)], &changes[..], &[packet(1, 6)]].concat();
    assert_eq!(
        signals(&records, &flow(1, false)),
        ["3", "2", "1", "1"].map(String::from)
    );
}

/// The state is about to become this one.
fn change(time_ns: u64, ca_state: u8) -> TcpStateRecord {
    TcpStateRecord {
        event: 2,
        ca_state,
        ..packet(1, time_ns)
    }
}

/// `CongSignals`, `Timeouts`, `FastRetran` and `AbruptTimeouts`.
fn signals(records: &[TcpStateRecord], flow: &FlowRow) -> [String; 4] {
    let lines = web10g_lines(records, std::slice::from_ref(flow), None);
    let last = lines.last().unwrap();
    [25, 28, 92, 95].map(|number: usize| last[number - 1].clone())
}

#[test]
fn a_row_of_the_state_before_behind_the_event_is_no_change() {
    let late = TcpStateRecord {
        event: 4,
        ..packet(1, 3)
    };
    let within = TcpStateRecord {
        ca_state: 3,
        ..packet(1, 4)
    };
    let records = [packet(1, 1), change(2, 3), late, within, change(5, 0)];
    assert_eq!(
        signals(&records, &flow(1, false)),
        ["1", "0", "1", "0"].map(String::from)
    );
}

#[test]
fn where_events_were_lost_other_rows_show_changes() {
    let within = TcpStateRecord {
        ca_state: 3,
        ..packet(1, 2)
    };
    let mut lossy = flow(1, false);
    let records = [packet(1, 1), within, packet(1, 3)];
    assert_eq!(signals(&records, &lossy)[2], "0");
    lossy.events_dropped = 1;
    assert_eq!(signals(&records, &lossy)[2], "1");
}

/// Either this host did not offer an option that was not negotiated, or the peer declined it.
#[test]
fn a_refused_option_names_the_host_that_refused_it() {
    let mut plain = flow(1, false);
    (plain.timestamps, plain.sack, plain.ecn) = (false, false, false);
    for (environment, expected) in [
        ("{}", ["2", "2", "2", "2"]),
        (
            r#"{"sysctl":{"net.ipv4.tcp_timestamps":"0","net.ipv4.tcp_sack":"1","net.ipv4.tcp_ecn":"2"}}"#,
            ["2", "2", "3", "3"],
        ),
        (
            r#"{"sysctl":{"net.ipv4.tcp_timestamps":"1","net.ipv4.tcp_sack":"0","net.ipv4.tcp_ecn":"1"}}"#,
            ["3", "3", "2", "2"],
        ),
    ] {
        let head = LogHeader {
            environment: environment.into(),
            ..header()
        };
        let mut writer = LogWriter::create(Vec::new(), &head).unwrap();
        writer.push_block(&[packet(1, 1)]).unwrap();
        writer
            .tick(vec![plain.clone()], &Ledger::default(), true)
            .unwrap();
        writer.finish().unwrap();
        let log = LogReader::new(Cursor::new(writer.into_inner()), "test".into()).unwrap();
        let mut out = Vec::new();
        convert(log, Format::Web10g, &mut out, ConvertOptions::default()).unwrap();
        let written = String::from_utf8(out).unwrap();
        let fields: Vec<&str> = written.trim_end().split(',').collect();
        assert_eq!(fields[71..75], expected, "{environment}");
    }
}
