//! Explicit Congestion Notification (RFC 3168): the mark in the header of IP.

use super::flow::network_header;

const NOT_CAPABLE: u8 = 0;
const CONGESTION_EXPERIENCED: u8 = 3;

/// The bits of ECN of a frame of IPv4 or IPv6.
fn bits(frame: &[u8]) -> Option<u8> {
    let header = network_header(frame)?;
    match header.first()? >> 4 {
        4 => Some(header.get(1)? & 3),
        _ => Some(header.get(1)? >> 4 & 3),
    }
}

/// Whether both hosts understand the mark.
pub fn can_be_marked(frame: &[u8]) -> bool {
    bits(frame).is_some_and(|bits| bits != NOT_CAPABLE)
}

/// Sets the mark, and the checksum of IPv4 with it (RFC 1624).
pub fn mark(frame: &mut [u8]) {
    let Some(start) = network_header(frame).map(|header| frame.len() - header.len()) else {
        return;
    };
    let header = &mut frame[start..];
    if header[0] >> 4 == 4 {
        let old = u16::from_be_bytes([header[0], header[1]]);
        header[1] |= CONGESTION_EXPERIENCED;
        let new = u16::from_be_bytes([header[0], header[1]]);
        let sum = u16::from_be_bytes([header[10], header[11]]);
        let sum = u32::from(!sum) + u32::from(!old) + u32::from(new);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        header[1] |= CONGESTION_EXPERIENCED << 4;
    }
}
