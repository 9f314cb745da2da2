//! Counting the IP packets of a capture file, in constant memory.

use super::{SIZE_MAX_BYTES, SizeCounts, SizesError};
use crate::protocols::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN};
use crate::trace::{
    LINK_TYPE_ETHERNET, LINK_TYPE_IPV4, LINK_TYPE_IPV6, LINK_TYPE_LINUX_SLL, LINK_TYPE_LINUX_SLL2,
    LINK_TYPE_LOOP, LINK_TYPE_NULL, LINK_TYPE_RAW, Reader, TraceError,
};
use serde::Serialize;

const VLAN_TAGS: [u16; 3] = [ETHERTYPE_VLAN, 0x88a8, 0x9100];

/// The account of a capture file's packets: seen = ipv4 + ipv6 + not_ip + cut_short.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TraceLedger {
    /// Packets in the file.
    pub seen: u64,
    /// IPv4 packets, counted.
    pub ipv4: u64,
    /// IPv6 packets, counted.
    pub ipv6: u64,
    /// Packets other than IP, which createDist skips, too.
    pub not_ip: u64,
    /// Packets too short or too damaged for the length in their IP header.
    pub cut_short: u64,
    /// Of the IP packets, those with length 0 in the header, as before segmentation by the interface (TSO,
    /// BIG TCP). Their length is that of the frame.
    pub length_of_frame: u64,
    /// Packets that the capture lost, as far as the file has them.
    pub lost_by_capture: u64,
}

/// Why a capture file could not be counted.
#[derive(Debug, thiserror::Error)]
pub enum CountError {
    /// The file.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The sizes.
    #[error(transparent)]
    Sizes(#[from] SizesError),
    /// The caller stopped it.
    #[error("counting was interrupted after {packets} packets")]
    Interrupted {
        /// So far.
        packets: u64,
    },
}

/// Packets between two calls of `goes_on`.
const ASK_EVERY: u64 = 1 << 16;

/// Counts the IP packets of a capture file by the length in their header, which is right also for truncated
/// packets and for frames that Ethernet padded. If it is 0, the length is that of the jumbo payload option
/// (RFC 2675) or else of the frame.
///
/// It calls `goes_on` every 65,536 packets with the number so far, and stops when that returns false.
///
/// # Errors
/// [`CountError`]; what was counted before is lost.
pub fn count_trace(
    reader: &mut Reader,
    mut goes_on: impl FnMut(u64) -> bool,
) -> Result<(SizeCounts, TraceLedger), CountError> {
    let mut counts = SizeCounts::new();
    let mut ledger = TraceLedger::default();
    let mut link_types: Vec<u16> = Vec::new();
    while let Some(packet) = reader.next()? {
        let (interface, lost_before) = (packet.interface as usize, packet.lost_before);
        ledger.seen += 1;
        ledger.lost_by_capture += lost_before;
        let found = match link_types.get(interface) {
            Some(&link_type) => network_packet(packet.captured, packet.wire_bytes, link_type),
            None => {
                // A file may describe interfaces between any two packets, and the packet borrows the
                // reader: copy its first bytes this once.
                let head = packet.captured[..packet.captured.len().min(HEAD_BYTES)].to_vec();
                let wire_bytes = packet.wire_bytes;
                let found = reader.interfaces().iter().skip(link_types.len());
                link_types.extend(found.map(|found| found.link_type));
                let link_type = link_types
                    .get(interface)
                    .copied()
                    .unwrap_or(LINK_TYPE_ETHERNET);
                network_packet(&head, wire_bytes, link_type)
            }
        };
        add(&mut counts, &mut ledger, found)?;
        if ledger.seen.is_multiple_of(ASK_EVERY) && !goes_on(ledger.seen) {
            return Err(CountError::Interrupted {
                packets: ledger.seen,
            });
        }
    }
    Ok((counts, ledger))
}

/// Link header, tags and the lengths of the IP header lie within them.
const HEAD_BYTES: usize = 128;

enum Found {
    Ipv4(Length),
    Ipv6(Length),
    NotIp,
    CutShort,
}

/// The length of an IP packet, bytes, by its source.
#[derive(Clone, Copy)]
enum Length {
    Header(u32),
    Frame(u32),
}

impl Length {
    /// The length of a frame behind its link header; `None` if it is too short for an IP header, or longer than the
    /// stack ever joins.
    fn of_frame(bytes: u32, header_bytes: u32) -> Option<Self> {
        (header_bytes..=SIZE_MAX_BYTES)
            .contains(&bytes)
            .then_some(Self::Frame(bytes))
    }
}

fn add(counts: &mut SizeCounts, ledger: &mut TraceLedger, found: Found) -> Result<(), SizesError> {
    let (packets, length) = match found {
        Found::Ipv4(length) => (&mut ledger.ipv4, Some(length)),
        Found::Ipv6(length) => (&mut ledger.ipv6, Some(length)),
        Found::NotIp => (&mut ledger.not_ip, None),
        Found::CutShort => (&mut ledger.cut_short, None),
    };
    *packets += 1;
    match length {
        None => Ok(()),
        Some(Length::Header(bytes)) => counts.add(bytes, 1),
        Some(Length::Frame(bytes)) => {
            ledger.length_of_frame += 1;
            counts.add(bytes, 1)
        }
    }
}

/// The EtherType of the IP packet at this offset, by its version.
fn by_version(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset).map(|first| match first >> 4 {
        4 => ETHERTYPE_IPV4,
        6 => ETHERTYPE_IPV6,
        _ => 0,
    })
}

