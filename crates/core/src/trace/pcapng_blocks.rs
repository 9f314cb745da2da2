//! The blocks of pcapng as Parshall writes them: little-endian, times in nanoseconds.
//!
//! After draft-ietf-opsawg-pcapng.

use super::error::TraceError;
use super::interface::Interface;
use super::packet::{Direction, Packet};
use super::section::Section;
use super::statistics::Account;

pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
pub(super) const INTERFACE_DESCRIPTION: u32 = 1;
pub(super) const SIMPLE_PACKET: u32 = 3;
pub(super) const INTERFACE_STATISTICS: u32 = 5;
pub(super) const ENHANCED_PACKET: u32 = 6;
pub(super) const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

pub(super) const OPTION_END: u16 = 0;
pub(super) const OPTION_COMMENT: u16 = 1;
pub(super) const SHB_HARDWARE: u16 = 2;
pub(super) const SHB_OS: u16 = 3;
pub(super) const SHB_USERAPPL: u16 = 4;
pub(super) const IF_NAME: u16 = 2;
pub(super) const IF_DESCRIPTION: u16 = 3;
pub(super) const IF_SPEED: u16 = 8;
pub(super) const IF_TSRESOL: u16 = 9;
pub(super) const IF_FILTER: u16 = 11;
pub(super) const IF_OS: u16 = 12;
pub(super) const IF_TSOFFSET: u16 = 14;
pub(super) const EPB_FLAGS: u16 = 2;
pub(super) const EPB_DROPCOUNT: u16 = 4;
pub(super) const ISB_STARTTIME: u16 = 2;
pub(super) const ISB_ENDTIME: u16 = 3;
pub(super) const ISB_IFRECV: u16 = 4;
pub(super) const ISB_IFDROP: u16 = 5;
pub(super) const ISB_FILTERACCEPT: u16 = 6;
pub(super) const ISB_OSDROP: u16 = 7;
pub(super) const ISB_USRDELIV: u16 = 8;

/// Maximum bytes of a value: its length has 16 bits.
pub(super) const OPTION_MAX_BYTES: usize = u16::MAX as usize;

/// Bytes of an enhanced packet block before the packet.
pub(super) const ENHANCED_PACKET_HEADER_BYTES: usize = 28;

/// Maximum bytes of an enhanced packet block around the packet: head, padding, flags, losses, a comment, the end.
#[inline]
pub(super) fn packet_overhead_bytes(comment: Option<&str>) -> usize {
    ENHANCED_PACKET_HEADER_BYTES + 3 + 8 + 12 + 4 + 4 + comment.map_or(0, |text| text.len() + 7)
}

/// Appends the section header.
pub(super) fn section(out: &mut Vec<u8>, section: &Section) -> Result<(), TraceError> {
    block(out, SECTION_HEADER, |out| {
        out.extend_from_slice(&BYTE_ORDER_MAGIC.to_le_bytes());
        out.extend_from_slice(&1u16.to_le_bytes());
        out.extend_from_slice(&0u16.to_le_bytes());
        // The length of the section is unknown, as the file grows.
        out.extend_from_slice(&u64::MAX.to_le_bytes());
        let texts = [
            ("hardware of the section", SHB_HARDWARE, &section.hardware),
            ("os of the section", SHB_OS, &section.os),
            ("application", SHB_USERAPPL, &section.application),
        ];
        for (key, code, text) in texts {
            if let Some(text) = text {
                text_option(out, key, code, text)?;
            }
        }
        for comment in &section.comments {
            text_option(out, "comment of the section", OPTION_COMMENT, comment)?;
        }
        end_of_options(out);
        Ok(())
    })
}

/// Appends the description of an interface.
pub(super) fn interface(out: &mut Vec<u8>, interface: &Interface) -> Result<(), TraceError> {
    block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend_from_slice(&interface.link_type.to_le_bytes());
        out.extend_from_slice(&0u16.to_le_bytes());
        out.extend_from_slice(&interface.snaplen_bytes.to_le_bytes());
        if !interface.name.is_empty() {
            text_option(out, "name of the interface", IF_NAME, &interface.name)?;
        }
        if let Some(text) = &interface.description {
            text_option(out, "description of the interface", IF_DESCRIPTION, text)?;
        }
        if let Some(speed_bps) = interface.speed_bps {
            option(out, IF_SPEED, &speed_bps.to_le_bytes());
        }
        option(out, IF_TSRESOL, &[9]);
        if let Some(filter) = &interface.filter {
            // The first byte marks a libpcap expression.
            text_option(out, "filter", IF_FILTER, &format!("\0{filter}"))?;
        }
        if let Some(os) = &interface.os {
            text_option(out, "os of the interface", IF_OS, os)?;
        }
        end_of_options(out);
        Ok(())
    })
}

/// Appends a packet, with the bytes `captured`.
#[inline]
pub(super) fn packet(out: &mut Vec<u8>, packet: &Packet, captured: &[u8]) {
    let has_direction = packet.direction != Direction::Unknown;
    if !has_direction || packet.lost_before != 0 || packet.comment.is_some() {
        return packet_with_options(out, packet, captured);
    }
    // Most packets have a direction and no other options: three writes make their block.
    let pad_bytes = captured.len().wrapping_neg() & 3;
    let total_bytes = ENHANCED_PACKET_HEADER_BYTES + captured.len() + pad_bytes + 16;
    let total = (total_bytes as u32).to_le_bytes();
    let mut tail = [0; 16];
    tail[0..2].copy_from_slice(&EPB_FLAGS.to_le_bytes());
    tail[2] = 4;
    tail[4] = packet.direction as u8;
    tail[12..16].copy_from_slice(&total);
    out.reserve(total_bytes + 3);
    out.extend_from_slice(&packet_head(packet, captured, total));
    out.extend_from_slice(captured);
    // Lengths that the compiler knows need no call.
    out.extend_from_slice(&[0; 3]);
    out.truncate(out.len() - 3 + pad_bytes);
    out.extend_from_slice(&tail);
}

