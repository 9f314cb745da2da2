//! What SIFTR 1.2 and 1.3 have in common: the first line, most of the 27 fields of a packet, the last line.

use super::error::ConvertError;
use super::row::{Row, seconds_and_us};
use super::siftr::{Counts, SSTHRESH_INFINITE_BYTES, release, start_fields, state, t_flags};
use super::source::Source;
use crate::tcp_log::FlowRow;
use std::io::{Read, Seek, Write};
use std::net::IpAddr;

/// Longer values in the first line overrun a known reader.
const HEADER_VALUE_CHARS_MAX: usize = 7;

/// The first line. `version` is followed by the fields that only this version has.
pub fn first_line<R: Read + Seek>(source: &Source<R>, version: &str) -> String {
    format!(
        "{}\tsiftrver={version}\tsysname=Linux\tsysver={}\tipmode={}\n",
        start_fields(source),
        sysver(&source.reader().header().environment),
        ip_mode(source)
    )
}

/// A number of at most seven digits for the kernel's release: 6.18.3 is 618003.
fn sysver(environment: &str) -> String {
    let release = release(environment);
    let mut numbers = release
        .split(|char: char| !char.is_ascii_digit())
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let [major, minor, patch] = std::array::from_fn(|_| numbers.next().unwrap_or(0));
    let text = (major.min(99) * 100_000 + minor.min(99) * 1000 + patch.min(999)).to_string();
    debug_assert!(text.len() <= HEADER_VALUE_CHARS_MAX);
    text
}

/// 6 with an IPv6 flow, else 4.
fn ip_mode<R: Read + Seek>(source: &Source<R>) -> u8 {
    if source.flows().values().any(|flow| flow.ip_version() == 6) {
        6
    } else {
        4
    }
}

/// Fields that the versions fill differently.
pub struct Differing {
    /// The bandwidth window in 1.2, `t_flags2` in 1.3.
    pub window_or_t_flags2: u32,
    /// In the unit of the version.
    pub srtt: u64,
    /// In the unit of the version.
    pub rto: u64,
    pub in_flight_bytes: u32,
}

/// Writes the fields of a packet from its time to its bytes in flight.
pub fn write_fields(
    out: &mut impl Write,
    row: &Row,
    flow: &FlowRow,
    address: impl Fn(IpAddr) -> String,
    differing: &Differing,
) -> std::io::Result<()> {
    let (seconds, us) = row.seconds_and_us();
    write!(
        out,
        "{seconds}.{us:06},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
        address(flow.local_address),
        flow.local_port,
        address(flow.remote_address),
        flow.remote_port,
        row.ssthresh_bytes(SSTHRESH_INFINITE_BYTES),
        row.cwnd_bytes(),
        differing.window_or_t_flags2,
        row.snd_wnd_bytes,
        row.rcv_wnd_bytes,
        row.snd_scale,
        row.rcv_scale,
        state(row.state),
        row.mss_bytes,
        differing.srtt,
        u8::from(flow.sack),
        t_flags(flow),
        differing.rto,
        row.sndbuf_bytes,
        row.sndbuf_used_bytes,
        row.rcvbuf_bytes,
        row.rcvbuf_used_bytes,
        differing.in_flight_bytes,
    )
}

/// Writes the last line, and returns its length. `locks` has the fields that only 1.2 has.
pub fn write_last_line<R: Read + Seek>(
    source: &Source<R>,
    out: &mut impl Write,
    counts: &Counts,
    locks: &str,
    address: impl Fn(IpAddr) -> String,
) -> Result<usize, ConvertError> {
    let (seconds, us) = seconds_and_us(counts.end_ns);
    let lost = Counts::lost(source);
    let packets = counts.packets(source, lost);
    let (below, without) = (counts.below_established, counts.without_socket);
    let skipped: u64 = [lost, below, without].into_iter().flatten().sum();
    let flows = source.flows();
    let list: String = counts
        .flows
        .keys()
        .filter_map(|number| flows.get(number))
        .map(|flow| {
            format!(
                "{};{}-{};{},",
                address(flow.local_address),
                flow.local_port,
                address(flow.remote_address),
                flow.remote_port
            )
        })
        .collect();
    let footer = format!(
        "disable_time_secs={seconds}\tdisable_time_usecs={us:06}\tnum_inbound_tcp_pkts={}\tnum_outbound_tcp_pkts={}\t\
         total_tcp_pkts={}\tnum_inbound_skipped_pkts_malloc={}\tnum_outbound_skipped_pkts_malloc={}\t{locks}\
         num_inbound_skipped_pkts_tcpcb={}\tnum_outbound_skipped_pkts_tcpcb={}\tnum_inbound_skipped_pkts_inpcb={}\t\
         num_outbound_skipped_pkts_inpcb={}\ttotal_skipped_tcp_pkts={skipped}\tflow_list={list}\n",
        packets[0],
        packets[1],
        packets[0] + packets[1],
        lost[0],
        lost[1],
        below[0],
        below[1],
        without[0],
        without[1],
    );
    out.write_all(footer.as_bytes())?;
    Ok(footer.len())
}