/// The length of the IP packet in these bytes of a frame of `wire_bytes`.
fn network_packet(bytes: &[u8], wire_bytes: u32, link_type: u16) -> Found {
    let be16 = |offset: usize| {
        let two = bytes.get(offset..offset + 2)?;
        Some(u16::from_be_bytes([two[0], two[1]]))
    };
    let (mut protocol, mut offset) = match link_type {
        LINK_TYPE_ETHERNET => (be16(12), 14),
        LINK_TYPE_LINUX_SLL => (be16(14), 16),
        LINK_TYPE_LINUX_SLL2 => (be16(0), 20),
        LINK_TYPE_RAW | LINK_TYPE_IPV4 | LINK_TYPE_IPV6 => (by_version(bytes, 0), 0),
        // A protocol family before the packet, whose numbers differ between systems.
        LINK_TYPE_NULL | LINK_TYPE_LOOP => (by_version(bytes, 4), 4),
        _ => return Found::NotIp,
    };
    while let Some(tag) = protocol
        && VLAN_TAGS.contains(&tag)
    {
        protocol = be16(offset + 2);
        offset += 4;
    }
    let packet = bytes.get(offset..).unwrap_or_default();
    let frame_bytes = wire_bytes.saturating_sub(offset as u32);
    match protocol {
        Some(ETHERTYPE_IPV4) => {
            ipv4_length(packet, frame_bytes).map_or(Found::CutShort, Found::Ipv4)
        }
        Some(ETHERTYPE_IPV6) => {
            ipv6_length(packet, frame_bytes).map_or(Found::CutShort, Found::Ipv6)
        }
        Some(_) => Found::NotIp,
        None => Found::CutShort,
    }
}

fn ipv4_length(packet: &[u8], frame_bytes: u32) -> Option<Length> {
    const HEADER_BYTES: u32 = 20;
    let &[version, _, high, low, ..] = packet else {
        return None;
    };
    match (version >> 4, u32::from(u16::from_be_bytes([high, low]))) {
        (4, 0) => Length::of_frame(frame_bytes, HEADER_BYTES),
        (4, bytes) if bytes >= HEADER_BYTES => Some(Length::Header(bytes)),
        _ => None,
    }
}

fn ipv6_length(packet: &[u8], frame_bytes: u32) -> Option<Length> {
    const HEADER_BYTES: u32 = 40;
    const NO_NEXT_HEADER: u8 = 59;
    let &[version, _, _, _, high, low, next_header, ..] = packet else {
        return None;
    };
    if version >> 4 != 6 {
        return None;
    }
    match u32::from(u16::from_be_bytes([high, low])) {
        0 if next_header == NO_NEXT_HEADER => Some(Length::Header(HEADER_BYTES)),
        0 => match jumbo_payload_bytes(packet) {
            Some(payload_bytes) => payload_bytes
                .checked_add(HEADER_BYTES)
                .filter(|bytes| *bytes <= SIZE_MAX_BYTES)
                .map(Length::Header),
            None => Length::of_frame(frame_bytes, HEADER_BYTES),
        },
        payload_bytes => Some(Length::Header(payload_bytes + HEADER_BYTES)),
    }
}

/// The jumbo payload option among the hop-by-hop options of an IPv6 packet (RFC 2675).
fn jumbo_payload_bytes(packet: &[u8]) -> Option<u32> {
    const HOP_BY_HOP: u8 = 0;
    const PAD_1: u8 = 0;
    const JUMBO_PAYLOAD: u8 = 0xc2;
    let header = packet.get(40..).filter(|_| packet[6] == HOP_BY_HOP)?;
    let header_bytes = (usize::from(*header.get(1)?) + 1) * 8;
    let mut options = header.get(2..header_bytes.min(header.len()))?;
    loop {
        options = match *options {
            [JUMBO_PAYLOAD, 4, a, b, c, d, ..] => {
                return Some(u32::from_be_bytes([a, b, c, d])).filter(|bytes| *bytes > 0);
            }
            [PAD_1, ref rest @ ..] => rest,
            [_, length, ref rest @ ..] => rest.get(usize::from(length)..)?,
            _ => return None,
        };
    }
}

/// The gaps between the packets of a capture file, ns; and the number of packets that go
/// back in time, whose gap is 0.
///
/// # Errors
/// [`TraceError`], also for more than `packets_max` packets.
pub fn trace_gaps_ns(reader: &mut Reader, packets_max: u64) -> Result<(Vec<f64>, u64), TraceError> {
    let mut gaps = Vec::new();
    let mut back = 0;
    let mut previous_ns: Option<u64> = None;
    while let Some(packet) = reader.next()? {
        if let Some(previous_ns) = previous_ns {
            back += u64::from(packet.time_ns < previous_ns);
            gaps.push(packet.time_ns.saturating_sub(previous_ns) as f64);
        }
        let is_too_much = gaps.len() as u64 >= packets_max;
        previous_ns =
            Some(previous_ns.map_or(packet.time_ns, |previous| previous.max(packet.time_ns)));
        if is_too_much {
            return Err(reader.too_much(packets_max));
        }
    }
    Ok((gaps, back))
}
