//! SIFTR 1.2 as TEACUP reads it: a packet hash in field 2, srtt in units of `tcp_rtt_scale * hz`,
//! rto in ticks, and a 27th field, which TEACUP's patch adds, for the unsmoothed enhanced RTT in ticks.

use super::address;
use super::error::ConvertError;
use super::format::Format;
use super::row::Row;
use super::siftr::{direction, write_lines};
use super::siftr_1::{Differing, first_line, write_fields, write_last_line};
use super::source::Source;
use crate::abi::DIRECTION_OUT;
use crate::protocols::{TCP_FIN, TCP_SYN};
use std::io::{Read, Seek, Write};

/// Ticks per second in the header.
const HZ: u64 = 1000;
/// Units of srtt per tick in the header.
const TCP_RTT_SCALE: u64 = 32;

pub fn write<R: Read + Seek>(
    source: &mut Source<R>,
    out: &mut impl Write,
) -> Result<u64, ConvertError> {
    let version = format!("1.2.4\thz={HZ}\ttcp_rtt_scale={TCP_RTT_SCALE}");
    let head = first_line(source, &version);
    let counts = write_lines(source, out, Format::Siftr12, &head, |out, row, flow| {
        // The log has no packet bytes, so the hash is FreeBSD's with hashes disabled.
        write!(out, "{},0x00000000,", direction(row))?;
        let differing = Differing {
            // As in FreeBSD without a bandwidth window.
            window_or_t_flags2: 0,
            srtt: scaled_srtt(row.srtt_us),
            rto: u64::from(row.rto_us) * HZ / 1_000_000,
            in_flight_bytes: in_flight_bytes(row),
        };
        write_fields(out, row, flow, address::full, &differing)?;
        writeln!(out, ",0,{}", rtt_ticks(row.srtt_us))
    })?;
    let locks = "num_inbound_skipped_pkts_mtx=0\tnum_outbound_skipped_pkts_mtx=0\t";
    write_last_line(source, out, &counts, locks, address::full)?;
    Ok(counts.lines())
}

/// srtt in 1/32 ticks of 1 ms, rounded.
fn scaled_srtt(srtt_us: u32) -> u64 {
    (u64::from(srtt_us) * HZ * TCP_RTT_SCALE + 500_000) / 1_000_000
}

/// The smoothed RTT in ticks of 1 ms, since the log has no single samples. At least one tick, as 0 means no RTT.
fn rtt_ticks(srtt_us: u32) -> u64 {
    match srtt_us {
        0 => 0,
        srtt_us => ((u64::from(srtt_us) * HZ + 500_000) / 1_000_000).max(1),
    }
}

/// `snd_max - snd_una`. The FreeBSD of SIFTR 1.2 advances `snd_max` before it hands the packet to
/// IP, Linux afterwards. So the bytes of a packet that is sent for the first time are added.
fn in_flight_bytes(row: &Row) -> u32 {
    let controls =
        u32::from(row.pkt_flags & TCP_SYN != 0) + u32::from(row.pkt_flags & TCP_FIN != 0);
    let end = row
        .pkt_seq
        .wrapping_add(row.payload_bytes)
        .wrapping_add(controls);
    let ahead = end.wrapping_sub(row.snd_nxt);
    let is_new = row.direction == DIRECTION_OUT
        && row.payload_bytes.saturating_add(controls) > 0
        && ahead < 1 << 31;
    row.in_flight_bytes()
        .wrapping_add(u32::from(is_new) * ahead)
}
