//! Writes a log of many synthetic records for `benches/long_log.py`.
//!
//! `cargo run --release -p parshall-core --example write_long_log -- FILE RECORDS FLOWS`
//!
//! Bulk senders, about a million packets a second together: data out in bursts, acknowledgements in, a
//! congestion window that grows and that losses reduce, round-trip times that vary. At most 100 flows are
//! open at a time; with more flows, each ends before another begins.

use parshall_core::abi::{
    DIRECTION_IN, DIRECTION_NONE, DIRECTION_OUT, EVENT_CONGESTION_STATE, EVENT_PACKET,
    SSTHRESH_INFINITE, TcpFlowRecord, TcpStateRecord,
};
use parshall_core::ledger::{HookAccount, Ledger, TCP_HOOK_NAMES};
use parshall_core::tcp_log::{FlowRow, LogHeader, LogWriter};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::fs::File;

const OPEN_MAX: u64 = 100;
const RECORDS_PER_TICK: u64 = 1_000_000;
const MSS_BYTES: u32 = 1448;
const RECOVERY: u8 = 3;

/// A flow that is open, and its row of the flow table.
struct Open {
    state: TcpStateRecord,
    row: FlowRow,
    began_ns: u64,
}

fn below(random: &mut Pcg64Mcg, bound: u64) -> u64 {
    (random.next_u64() >> 11) % bound
}

fn begin(number: u32, time_ns: u64, offset_ns: i64, random: &mut Pcg64Mcg) -> Open {
    let mut flow = TcpFlowRecord {
        time_ns,
        flow: number,
        mss_clamp_bytes: 1460,
        advmss_bytes: 1460,
        local_port: 1024 + (number % 60_000) as u16,
        remote_port: 5201,
        pid: 1000,
        ..Default::default()
    };
    flow.congestion_control[..5].copy_from_slice(b"cubic");
    flow.command[..6].copy_from_slice(b"iperf3");
    flow.local_address[10..].copy_from_slice(&[255, 255, 10, (number / 60_000) as u8, 0, 1]);
    flow.remote_address[10..].copy_from_slice(&[255, 255, 10, 0, 0, 2]);
    let sequence = random.next_u64() as u32;
    let state = TcpStateRecord {
        flow: number,
        cwnd_segments: 10,
        ssthresh_segments: SSTHRESH_INFINITE,
        mss_bytes: MSS_BYTES,
        srtt_us_x8: 8 * 20_000,
        mdev_us_x4: 4 * 500,
        min_rtt_us: 15_000,
        rto_jiffies: 220,
        snd_una: sequence,
        snd_nxt: sequence,
        snd_wnd_bytes: 3_145_728,
        rcv_nxt: random.next_u64() as u32,
        rcv_wnd_bytes: 65_536,
        sndbuf_bytes: 4_194_304,
        rcvbuf_bytes: 131_072,
        window_scales: 0x79,
        gso_segs: 1,
        pkt_flags: 0x10,
        state: 1,
        pacing_rate_Bps: 12_500_000,
        ..Default::default()
    };
    let row = FlowRow::new(&flow, offset_ns);
    Open {
        state,
        row,
        began_ns: time_ns,
    }
}

