//! ttprobe 0.1.2, text: 17 values a line. Source is this host in both directions, as in tcp_probe.

use super::address;
use super::error::ConvertError;
use super::siftr::direction;
use super::source::Source;
use std::io::{Read, Seek, Write};

/// The kernel multiplies in 32 bits; the threshold that is not yet set is clamped instead.
const SSTHRESH_INFINITE_BYTES: u32 = 0x7fff_ffff;

/// Writes the log; returns the number of lines.
pub fn write<R: Read + Seek>(
    source: &mut Source<R>,
    out: &mut impl Write,
) -> Result<u64, ConvertError> {
    let mut lines = 0;
    source.for_each_packet(|row, flow| {
        let (seconds, us) = row.seconds_and_us();
        writeln!(
            out,
            "{},{seconds}.{us:06},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            direction(row),
            address::upper(flow.local_address),
            flow.local_port,
            address::upper(flow.remote_address),
            flow.remote_port,
            row.flow_seq,
            row.mss_bytes,
            row.srtt_us,
            row.cwnd_bytes(),
            row.ssthresh_bytes(SSTHRESH_INFINITE_BYTES),
            row.snd_wnd_bytes,
            row.rcv_wnd_bytes,
            row.state,
            row.snd_una,
            row.snd_nxt,
            row.payload_bytes,
        )?;
        lines += 1;
        Ok(())
    })?;
    Ok(lines)
}
