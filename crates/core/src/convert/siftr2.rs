//! siftr2 2.5: records of 18 numbers, hexadecimal text or little-endian words of 32 bits; static facts once in the
//! footer, times in milliseconds since the start.

use super::address;
use super::error::ConvertError;
use super::format::Format;
use super::row::{Row, seconds_and_us};
use super::siftr::{
    Counts, ListedFlow, SSTHRESH_INFINITE_BYTES, check_footer, direction, flow_id, release,
    start_fields, t_flags, t_flags2, write_lines,
};
use super::source::Source;
use crate::abi::DIRECTION_IN;
use crate::tcp_log::FlowRow;
use std::io::{Read, Seek, Write};

/// `PATH_MAX` of Linux: review_siftr2_log has a buffer of this size for a line.
const LINE_BYTES_MAX: usize = 4096;

const WORDS: usize = 18;
const RECORD_BYTES: usize = WORDS * size_of::<u32>();

/// Writes text records, or binary ones.
pub fn write<R: Read + Seek>(
    source: &mut Source<R>,
    out: &mut impl Write,
    format: Format,
) -> Result<u64, ConvertError> {
    let is_binary = format == Format::Siftr2Binary;
    let start_ns = source.start_ns();
    let head = format!(
        "{}\tsiftrver=2.5\trec_fmt={}\tsysver=Linux {}\n",
        start_fields(source),
        if is_binary { "binary" } else { "txt" },
        release(&source.reader().header().environment)
    );
    let mut longest_bytes = 0;
    let mut record = Vec::new();
    let counts = write_lines(source, out, format, &head, |out, row, flow| {
        let words = words(row, flow, start_ns);
        record.clear();
        if is_binary {
            record.extend(words.into_iter().flat_map(u32::to_le_bytes));
        } else {
            write!(record, "{:08x},{}", words[0], direction(row))?;
            for word in &words[2..] {
                write!(record, ",{word:x}")?;
            }
            record.push(b'\n');
        }
        longest_bytes = longest_bytes.max(record.len());
        out.write_all(&record)
    })?;
    let record_size = if is_binary {
        // Readers find the last line by its line feed.
        out.write_all(b"\n")?;
        format!("record_size={RECORD_BYTES}")
    } else {
        format!("max_str_size={longest_bytes}")
    };
    let flows = source.flows();
    // In ascending order of records, as siftr2 does.
    let mut listed: Vec<(&u32, &ListedFlow)> = counts.flows.iter().collect();
    listed.sort_by_key(|(number, seen)| (seen.lines, **number));
    let list: String = listed
        .into_iter()
        .filter_map(|(number, seen)| Some((flows.get(number)?, seen)))
        .map(|(flow, seen)| {
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
                address::short(flow.local_address),
                flow.local_port,
                address::short(flow.remote_address),
                flow.remote_port,
                seen.mss_bytes,
                u8::from(flow.sack),
                seen.snd_scale,
                seen.rcv_scale,
                seen.lines,
                seen.lines.saturating_add(flow.packets_thinned),
            )
        })
        .collect();
    let (seconds, us) = seconds_and_us(counts.end_ns);
    let lost: u64 = Counts::lost(source).iter().sum();
    let footer = format!(
        "disable_time_secs={seconds}\tdisable_time_usecs={us:06}\tglobal_flow_cnt={}\tring_drops={lost}\t\
         {record_size}\tgen_flowid_cnt=0\tflow_list={list}\n",
        counts.flows.len()
    );
    out.write_all(footer.as_bytes())?;
    check_footer(
        source,
        &counts,
        footer.len(),
        "review_siftr2_log",
        LINE_BYTES_MAX,
    );
    Ok(counts.lines())
}

/// `struct pkt_node`.
fn words(row: &Row, flow: &FlowRow, start_ns: i64) -> [u32; WORDS] {
    let since_start_ms = row.time_ns.saturating_sub(start_ns) / 1_000_000;
    [
        flow_id(row.flow),
        u32::from(row.direction != DIRECTION_IN),
        since_start_ms.clamp(0, i64::from(u32::MAX)) as u32,
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
        pipe_bytes(row),
        0,
    ]
}

/// `tcp_compute_pipe` of FreeBSD: bytes in flight without selectively acknowledged and lost ones, with retransmitted
/// ones.
fn pipe_bytes(row: &Row) -> u32 {
    let mss_bytes = u64::from(row.mss_bytes);
    let sent = u64::from(row.in_flight_bytes()) + u64::from(row.retrans_out) * mss_bytes;
    let arrived_or_lost = (u64::from(row.sacked_out) + u64::from(row.lost_out)) * mss_bytes;
    sent.saturating_sub(arrived_or_lost)
        .min(u64::from(u32::MAX)) as u32
}
