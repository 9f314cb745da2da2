//! Golden files checked by hand, and mini-parsers written from the descriptions of the formats.

mod selection;
mod siftr;
mod tables;
mod ttprobe;
mod warnings;
mod web10g;

use super::{ConvertError, ConvertOptions, ConvertReport, Format, convert};
use crate::abi::{
    FLOW_ECN, FLOW_IS_IPV6, FLOW_SACK, FLOW_TIMESTAMPS, FLOW_WINDOW_SCALING, TcpFlowRecord,
    TcpStateRecord,
};
use crate::ledger::{HookAccount, Ledger, Lost};
use crate::tcp_log::{FlowRow, LogHeader, LogReader, LogWriter};
use proptest::prelude::*;
use std::io::Cursor;

const OFFSET_NS: i64 = 1_700_000_000_000_000_000;

fn header() -> LogHeader {
    LogHeader {
        environment: r#"{"kernel":{"release":"6.18.3-amd64"}}"#.into(),
        clock: format!(r#"{{"clock":"CLOCK_REALTIME","monotonic_offset_ns":{OFFSET_NS}}}"#),
        options: "{}".into(),
        hz: 250,
        part: None,
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
    writer.tick(flows.to_vec(), ledger, true).unwrap();
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

/// Two packets, with a packet before ESTABLISHED and an event that is no packet, which no format contains.
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
