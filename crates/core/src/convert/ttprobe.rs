//! ttprobe 0.1.2, text: 17 values per line. The source is this host in both directions, as in
//! tcp_probe.

use super::address;
use super::error::ConvertError;
use super::row::Row;
use super::siftr::direction;
use super::source::Source;
use crate::abi::DIRECTION_IN;
use crate::protocols::TCP_SYN;
use crate::tcp_log::FlowRow;
use std::io::{Read, Seek, Write};

/// ttprobe multiplies in 32 bits, so the initial threshold wraps; here it is clamped.
const SSTHRESH_INFINITE_BYTES: u32 = 0x7fff_ffff;

pub fn write<R: Read + Seek>(
    source: &mut Source<R>,
    out: &mut impl Write,
) -> Result<u64, ConvertError> {
    let mut lines: u64 = 0;
    source.for_each_packet_of_a_socket(|row, flow| {
        let (seconds, us) = row.seconds_and_us();
        writeln!(
            out,
            "{},{seconds}.{us:06},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            direction(row),
            address::upper(flow.local_address),
            flow.local_port,
            address::upper(flow.remote_address),
            flow.remote_port,
            lines,
            row.mss_bytes,
            row.srtt_us,
            row.cwnd_bytes(),
            ssthresh_bytes(row),
            row.snd_wnd_bytes,
            row.rcv_wnd_bytes,
            row.state,
            row.snd_una,
            row.snd_nxt,
            skb_bytes(row, flow),
        )?;
        lines += 1;
        Ok(())
    })?;
    Ok(lines)
}

/// `tcp_current_ssthresh` in bytes.
fn ssthresh_bytes(row: &Row) -> u32 {
    row.current_ssthresh_segments()
        .map_or(SSTHRESH_INFINITE_BYTES, |segments| {
            segments
                .saturating_mul(row.mss_bytes)
                .min(SSTHRESH_INFINITE_BYTES)
        })
}

/// `skb->len` at ttprobe's hooks. A sent packet has only its payload there: the header is added
/// later. A received packet has its TCP header, too. The log has no header lengths, so the length
/// is computed from the options that Linux sends when they are negotiated, without SACK blocks.
pub fn skb_bytes(row: &Row, flow: &FlowRow) -> u32 {
    if row.direction != DIRECTION_IN {
        return row.payload_bytes;
    }
    let timestamps = if flow.timestamps { 12 } else { 0 };
    let options = if row.pkt_flags & TCP_SYN == 0 {
        timestamps
    } else {
        let sack_permitted = if flow.sack && !flow.timestamps { 4 } else { 0 };
        let window_scale = if flow.window_scaling { 4 } else { 0 };
        4 + timestamps + sack_permitted + window_scale
    };
    row.payload_bytes.saturating_add(20 + options)
}
