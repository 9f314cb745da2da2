//! Writes a small log of two synthetic connections: an example of `LogWriter`, and the source of
//! `tests/data/small.arrow`.
//!
//! `cargo run --release -p parshall-core --example write_log -- tests/data/small.arrow`

use parshall_core::abi::{
    DIRECTION_IN, DIRECTION_OUT, EVENT_PACKET, EVENT_RETRANSMIT, FLOW_IS_IPV6, FLOW_SACK,
    FLOW_WINDOW_SCALING, SSTHRESH_INFINITE, TcpFlowRecord, TcpStateRecord,
};
use parshall_core::ledger::Ledger;
use parshall_core::tcp_log::{Compression, FlowRow, LogHeader, LogWriter};
use std::fs::File;

fn record(number: u32) -> TcpStateRecord {
    let is_out = number.is_multiple_of(2);
    TcpStateRecord {
        time_ns: 1_000_000_000 + u64::from(number) * 100_000,
        flow: number / 2 % 2 + 1,
        flow_seq: u64::from(number / 2 + 1),
        cwnd_segments: 10 + number / 10,
        ssthresh_segments: if number < 150 { SSTHRESH_INFINITE } else { 20 },
        mss_bytes: 1448,
        srtt_us_x8: 8 * (20_000 + number % 7),
        mdev_us_x4: 4 * 500,
        min_rtt_us: 19_000,
        rto_jiffies: 220,
        snd_una: 1000 + number * 1448,
        snd_nxt: 1000 + (number + 10) * 1448,
        snd_wnd_bytes: 65_536,
        rcv_nxt: 5000,
        rcv_wnd_bytes: 65_536,
        packets_out: 10,
        sndbuf_bytes: 87_040,
        rcvbuf_bytes: 131_072,
        pkt_flags: 0x10,
        payload_bytes: if is_out { 1448 } else { 0 },
        gso_segs: 1,
        direction: if is_out { DIRECTION_OUT } else { DIRECTION_IN },
        event: if number % 50 == 48 {
            EVENT_RETRANSMIT
        } else {
            EVENT_PACKET
        },
        state: 1,
        window_scales: 0x77,
        pacing_rate_Bps: u64::MAX,
        ..Default::default()
    }
}

fn flow(number: u32) -> TcpFlowRecord {
    let mut flow = TcpFlowRecord {
        time_ns: 1_000_000_000,
        flow: number,
        flags: FLOW_SACK | FLOW_WINDOW_SCALING,
        mss_clamp_bytes: 1460,
        advmss_bytes: 1460,
        local_port: 5000,
        remote_port: 40_000 + number as u16,
        ..Default::default()
    };
    flow.congestion_control[..5].copy_from_slice(b"cubic");
    if number == 1 {
        flow.local_address[10..].copy_from_slice(&[255, 255, 10, 0, 0, 1]);
        flow.remote_address[10..].copy_from_slice(&[255, 255, 10, 0, 0, 2]);
    } else {
        flow.flags |= FLOW_IS_IPV6;
        flow.local_address = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        flow.remote_address = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    }
    flow
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: write_log FILE")?;
    let header = LogHeader {
        environment: r#"{"kernel":{"release":"6.18.3"}}"#.into(),
        clock: r#"{"clock":"CLOCK_REALTIME","monotonic_offset_ns":1700000000000000000}"#.into(),
        options: r#"{"packets_per_log":1}"#.into(),
        hz: 1000,
        part: None,
    };
    let mut writer = LogWriter::create(File::create(path)?, &header)?;
    let records: Vec<_> = (0..300).map(record).collect();
    let flows = [1, 2].map(|number| FlowRow::new(&flow(number), writer.monotonic_offset_ns()));
    let (first, second) = records.split_at(100);
    writer.push_block(first)?;
    writer.tick(flows.to_vec(), &Ledger::default(), false)?;
    // By default records as slow as these are compressed by zstd; the tests need LZ4, too.
    let mut writer = writer.with_compression(Compression::Lz4);
    writer.push_block(second)?;
    writer.tick(
        Vec::new(),
        &Ledger {
            complete: true,
            ..Default::default()
        },
        true,
    )?;
    writer.finish()?;
    Ok(())
}