#[inline]
fn packet_head(
    packet: &Packet,
    captured: &[u8],
    total_bytes: [u8; 4],
) -> [u8; ENHANCED_PACKET_HEADER_BYTES] {
    let captured_bytes = captured.len() as u32;
    let mut head = [0; ENHANCED_PACKET_HEADER_BYTES];
    head[0..4].copy_from_slice(&ENHANCED_PACKET.to_le_bytes());
    head[4..8].copy_from_slice(&total_bytes);
    head[8..12].copy_from_slice(&packet.interface.to_le_bytes());
    head[12..16].copy_from_slice(&((packet.time_ns >> 32) as u32).to_le_bytes());
    head[16..20].copy_from_slice(&(packet.time_ns as u32).to_le_bytes());
    head[20..24].copy_from_slice(&captured_bytes.to_le_bytes());
    head[24..28].copy_from_slice(&packet.wire_bytes.max(captured_bytes).to_le_bytes());
    head
}

/// Appends a packet with any options.
#[cold]
fn packet_with_options(out: &mut Vec<u8>, packet: &Packet, captured: &[u8]) {
    let start = out.len();
    out.extend_from_slice(&packet_head(packet, captured, [0; 4]));
    out.extend_from_slice(captured);
    pad(out, captured.len());
    let options_at = out.len();
    if packet.direction != Direction::Unknown {
        let flags = packet.direction as u32;
        option(out, EPB_FLAGS, &flags.to_le_bytes());
    }
    if packet.lost_before != 0 {
        option(out, EPB_DROPCOUNT, &packet.lost_before.to_le_bytes());
    }
    if let Some(comment) = packet.comment {
        let mut end = comment.len().min(OPTION_MAX_BYTES);
        while !comment.is_char_boundary(end) {
            end -= 1;
        }
        option(out, OPTION_COMMENT, &comment.as_bytes()[..end]);
    }
    if out.len() > options_at {
        end_of_options(out);
    }
    let total_bytes = ((out.len() + 4 - start) as u32).to_le_bytes();
    out.extend_from_slice(&total_bytes);
    out[start + 4..start + 8].copy_from_slice(&total_bytes);
}

/// Appends the statistics of an interface.
pub(super) fn statistics(
    out: &mut Vec<u8>,
    interface: u32,
    account: &Account,
) -> Result<(), TraceError> {
    let statistics = &account.statistics;
    let accepted = statistics.seen.saturating_sub(statistics.filtered);
    let lost_before_writer = statistics.lost.total();
    block(out, INTERFACE_STATISTICS, |out| {
        out.extend_from_slice(&interface.to_le_bytes());
        out.extend_from_slice(&time(statistics.end_ns));
        let sentence = format!("Parshall: {}", account.sentence());
        text_option(out, "account", OPTION_COMMENT, &sentence)?;
        text_option(out, "account", OPTION_COMMENT, &account.json().to_string())?;
        option(out, ISB_STARTTIME, &time(statistics.start_ns));
        option(out, ISB_ENDTIME, &time(statistics.end_ns));
        option(out, ISB_IFRECV, &statistics.seen.to_le_bytes());
        if let Some(dropped) = statistics.dropped_by_interface {
            option(out, ISB_IFDROP, &dropped.to_le_bytes());
        }
        option(out, ISB_FILTERACCEPT, &accepted.to_le_bytes());
        option(out, ISB_OSDROP, &lost_before_writer.to_le_bytes());
        option(out, ISB_USRDELIV, &account.written.handed.to_le_bytes());
        end_of_options(out);
        Ok(())
    })
}

/// A time in an option: the high half first, each half little-endian.
fn time(time_ns: u64) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&((time_ns >> 32) as u32).to_le_bytes());
    bytes[4..].copy_from_slice(&(time_ns as u32).to_le_bytes());
    bytes
}

fn block(
    out: &mut Vec<u8>,
    kind: u32,
    body: impl FnOnce(&mut Vec<u8>) -> Result<(), TraceError>,
) -> Result<(), TraceError> {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    if let Err(error) = body(out) {
        out.truncate(start);
        return Err(error);
    }
    let total_bytes = ((out.len() + 4 - start) as u32).to_le_bytes();
    out.extend_from_slice(&total_bytes);
    out[start + 4..start + 8].copy_from_slice(&total_bytes);
    Ok(())
}

fn text_option(
    out: &mut Vec<u8>,
    key: &'static str,
    code: u16,
    text: &str,
) -> Result<(), TraceError> {
    if text.len() > OPTION_MAX_BYTES {
        return Err(TraceError::Option {
            option: key,
            found: format!("of {} bytes", text.len()),
            expected: format!("pcapng has room for {OPTION_MAX_BYTES} bytes; shorten it"),
        });
    }
    option(out, code, text.as_bytes());
    Ok(())
}

#[inline]
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

fn end_of_options(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; 4]);
}

#[inline]
fn pad(out: &mut Vec<u8>, value_bytes: usize) {
    out.extend_from_slice(&[0; 3][..value_bytes.wrapping_neg() & 3]);
}
