//! siftr2 2.5 with text records: 18 hexadecimal fields, static facts once in the footer, times in
//! milliseconds since the start.

use super::error::ConvertError;
use super::format::Format;
use super::row::seconds_and_us;
use super::siftr::{
    Counts, SSTHRESH_INFINITE_BYTES, check_footer, direction, flow_id, release, t_flags, t_flags2,
};
use super::source::Source;
use std::collections::BTreeMap;
use std::io::{Read, Seek, Write};

/// What the footer says about a flow beside the flow table.
#[derive(Default)]
struct Seen {
    mss_bytes: u32,
    snd_scale: u8,
    rcv_scale: u8,
    records: u64,
}

/// Writes the log; returns the number of data lines.
pub fn write<R: Read + Seek>(
    source: &mut Source<R>,
    out: &mut impl Write,
) -> Result<u64, ConvertError> {
    source.require_flow(Format::Siftr2)?;
    let start_ns = source.start_ns();
    let (seconds, us) = seconds_and_us(start_ns);
    writeln!(
        out,
        "enable_time_secs={seconds}\tenable_time_usecs={us:06}\tsiftrver=2.5\trec_fmt=txt\tsysver=Linux {}",
        release(&source.reader().header().environment)
    )?;
    let mut counts = Counts::from(start_ns);
    let mut seen: BTreeMap<u32, Seen> = BTreeMap::new();
    let mut longest_bytes = 0;
    let mut line = Vec::new();
    source.for_each_packet(|row, flow| {
        if !counts.take(row) {
            return Ok(());
        }
        let facts = seen.entry(row.flow).or_default();
        facts.mss_bytes = row.mss_bytes;
        facts.snd_scale = row.snd_scale;
        facts.rcv_scale = row.rcv_scale;
        facts.records += 1;
        let since_start_ms = (row.time_ns - start_ns).max(0) / 1_000_000;
        line.clear();
        writeln!(
            line,
            "{:08x},{},{since_start_ms:x},{:x},{:x},{:x},{:x},{:x},{:x},{:x},{:x},{:x},{:x},{:x},{:x},{:x},{:x},0",
            flow_id(row.flow),
            direction(row),
            row.cwnd_bytes(),
            row.ssthresh_bytes(SSTHRESH_INFINITE_BYTES),
            row.srtt_us,
            row.payload_bytes,
            row.snd_wnd_bytes,
            row.rcv_wnd_bytes,
            t_flags(flow),
            t_flags2(flow),
            row.rto_us,
            row.sndbuf_bytes,
            row.sndbuf_used_bytes,
            row.rcvbuf_bytes,
            row.rcvbuf_used_bytes,
            row.in_flight_bytes(),
        )?;
        longest_bytes = longest_bytes.max(line.len());
        out.write_all(&line)?;
        Ok(())
    })?;
    let flows = source.flows();
    // In ascending order of records, as siftr2 does.
    let mut listed: Vec<_> = flows.values().collect();
    let records = |flow: u32| seen.get(&flow).map_or(0, |facts| facts.records);
    listed.sort_by_key(|flow| (records(flow.flow), flow.flow));
    let list: String = listed
        .into_iter()
        .map(|flow| {
            let none = Seen {
                mss_bytes: flow.mss_clamp_bytes,
                ..Default::default()
            };
            let facts = seen.get(&flow.flow).unwrap_or(&none);
            // An empty name would shift the fields of readers that use strtok.
            let congestion_control = if flow.congestion_control.is_empty() {
                "unknown"
            } else {
                &flow.congestion_control
            };
            format!(
                "{:08x},{},{},{},{},{},linux,{congestion_control},{},{},{},{},{},{};",
                flow_id(flow.flow),
                flow.ip_version(),
                super::address::siftr(flow.local_address),
                flow.local_port,
                super::address::siftr(flow.remote_address),
                flow.remote_port,
                facts.mss_bytes,
                u8::from(flow.sack),
                facts.snd_scale,
                facts.rcv_scale,
                facts.records,
                flow.packets_seen.max(facts.records),
            )
        })
        .collect();
    let (seconds, us) = seconds_and_us(counts.end_ns);
    let lost: u64 = Counts::lost(source).iter().sum();
    let footer = format!(
        "disable_time_secs={seconds}\tdisable_time_usecs={us:06}\tglobal_flow_cnt={}\tring_drops={lost}\t\
         max_str_size={longest_bytes}\tgen_flowid_cnt=0\tflow_list={list}\n",
        flows.len()
    );
    out.write_all(footer.as_bytes())?;
    check_footer(source, &footer);
    Ok(counts.rows[0] + counts.rows[1])
}
