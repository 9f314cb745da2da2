//! ttprobe 0.1.2, binary: 96 bytes a record, little-endian, ports in network byte order.

use super::address;
use super::error::ConvertError;
use super::siftr::direction;
use super::source::Source;
use super::ttprobe::skb_bytes;
use std::io::{Read, Seek, Write};

const RECORD_BYTES: usize = 96;
/// Linux's `TCP_INFINITE_SSTHRESH`.
const SSTHRESH_INFINITE_SEGMENTS: u32 = 0x7fff_ffff;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

pub fn write<R: Read + Seek>(
    source: &mut Source<R>,
    out: &mut impl Write,
) -> Result<u64, ConvertError> {
    let mut records = 0;
    source.for_each_packet_of_a_socket(|row, flow| {
        let (seconds, us) = row.seconds_and_us();
        let mut record = [0u8; RECORD_BYTES];
        record[0..8].copy_from_slice(&(seconds as u64).to_le_bytes());
        record[8..16].copy_from_slice(&(us as u64).to_le_bytes());
        record[16..32].copy_from_slice(&address::bytes(flow.local_address));
        record[32..48].copy_from_slice(&address::bytes(flow.remote_address));
        record[48..50].copy_from_slice(&flow.local_port.to_be_bytes());
        record[50..52].copy_from_slice(&flow.remote_port.to_be_bytes());
        let length = skb_bytes(row, flow).min(u32::from(u16::MAX)) as u16;
        record[52..54].copy_from_slice(&length.to_le_bytes());
        let words = [
            row.snd_nxt,
            row.snd_una,
            row.snd_wnd_bytes,
            row.rcv_wnd_bytes,
            row.cwnd_segments,
            row.current_ssthresh_segments()
                .unwrap_or(SSTHRESH_INFINITE_SEGMENTS),
            row.srtt_us,
            row.mss_bytes,
        ];
        for (slot, word) in record[56..88].chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        record[88] = row.state;
        record[89] = direction(row) as u8;
        record[90] = if flow.ip_version() == 6 {
            AF_INET6
        } else {
            AF_INET
        };
        out.write_all(&record)?;
        records += 1;
        Ok(())
    })?;
    Ok(records)
}
