//! Golden files checked by hand, and mini-parsers written from the descriptions of the formats.

use super::row::Row;
use super::{ConvertError, ConvertOptions, ConvertReport, Format, convert};
use crate::abi::{
    FLOW_ECN, FLOW_IS_IPV6, FLOW_SACK, FLOW_TIMESTAMPS, FLOW_WINDOW_SCALING, TcpFlowRecord,
    TcpStateRecord,
};
use crate::ledger::{HookAccount, Ledger, Lost};
use crate::log::{FlowRow, LogHeader, LogReader, LogWriter};
use proptest::prelude::*;
use std::io::Cursor;

const OFFSET_NS: i64 = 1_700_000_000_000_000_000;

fn header() -> LogHeader {
    LogHeader {
        environment: r#"{"kernel":{"release":"6.18.3-amd64"}}"#.into(),
        clock: format!(r#"{{"clock":"CLOCK_REALTIME","monotonic_offset_ns":{OFFSET_NS}}}"#),
        options: "{}".into(),
        hz: 250,
    }
}

fn flow(number: u32, ipv6: bool) -> FlowRow {
    let mut record = TcpFlowRecord {
        time_ns: 500,
        flow: number,
        flags: FLOW_SACK | FLOW_TIMESTAMPS | FLOW_WINDOW_SCALING | FLOW_ECN,
        mss_clamp_bytes: 1460,
        advmss_bytes: 1460,
        local_port: 5000 + number as u16,
        remote_port: 80,
        ..Default::default()
    };
    record.local_address[10..].copy_from_slice(&[255, 255, 10, 0, 0, 1]);
    record.remote_address[10..].copy_from_slice(&[255, 255, 10, 0, 0, 2]);
    if ipv6 {
        record.flags |= FLOW_IS_IPV6;
        record.local_address = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        record.remote_address = [
            0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xab, 0xcd,
        ];
    }
    record.congestion_control[..5].copy_from_slice(b"cubic");
    FlowRow::new(&record, OFFSET_NS)
}

/// An outgoing data packet of an established connection.
fn packet(flow: u32, time_ns: u64) -> TcpStateRecord {
    TcpStateRecord {
        time_ns,
        flow,
        flow_seq: 7,
        cwnd_segments: 10,
        ssthresh_segments: 0x7fff_ffff,
        mss_bytes: 1448,
        srtt_us_x8: 8 * 20_125,
        mdev_us_x4: 4 * 3000,
        min_rtt_us: 19_500,
        rto_jiffies: 55,
        snd_una: 1000,
        snd_nxt: 3896,
        snd_wnd_bytes: 65_536,
        rcv_nxt: 77,
        rcv_wnd_bytes: 131_072,
        packets_out: 2,
        sndbuf_bytes: 87_040,
        sndbuf_used_bytes: 4608,
        rcvbuf_bytes: 131_072,
        rcvbuf_used_bytes: 12,
        pkt_seq: 2448,
        pkt_ack: 77,
        payload_bytes: 1448,
        gso_segs: 1,
        pkt_flags: 0x18,
        direction: 1,
        state: 1,
        window_scales: 0x97,
        pacing_rate_Bps: u64::MAX,
        ..Default::default()
    }
}

fn log_with(
    records: &[TcpStateRecord],
    flows: &[FlowRow],
    ledger: &Ledger,
) -> LogReader<Cursor<Vec<u8>>> {
    let mut writer = LogWriter::create(Vec::new(), &header()).unwrap();
    writer.push_block(records).unwrap();
    writer.tick(flows, ledger, true).unwrap();
    writer.finish().unwrap();
    LogReader::new(Cursor::new(writer.into_inner()), "test.parshall".into()).unwrap()
}

fn converted(
    records: &[TcpStateRecord],
    flows: &[FlowRow],
    format: Format,
) -> (Vec<u8>, ConvertReport) {
    let mut out = Vec::new();
    let log = log_with(records, flows, &Ledger::default());
    let report = convert(log, format, &mut out, ConvertOptions::default()).unwrap();
    (out, report)
}

fn text(records: &[TcpStateRecord], flows: &[FlowRow], format: Format) -> String {
    String::from_utf8(converted(records, flows, format).0).unwrap()
}

fn incoming(flow: u32, time_ns: u64) -> TcpStateRecord {
    TcpStateRecord {
        direction: 0,
        payload_bytes: 0,
        pkt_flags: 0x10,
        ssthresh_segments: 20,
        ..packet(flow, time_ns)
    }
}

/// What must never appear: a packet below ESTABLISHED and an event that is no packet.
fn with_noise() -> Vec<TcpStateRecord> {
    vec![
        TcpStateRecord {
            state: 2,
            ..packet(1, 1000)
        },
        packet(1, 1_234_567_000),
        TcpStateRecord {
            event: 1,
            ..packet(1, 1_300_000_000)
        },
        incoming(1, 2_000_001_999),
    ]
}

#[test]
fn siftr_1_3_golden() {
    let expected = "enable_time_secs=1700000000\tenable_time_usecs=000000\tsiftrver=1.3.0\tsysname=Linux\tsysver=618003\tipmode=4\n\
        o,1700000001.234567,10.0.0.1,5001,10.0.0.2,80,1073725440,14480,32,65536,131072,7,9,4,1448,20125,1,992,220000,87040,4608,131072,12,2896,0,1,0\n\
        i,1700000002.000001,10.0.0.1,5001,10.0.0.2,80,28960,14480,32,65536,131072,7,9,4,1448,20125,1,992,220000,87040,4608,131072,12,2896,0,1,0\n\
        disable_time_secs=1700000002\tdisable_time_usecs=000001\tnum_inbound_tcp_pkts=1\tnum_outbound_tcp_pkts=2\ttotal_tcp_pkts=3\t\
        num_inbound_skipped_pkts_malloc=0\tnum_outbound_skipped_pkts_malloc=0\tnum_inbound_skipped_pkts_tcpcb=0\tnum_outbound_skipped_pkts_tcpcb=1\t\
        num_inbound_skipped_pkts_inpcb=0\tnum_outbound_skipped_pkts_inpcb=0\ttotal_skipped_tcp_pkts=1\tflow_list=10.0.0.1;5001-10.0.0.2;80,\n";
    assert_eq!(
        text(&with_noise(), &[flow(1, false)], Format::Siftr13),
        expected
    );
}

#[test]
fn siftr_1_2_golden() {
    let written = text(&with_noise(), &[flow(1, false)], Format::Siftr12);
    let lines: Vec<&str> = written.lines().collect();
    assert_eq!(
        lines[0],
        "enable_time_secs=1700000000\tenable_time_usecs=000000\tsiftrver=1.2.2\thz=1000\ttcp_rtt_scale=32\tsysname=Linux\tsysver=618003\tipmode=4"
    );
    assert_eq!(
        lines[1],
        "o,0x00000000,1700000001.234567,10.0.0.1,5001,10.0.0.2,80,1073725440,14480,1073725440,65536,131072,7,9,4,1448,644,1,992,220,87040,4608,131072,12,2896,0,644"
    );
    assert_eq!(lines.len(), 4);
    assert!(lines[3].contains("skipped_pkts_malloc=0\tnum_inbound_skipped_pkts_mtx=0\tnum_outbound_skipped_pkts_mtx=0\tnum_inbound_skipped_pkts_tcpcb=0"));
    // As TEACUP does: words 4 and 5 of the head scale column 17 to seconds.
    let words: Vec<f64> = lines[0]
        .split('\t')
        .filter_map(|word| word.split('=').nth(1)?.parse().ok())
        .collect();
    let srtt_ms = lines[1].split(',').nth(16).unwrap().parse::<f64>().unwrap() * 1000.0
        / (words[2] * words[3]);
    assert!((srtt_ms - 20.125).abs() < 0.02, "{srtt_ms}");
}

#[test]
fn siftr2_golden() {
    let expected = "enable_time_secs=1700000000\tenable_time_usecs=000000\tsiftrver=2.5\trec_fmt=txt\tsysver=Linux 6.18.3-amd64\n\
        00000001,o,4d2,3890,3fffc000,4e9d,5a8,10000,20000,3e0,20,35b60,15400,1200,20000,c,b50,0\n\
        00000001,i,7d0,3890,7120,4e9d,0,10000,20000,3e0,20,35b60,15400,1200,20000,c,b50,0\n\
        disable_time_secs=1700000002\tdisable_time_usecs=000001\tglobal_flow_cnt=1\tring_drops=0\tmax_str_size=88\tgen_flowid_cnt=0\t\
        flow_list=00000001,4,10.0.0.1,5001,10.0.0.2,80,linux,cubic,1448,1,7,9,2,2;\n";
    assert_eq!(
        text(&with_noise(), &[flow(1, false)], Format::Siftr2),
        expected
    );
}

#[test]
fn ttprobe_golden() {
    let written = text(&with_noise()[1..], &[flow(1, true)], Format::Ttprobe);
    let expected = "o,1700000001.234567,2001:0DB8:0000:0000:0000:0000:0000:0001,5001,2001:0DB8:0000:0000:0000:0000:0000:ABCD,80,7,1448,20125,14480,2147483647,65536,131072,1,1000,3896,1448\n\
        i,1700000002.000001,2001:0DB8:0000:0000:0000:0000:0000:0001,5001,2001:0DB8:0000:0000:0000:0000:0000:ABCD,80,7,1448,20125,14480,28960,65536,131072,1,1000,3896,0\n";
    assert_eq!(written, expected);
}

#[test]
fn ttprobe_binary_golden() {
    let (bytes, report) = converted(&with_noise(), &[flow(1, false)], Format::TtprobeBinary);
    assert_eq!((bytes.len(), report.rows), (3 * 96, 3));
    let record = &bytes[96..192];
    let u64_at = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().unwrap());
    let u32_at = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().unwrap());
    assert_eq!((u64_at(0), u64_at(8)), (1_700_000_001, 234_567));
    assert_eq!(
        (&record[16..20], &record[32..36]),
        (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..])
    );
    assert_eq!(&record[48..54], &[0x13, 0x89, 0, 80, 0xa8, 0x05]);
    let words: Vec<u32> = (56..88).step_by(4).map(u32_at).collect();
    assert_eq!(
        words,
        [3896, 1000, 65_536, 131_072, 10, 0x7fff_ffff, 20_125, 1448]
    );
    assert_eq!(&record[88..], &[1, 1, 2, 0, 0, 0, 0, 0]);
}

