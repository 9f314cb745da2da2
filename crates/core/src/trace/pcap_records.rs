//! Classic pcap as Parshall writes it: little-endian, nanoseconds.

use super::packet::Packet;

/// Magic number of files with nanoseconds.
pub(super) const MAGIC_NS: u32 = 0xa1b2_3c4d;
/// Bytes of a record before the packet.
pub(super) const RECORD_HEADER_BYTES: usize = 16;
/// tcpdump's value for "no limit"; readers refuse more.
pub(super) const SNAPLEN_MAX_BYTES: u32 = 262_144;

/// Appends the head of a file.
pub(super) fn head(out: &mut Vec<u8>, link_type: u16, snaplen_bytes: u32) {
    let snaplen_bytes = match snaplen_bytes {
        0 => SNAPLEN_MAX_BYTES,
        bytes => bytes,
    };
    out.extend_from_slice(&MAGIC_NS.to_le_bytes());
    out.extend_from_slice(&2u16.to_le_bytes());
    out.extend_from_slice(&4u16.to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&snaplen_bytes.to_le_bytes());
    out.extend_from_slice(&u32::from(link_type).to_le_bytes());
}

/// Appends a packet, with the bytes `captured`.
#[inline]
pub(super) fn packet(out: &mut Vec<u8>, packet: &Packet, captured: &[u8]) {
    let captured_bytes = captured.len() as u32;
    let mut head = [0; RECORD_HEADER_BYTES];
    head[0..4].copy_from_slice(&((packet.time_ns / 1_000_000_000) as u32).to_le_bytes());
    head[4..8].copy_from_slice(&((packet.time_ns % 1_000_000_000) as u32).to_le_bytes());
    head[8..12].copy_from_slice(&captured_bytes.to_le_bytes());
    head[12..16].copy_from_slice(&packet.wire_bytes.max(captured_bytes).to_le_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(captured);
}