impl Open {
    /// The next record: data out while the window has room, otherwise an acknowledgement in.
    fn step(&mut self, time_ns: u64, random: &mut Pcg64Mcg) {
        let state = &mut self.state;
        state.time_ns = time_ns;
        self.row.last_time_ns = self.row.first_time_ns + (time_ns - self.began_ns) as i64;
        if below(random, 20_000) == 0 {
            state.event = EVENT_CONGESTION_STATE;
            state.direction = DIRECTION_NONE;
            state.ca_state = RECOVERY;
            state.cwnd_segments = (state.cwnd_segments * 7 / 10).max(2);
            state.ssthresh_segments = state.cwnd_segments;
            state.total_retrans += 1 + below(random, 5) as u32;
            self.row.events_seen += 1;
            self.row.events_logged += 1;
            return;
        }
        state.event = EVENT_PACKET;
        state.flow_seq += 1;
        self.row.packets_seen += 1;
        self.row.packets_logged += 1;
        if state.packets_out < state.cwnd_segments && below(random, 3) > 0 {
            let segments = 1 + below(random, 16) as u32;
            state.direction = DIRECTION_OUT;
            state.pkt_seq = state.snd_nxt;
            state.pkt_ack = state.rcv_nxt;
            state.payload_bytes = segments * MSS_BYTES;
            state.gso_segs = segments as u16;
            state.snd_nxt = state.snd_nxt.wrapping_add(state.payload_bytes);
            state.packets_out += segments;
            state.sndbuf_used_bytes = state.packets_out * 2304;
        } else {
            let segments = state.packets_out.min(2 + below(random, 6) as u32);
            state.direction = DIRECTION_IN;
            state.payload_bytes = 0;
            state.gso_segs = 1;
            state.snd_una = state.snd_una.wrapping_add(segments * MSS_BYTES);
            state.pkt_ack = state.snd_una;
            state.packets_out -= segments;
            state.delivered += segments;
            let wander = below(random, 401) as i64 - 200;
            let srtt_us = i64::from(state.srtt_us_x8 >> 3) + wander;
            state.srtt_us_x8 = srtt_us.clamp(15_000, 60_000) as u32 * 8;
            if below(random, 40) == 0 {
                state.cwnd_segments += 1;
                state.ca_state = 0;
            }
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, path, records, flows] = arguments.as_slice() else {
        return Err("usage: write_long_log FILE RECORDS FLOWS".into());
    };
    let (records, flows): (u64, u64) = (records.parse()?, flows.parse()?);
    let header = LogHeader {
        environment: r#"{"command_line":["write_long_log"]}"#.into(),
        clock: r#"{"clock":"CLOCK_REALTIME","monotonic_offset_ns":1700000000000000000}"#.into(),
        options: "{}".into(),
        hz: 1000,
        part: None,
    };
    let mut writer = LogWriter::create(File::create(path)?, &header)?;
    let offset_ns = writer.monotonic_offset_ns();
    let mut random = Pcg64Mcg::seed_from_u64(1);
    let mut time_ns = 5_000_000_000_000;
    let records_per_flow = records.div_ceil(flows.max(1)).max(1);
    let mut open: Vec<Open> = Vec::new();
    let (mut changed, mut next_flow): (Vec<FlowRow>, u64) = (Vec::new(), 0);
    for _ in 0..flows.min(OPEN_MAX) {
        next_flow += 1;
        open.push(begin(next_flow as u32, time_ns, offset_ns, &mut random));
    }
    let (mut packets, mut events, mut written) = (0, 0, 0);
    while written < records {
        let index = below(&mut random, open.len() as u64) as usize;
        for _ in 0..(1 + below(&mut random, 8)).min(records - written) {
            time_ns += 300 + below(&mut random, 1400);
            open[index].step(time_ns, &mut random);
            writer.push(&open[index].state)?;
            written += 1;
            if written % RECORDS_PER_TICK == 0 {
                let mut rows = std::mem::take(&mut changed);
                rows.extend(open.iter().map(|flow| flow.row.clone()));
                writer.tick(rows, &Ledger::default(), false)?;
            }
        }
        let account = &open[index].row;
        if account.packets_seen + account.events_seen >= records_per_flow && next_flow < flows {
            next_flow += 1;
            let next = begin(next_flow as u32, time_ns, offset_ns, &mut random);
            let ended = std::mem::replace(&mut open[index], next);
            packets += ended.row.packets_seen;
            events += ended.row.events_seen;
            changed.push(ended.row);
        }
    }
    changed.extend(open.into_iter().map(|flow| {
        packets += flow.row.packets_seen;
        events += flow.row.events_seen;
        flow.row
    }));
    let hooks = TCP_HOOK_NAMES.iter().map(|hook| {
        let count = match *hook {
            "tcp_egress" => packets,
            "tcp_congestion_state" => events,
            _ => 0,
        };
        HookAccount {
            hook: hook.to_string(),
            seen: count,
            logged: count,
            ..Default::default()
        }
    });
    let ledger = Ledger {
        hooks: hooks.collect(),
        complete: true,
        ..Default::default()
    };
    writer.tick(changed, &ledger, true)?;
    writer.finish()?;
    Ok(())
}
