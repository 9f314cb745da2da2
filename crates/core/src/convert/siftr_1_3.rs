//! SIFTR 1.3 as FreeBSD writes it today: 27 fields, srtt and rto in microseconds.

use super::address;
use super::error::ConvertError;
use super::format::Format;
use super::row::seconds_and_us;
use super::siftr::{
    Counts, FOOTER_BYTES_MAX, SSTHRESH_INFINITE_BYTES, check_footer, direction, flow_id, ip_mode,
    state, sysver, t_flags, t_flags2, write_footer,
};
use super::source::Source;
use std::io::{Read, Seek, Write};

/// Writes the log; returns the number of data lines.
pub fn write<R: Read + Seek>(
    source: &mut Source<R>,
    out: &mut impl Write,
) -> Result<u64, ConvertError> {
    let start_ns = source.start_ns();
    let (seconds, us) = seconds_and_us(start_ns);
    let head = format!(
        "enable_time_secs={seconds}\tenable_time_usecs={us:06}\tsiftrver=1.3.0\tsysname=Linux\tsysver={}\tipmode={}\n",
        sysver(&source.reader().header().environment),
        ip_mode(source)
    );
    let mut counts = Counts::from(start_ns);
    source.for_each_packet(|row, flow| {
        if !counts.take(row) {
            return Ok(());
        }
        if counts.lines() == 1 {
            out.write_all(head.as_bytes())?;
        }
        let (seconds, us) = row.seconds_and_us();
        writeln!(
            out,
            "{},{seconds}.{us:06},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},0,{},0",
            direction(row),
            address::short(flow.local_address),
            flow.local_port,
            address::short(flow.remote_address),
            flow.remote_port,
            row.ssthresh_bytes(SSTHRESH_INFINITE_BYTES),
            row.cwnd_bytes(),
            t_flags2(flow),
            row.snd_wnd_bytes,
            row.rcv_wnd_bytes,
            row.snd_scale,
            row.rcv_scale,
            state(row.state),
            row.mss_bytes,
            row.srtt_us,
            u8::from(flow.sack),
            t_flags(flow),
            row.rto_us,
            row.sndbuf_bytes,
            row.sndbuf_used_bytes,
            row.rcvbuf_bytes,
            row.rcvbuf_used_bytes,
            row.in_flight_bytes(),
            flow_id(row.flow),
        )?;
        Ok(())
    })?;
    if counts.lines() == 0 {
        return Err(source.no_flow(Format::Siftr13));
    }
    let footer_bytes = write_footer(source, out, &counts, "", address::short)?;
    let flows = counts.flows.len();
    check_footer(
        source,
        flows,
        footer_bytes,
        "review_siftr_log",
        FOOTER_BYTES_MAX,
    );
    Ok(counts.lines())
}
