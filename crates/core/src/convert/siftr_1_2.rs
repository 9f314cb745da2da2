//! SIFTR 1.2 as TEACUP reads it: a packet hash in field 2, srtt in units of `tcp_rtt_scale * hz`,
//! rto in ticks, and a 27th field for the smoothed ERTT.

use super::address;
use super::error::ConvertError;
use super::format::Format;
use super::row::seconds_and_us;
use super::siftr::{
    Counts, SSTHRESH_INFINITE_BYTES, direction, ip_mode, state, sysver, t_flags, write_footer,
};
use super::source::Source;
use std::io::{Read, Seek, Write};

/// Ticks a second that the header claims.
const HZ: u64 = 1000;
/// Units of srtt in a tick that the header claims.
const TCP_RTT_SCALE: u64 = 32;

/// Writes the log; returns the number of data lines.
pub fn write<R: Read + Seek>(
    source: &mut Source<R>,
    out: &mut impl Write,
) -> Result<u64, ConvertError> {
    source.require_flow(Format::Siftr12)?;
    let start_ns = source.start_ns();
    let (seconds, us) = seconds_and_us(start_ns);
    writeln!(
        out,
        "enable_time_secs={seconds}\tenable_time_usecs={us:06}\tsiftrver=1.2.2\thz={HZ}\ttcp_rtt_scale={TCP_RTT_SCALE}\t\
         sysname=Linux\tsysver={}\tipmode={}",
        sysver(&source.reader().header().environment),
        ip_mode(source)
    )?;
    let mut counts = Counts::from(start_ns);
    source.for_each_packet(|row, flow| {
        if !counts.take(row) {
            return Ok(());
        }
        let (seconds, us) = row.seconds_and_us();
        let srtt = scaled_srtt(row.srtt_us);
        // The hash is that of FreeBSD with hashes switched off: the log holds no packet bytes.
        writeln!(
            out,
            "{},0x00000000,{seconds}.{us:06},{},{},{},{},{},{},{SSTHRESH_INFINITE_BYTES},{},{},{},{},{},{},{srtt},\
             {},{},{},{},{},{},{},{},0,{srtt}",
            direction(row),
            address::siftr(flow.local_address),
            flow.local_port,
            address::siftr(flow.remote_address),
            flow.remote_port,
            row.ssthresh_bytes(SSTHRESH_INFINITE_BYTES),
            row.cwnd_bytes(),
            row.snd_wnd_bytes,
            row.rcv_wnd_bytes,
            row.snd_scale,
            row.rcv_scale,
            state(row.state),
            row.mss_bytes,
            u8::from(flow.sack),
            t_flags(flow),
            u64::from(row.rto_us) * HZ / 1_000_000,
            row.sndbuf_bytes,
            row.sndbuf_used_bytes,
            row.rcvbuf_bytes,
            row.rcvbuf_used_bytes,
            row.in_flight_bytes(),
        )?;
        Ok(())
    })?;
    write_footer(
        source,
        out,
        &counts,
        "num_inbound_skipped_pkts_mtx=0\tnum_outbound_skipped_pkts_mtx=0\t",
    )?;
    Ok(counts.rows[0] + counts.rows[1])
}

/// srtt in 1/32 ticks of 1 ms, rounded.
fn scaled_srtt(srtt_us: u32) -> u64 {
    (u64::from(srtt_us) * HZ * TCP_RTT_SCALE + 500_000) / 1_000_000
}