fn web10g_lines(
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

#[test]
fn csv_joins_the_addresses() {
    let written = text(&with_noise(), &[flow(1, false)], Format::Csv);
    let lines: Vec<Vec<&str>> = written
        .lines()
        .map(|line| line.split(',').collect())
        .collect();
    assert_eq!(
        &lines[0][..6],
        [
            "local_address",
            "local_port",
            "remote_address",
            "remote_port",
            "time_ns",
            "flow"
        ]
    );
    assert_eq!(lines.len(), 5);
    assert!(lines.iter().all(|line| line.len() == 44));
    let column = |name: &str| lines[0].iter().position(|found| *found == name).unwrap();
    assert_eq!(
        &lines[2][..8],
        [
            "10.0.0.1",
            "5001",
            "10.0.0.2",
            "80",
            "1700000001234567000",
            "1",
            "out",
            "packet"
        ]
    );
    assert_eq!(lines[2][column("ssthresh_segments")], "");
    assert_eq!(lines[4][column("ssthresh_segments")], "20");
    assert_eq!(lines[2][column("state")], "ESTABLISHED");
    assert_eq!(lines[2][column("app_limited")], "false");
}

#[test]
fn parquet_keeps_rows_and_metadata() {
    let (bytes, report) = converted(&with_noise(), &[flow(1, false)], Format::Parquet);
    assert_eq!(report.rows, 4);
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, &bytes).unwrap();
    let builder =
        parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let metadata = builder
        .metadata()
        .file_metadata()
        .key_value_metadata()
        .unwrap()
        .clone();
    let value = |key: &str| {
        metadata
            .iter()
            .find(|pair| pair.key == key)
            .and_then(|pair| pair.value.clone())
            .unwrap()
    };
    assert_eq!(value("parshall.format"), "tcp-state");
    let flows: serde_json::Value = serde_json::from_str(&value("parshall.flows_table")).unwrap();
    assert_eq!(flows[0]["local_address"], "10.0.0.1");
    assert!(value("parshall.ledger").contains("\"hooks\""));
    let rows: usize = builder
        .build()
        .unwrap()
        .map(|batch| batch.unwrap().num_rows())
        .sum();
    assert_eq!(rows, 4);
}

