//! Counting the IP packets of a capture file, in constant memory.

use super::{SizeCounts, SizesError};
use crate::trace::{
    LINK_TYPE_ETHERNET, LINK_TYPE_IPV4, LINK_TYPE_IPV6, LINK_TYPE_LINUX_SLL, LINK_TYPE_LINUX_SLL2,
    LINK_TYPE_LOOP, LINK_TYPE_NULL, LINK_TYPE_RAW, Reader, TraceError,
};
use serde::Serialize;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const VLAN_TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// What became of the packets of a capture file: seen = ipv4 + ipv6 + not_ip + cut_short.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TraceLedger {
    /// Packets in the file.
    pub seen: u64,
    /// IPv4 packets, counted.
    pub ipv4: u64,
    /// IPv6 packets, counted.
    pub ipv6: u64,
    /// Packets that are no IP, which is what createDist passes over, too.
    pub not_ip: u64,
    /// Packets too short or too damaged for the length in their IP header.
    pub cut_short: u64,
    /// Packets that the capture lost, as far as the file tells.
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
    /// Whoever asked wants no more.
    #[error("counting was interrupted after {packets} packets")]
    Interrupted {
        /// So far.
        packets: u64,
    },
}

/// How often `goes_on` is asked: every so many packets.
const ASK_EVERY: u64 = 1 << 16;

/// Counts the IP packets of a capture file by the length that their header tells: headers are right where
/// the capture cut the packets off, and where Ethernet padded them.
///
/// `goes_on` is asked now and then, with the number of packets so far.
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
        let known = link_types.get(interface).copied();
        let link_type = match known {
            Some(link_type) => link_type,
            None => {
                // Interfaces may be told between any two packets, and the packet borrows the reader:
                // keep its first bytes for this once.
                let head = packet.captured[..packet.captured.len().min(HEAD_BYTES)].to_vec();
                link_types = reader
                    .interfaces()
                    .iter()
                    .map(|known| known.link_type)
                    .collect();
                let link_type = link_types
                    .get(interface)
                    .copied()
                    .unwrap_or(LINK_TYPE_ETHERNET);
                add(&mut counts, &mut ledger, network_packet(&head, link_type))?;
                continue;
            }
        };
        add(
            &mut counts,
            &mut ledger,
            network_packet(packet.captured, link_type),
        )?;
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
    Ipv4(u32),
    Ipv6(u32),
    NotIp,
    CutShort,
}

fn add(counts: &mut SizeCounts, ledger: &mut TraceLedger, found: Found) -> Result<(), SizesError> {
    match found {
        Found::Ipv4(size_bytes) => {
            ledger.ipv4 += 1;
            counts.add(size_bytes, 1)
        }
        Found::Ipv6(size_bytes) => {
            ledger.ipv6 += 1;
            counts.add(size_bytes, 1)
        }
        Found::NotIp => {
            ledger.not_ip += 1;
            Ok(())
        }
        Found::CutShort => {
            ledger.cut_short += 1;
            Ok(())
        }
    }
}

/// What an IP packet at this offset says of itself.
fn by_version(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset).map(|first| match first >> 4 {
        4 => ETHERTYPE_IPV4,
        6 => ETHERTYPE_IPV6,
        _ => 0,
    })
}

/// The length of the IP packet in these bytes.
fn network_packet(bytes: &[u8], link_type: u16) -> Found {
    let be16 = |offset: usize| {
        let two = bytes.get(offset..offset + 2)?;
        Some(u16::from_be_bytes([two[0], two[1]]))
    };
    let (mut protocol, mut offset) = match link_type {
        LINK_TYPE_ETHERNET => (be16(12), 14),
        LINK_TYPE_LINUX_SLL => (be16(14), 16),
        LINK_TYPE_LINUX_SLL2 => (be16(0), 20),
        LINK_TYPE_RAW | LINK_TYPE_IPV4 | LINK_TYPE_IPV6 => (by_version(bytes, 0), 0),
        // A protocol family before the packet, whose number is each system's own.
        LINK_TYPE_NULL | LINK_TYPE_LOOP => (by_version(bytes, 4), 4),
        _ => return Found::NotIp,
    };
    while let Some(tag) = protocol
        && VLAN_TAGS.contains(&tag)
    {
        protocol = be16(offset + 2);
        offset += 4;
    }
    match protocol {
        Some(ETHERTYPE_IPV4) => match (bytes.get(offset).map(|first| first >> 4), be16(offset + 2))
        {
            // A length of 0 is written where the hardware was to fill it in.
            (Some(4), Some(length)) if length >= 20 => Found::Ipv4(u32::from(length)),
            _ => Found::CutShort,
        },
        Some(ETHERTYPE_IPV6) => match (bytes.get(offset).map(|first| first >> 4), be16(offset + 4))
        {
            (Some(6), Some(length)) if length > 0 => Found::Ipv6(u32::from(length) + 40),
            _ => Found::CutShort,
        },
        Some(_) => Found::NotIp,
        None => Found::CutShort,
    }
}

/// The gaps between the packets of a capture file, ns; packets that go back in time have a gap of 0, and
/// how many they are is told.
///
/// # Errors
/// [`TraceError`]; too many packets for the memory are an error of the caller's.
pub fn trace_gaps_ns(reader: &mut Reader) -> Result<(Vec<f64>, u64), TraceError> {
    let mut gaps = Vec::new();
    let mut back = 0;
    let mut previous_ns: Option<u64> = None;
    while let Some(packet) = reader.next()? {
        if let Some(previous_ns) = previous_ns {
            back += u64::from(packet.time_ns < previous_ns);
            gaps.push(packet.time_ns.saturating_sub(previous_ns) as f64);
        }
        previous_ns =
            Some(previous_ns.map_or(packet.time_ns, |previous| previous.max(packet.time_ns)));
    }
    Ok((gaps, back))
}
