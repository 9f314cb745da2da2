//! SIFTR 1.3 as FreeBSD writes it today: 27 fields, srtt and rto in microseconds.

use super::address;
use super::error::ConvertError;
use super::format::Format;
use super::siftr::{
    FOOTER_BYTES_MAX, SSTHRESH_INFINITE_BYTES, check_footer, direction, flow_id, ip_mode,
    start_fields, state, sysver, t_flags, t_flags2, write_footer, write_lines,
};
use super::source::Source;
use std::io::{Read, Seek, Write};

pub fn write<R: Read + Seek>(
    source: &mut Source<R>,
    out: &mut impl Write,
) -> Result<u64, ConvertError> {
    let head = format!(
        "{}\tsiftrver=1.3.0\tsysname=Linux\tsysver={}\tipmode={}\n",
        start_fields(source),
        sysver(&source.reader().header().environment),
        ip_mode(source)
    );
    let counts = write_lines(source, out, Format::Siftr13, &head, |out, row, flow| {
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
        )
    })?;
    let footer_bytes = write_footer(source, out, &counts, "", address::short)?;
    check_footer(
        source,
        &counts,
        footer_bytes,
        "review_siftr_log",
        FOOTER_BYTES_MAX,
    );
    Ok(counts.lines())
}