#[test]
fn a_log_without_flows_is_refused_by_siftr_only() {
    for format in Format::ALL {
        let mut out = Vec::new();
        let result = convert(
            log_with(&[], &[], &Ledger::default()),
            format,
            &mut out,
            ConvertOptions::default(),
        );
        if matches!(format, Format::Siftr13 | Format::Siftr12 | Format::Siftr2) {
            let error = result.unwrap_err();
            assert!(
                matches!(error, ConvertError::NoFlow { .. })
                    && error.to_string().contains("test.parshall")
            );
            assert!(out.is_empty());
        } else {
            assert_eq!(result.unwrap().rows, 0, "{format}");
        }
    }
}

#[test]
fn a_long_last_line_is_warned_of() {
    for (flows, warned) in [(5u32, false), (30, true)] {
        let flows: Vec<FlowRow> = (1..=flows).map(|number| flow(number, false)).collect();
        for format in [Format::Siftr13, Format::Siftr12, Format::Siftr2] {
            let (_, report) = converted(&[packet(1, 1)], &flows, format);
            assert_eq!(
                report
                    .warnings
                    .iter()
                    .any(|warning| warning.contains("last line")),
                warned,
                "{format}"
            );
        }
    }
}

#[test]
fn losses_and_missing_flows_are_said() {
    let lost = Lost {
        overwritten: 4,
        ..Default::default()
    };
    let ledger = Ledger {
        hooks: vec![HookAccount {
            hook: "tcp_egress".into(),
            seen: 5,
            logged: 1,
            lost,
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut out = Vec::new();
    let log = log_with(&[packet(1, 1), packet(9, 2)], &[flow(1, false)], &ledger);
    let report = convert(log, Format::Siftr13, &mut out, ConvertOptions::default()).unwrap();
    assert_eq!(report.rows, 1);
    assert!(
        report
            .warnings
            .iter()
            .any(|warning| warning.contains("lacks 4 events"))
    );
    assert!(
        report
            .warnings
            .iter()
            .any(|warning| warning.contains("1 rows of 1 flows were left out"))
    );
    assert!(
        String::from_utf8(out)
            .unwrap()
            .contains("num_outbound_tcp_pkts=5\t")
    );
}

#[test]
fn the_interval_is_for_web10g_only() {
    let options = ConvertOptions { every_ns: Some(1) };
    let error = convert(
        log_with(&[], &[], &Ledger::default()),
        Format::Csv,
        Vec::new(),
        options,
    )
    .unwrap_err();
    assert!(error.to_string().contains("every"), "{error}");
    let options = ConvertOptions { every_ns: Some(0) };
    assert!(
        convert(
            log_with(&[], &[], &Ledger::default()),
            Format::Web10g,
            Vec::new(),
            options
        )
        .is_err()
    );
}

/// SIFTR's state numbers, written out from the description: index is Linux's number.
const FREEBSD_STATES: [u8; 13] = [0, 4, 2, 3, 6, 9, 10, 0, 5, 8, 1, 7, 3];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A reader of SIFTR 1.3 gets back what was logged, for any values.
    #[test]
    fn siftr_1_3_parses_back(
        rows in prop::collection::vec((any::<[u32; 8]>(), 0..13u8, any::<bool>(), 0..4u8), 0..80),
    ) {
        let records: Vec<TcpStateRecord> = rows.iter().enumerate().map(|(number, (words, state, out, event))| TcpStateRecord {
            cwnd_segments: words[0] >> 12,
            ssthresh_segments: words[1] >> 1,
            srtt_us_x8: words[2],
            snd_una: words[3],
            snd_nxt: words[4],
            snd_wnd_bytes: words[5],
            rto_jiffies: words[6] >> 16,
            rcvbuf_used_bytes: words[7],
            state: *state,
            direction: u8::from(*out),
            event: *event,
            ..packet(1, number as u64 * 1_000_003)
        }).collect();
        let written = text(&records, &[flow(1, false)], Format::Siftr13);
        let mut lines = written.lines();
        prop_assert_eq!(lines.next().unwrap().split('\t').count(), 6);
        for value in written.lines().next().unwrap().split('\t').skip(2) {
            prop_assert!(value.split('=').nth(1).unwrap().len() <= 7);
        }
        let expected = records.iter().filter(|record| record.event == 0 && FREEBSD_STATES[usize::from(record.state)] >= 4);
        for record in expected {
            let fields: Vec<&str> = lines.next().unwrap().split(',').collect();
            prop_assert_eq!(fields.len(), 27);
            let number = |field: usize| fields[field - 1].parse::<u64>().unwrap();
            prop_assert_eq!(fields[0], if record.direction == 1 { "o" } else { "i" });
            let ssthresh = u64::from(record.ssthresh_segments) * 1448;
            prop_assert_eq!(number(7), ssthresh.min(1_073_725_440));
            prop_assert_eq!(number(8), u64::from(record.cwnd_segments) * 1448);
            prop_assert_eq!(number(10), u64::from(record.snd_wnd_bytes));
            prop_assert_eq!(number(14), u64::from(FREEBSD_STATES[usize::from(record.state)]));
            prop_assert_eq!(number(16), u64::from(record.srtt_us_x8 / 8));
            prop_assert_eq!(number(19), u64::from(record.rto_jiffies) * 4000);
            prop_assert_eq!(number(23), u64::from(record.rcvbuf_used_bytes));
            prop_assert_eq!(number(24), u64::from(record.snd_nxt.wrapping_sub(record.snd_una)));
            prop_assert_ne!(number(26), 0);
        }
        let footer: Vec<&str> = lines.next().unwrap().split('\t').collect();
        prop_assert_eq!(footer.len(), 13);
        prop_assert!(footer[12].starts_with("flow_list=") && footer[12].ends_with(','));
        prop_assert_eq!(lines.next(), None);
    }

    /// No values make any conversion panic, and every format keeps its number of columns.
    #[test]
    fn no_conversion_panics(seeds in prop::collection::vec(any::<[u8; 32]>(), 0..60), every_us in prop::option::of(1000..1_000_000u64)) {
        let records: Vec<TcpStateRecord> = seeds.iter().enumerate().map(|(number, seed)| {
            let mut bytes = [0u8; 176];
            for (index, byte) in bytes.iter_mut().enumerate() {
                *byte = seed[index % 32].rotate_left(index as u32 / 32);
            }
            let mut record: TcpStateRecord = crate::abi::read_plain(&bytes).unwrap();
            record.time_ns = number as u64 * 1_000_000;
            record.flow = record.flow % 3 + 1;
            record
        }).collect();
        let flows = [flow(1, false), flow(2, true)];
        for (format, columns) in [(Format::Siftr12, 27), (Format::Siftr2, 18), (Format::Ttprobe, 17), (Format::Csv, 44)] {
            let written = text(&records, &flows, format);
            let lines: Vec<&str> = written.lines().collect();
            let data = if matches!(format, Format::Siftr12 | Format::Siftr2) { &lines[1..lines.len() - 1] } else { &lines[..] };
            prop_assert!(data.iter().all(|line| line.split(',').count() == columns), "{}", format);
        }
        let every_ns = every_us.map(|us| us * 1000);
        prop_assert!(web10g_lines(&records, &flows, every_ns).iter().all(|line| line.len() == 123));
        converted(&records, &flows, Format::Parquet);
        converted(&records, &flows, Format::TtprobeBinary);
    }
}

#[test]
fn rows_hold_what_was_written() {
    let mut log = log_with(&[packet(3, 9)], &[], &Ledger::default());
    let batch = log.next().unwrap().unwrap();
    let row: Row = super::row::rows(&batch).next().unwrap();
    assert_eq!(
        (row.flow, row.flow_seq, row.state, row.gso_segs),
        (3, 7, 1, 1)
    );
    assert_eq!(
        (row.ssthresh_segments, row.min_rtt_us, row.pacing_rate_Bps),
        (None, Some(19_500), None)
    );
}
