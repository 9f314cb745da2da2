//! SIFTR 1.2 as TEACUP reads it: a packet hash in field 2, srtt in units of `tcp_rtt_scale * hz`,
//! rto in ticks, and a 27th field, which TEACUP's patch adds, for the unsmoothed enhanced RTT in ticks.

use super::address;
use super::error::ConvertError;
use super::format::Format;
use super::row::{FLAG_FIN, FLAG_SYN, Row};
use super::siftr::{
    SSTHRESH_INFINITE_BYTES, direction, ip_mode, start_fields, state, sysver, t_flags,
    write_footer, write_lines,
};
use super::source::Source;
use crate::abi::DIRECTION_OUT;
use std::io::{Read, Seek, Write};

/// Ticks per second in the header.
const HZ: u64 = 1000;
/// Units of srtt per tick in the header.
const TCP_RTT_SCALE: u64 = 32;

pub fn write<R: Read + Seek>(
    source: &mut Source<R>,
    out: &mut impl Write,
) -> Result<u64, ConvertError> {
    let head = format!(
        "{}\tsiftrver=1.2.4\thz={HZ}\ttcp_rtt_scale={TCP_RTT_SCALE}\tsysname=Linux\tsysver={}\tipmode={}\n",
        start_fields(source),
        sysver(&source.reader().header().environment),
        ip_mode(source)
    );
    let counts = write_lines(source, out, Format::Siftr12, &head, |out, row, flow| {
        let (seconds, us) = row.seconds_and_us();
        // The log has no packet bytes, so the hash is FreeBSD's with hashes disabled. The bandwidth window is
        // 0, as in FreeBSD without one.
        writeln!(
            out,
            "{},0x00000000,{seconds}.{us:06},{},{},{},{},{},{},0,{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},0,{}",
            direction(row),
            address::full(flow.local_address),
            flow.local_port,
            address::full(flow.remote_address),
            flow.remote_port,
            row.ssthresh_bytes(SSTHRESH_INFINITE_BYTES),
            row.cwnd_bytes(),
            row.snd_wnd_bytes,
            row.rcv_wnd_bytes,
            row.snd_scale,
            row.rcv_scale,
            state(row.state),
            row.mss_bytes,
            scaled_srtt(row.srtt_us),
            u8::from(flow.sack),
            t_flags(flow),
            u64::from(row.rto_us) * HZ / 1_000_000,
            row.sndbuf_bytes,
            row.sndbuf_used_bytes,
            row.rcvbuf_bytes,
            row.rcvbuf_used_bytes,
            in_flight_bytes(row),
            rtt_ticks(row.srtt_us),
        )
    })?;
    let locks = "num_inbound_skipped_pkts_mtx=0\tnum_outbound_skipped_pkts_mtx=0\t";
    write_footer(source, out, &counts, locks, address::full)?;
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

/// `snd_max - snd_una`. FreeBSD of that time advances `snd_max` before it hands the packet down, Linux afterwards.
fn in_flight_bytes(row: &Row) -> u32 {
    let controls =
        u32::from(row.pkt_flags & FLAG_SYN != 0) + u32::from(row.pkt_flags & FLAG_FIN != 0);
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
