//! Reads classic pcap: both byte orders, microseconds and nanoseconds, and the variants with other magic
//! numbers or versions.

use super::byte_order::ByteOrder;
use super::contents::Found;
use super::error::TraceError;
use super::input::Input;
use super::interface::Interface;
use super::pcap_records::{MAGIC_NS, SNAPLEN_MAX_BYTES};

const MAGIC_US: u32 = 0xa1b2_c3d4;
/// Kuznetzov's libpcap patches (Red Hat 6, SuSE 7): records have interface, protocol and packet type.
const MAGIC_KUZNETZOV: u32 = 0xa1b2_cd34;
/// IxNetwork, hardware and software stamps: nanoseconds, and the file's length in the head.
const MAGIC_IXIA_HARDWARE: u32 = 0x1c00_01ac;
const MAGIC_IXIA_SOFTWARE: u32 = 0x1c00_01ab;
/// Records that are longer than this are damage, for any snapshot length in the head.
const CAPTURED_MAX_BYTES: u32 = 16 << 20;

const NS_PER_S: u64 = 1_000_000_000;

/// The layout of the records of a file.
pub(super) struct PcapReader {
    order: ByteOrder,
    ns_per_fraction: u64,
    record_header_bytes: usize,
    lengths: Lengths,
    captured_max_bytes: u32,
}

/// The order of the two lengths in a record; it changed before version 2.4.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lengths {
    CapturedFirst,
    WireFirst,
    /// Version 2.3 exists in both orders: the captured length is not the longer one.
    Shorter,
}

impl PcapReader {
    /// Reads the head. None when the file has no magic number of pcap.
    pub(super) fn new(
        input: &mut Input,
        first: &[u8],
    ) -> Result<Option<(Self, Interface)>, TraceError> {
        let known = [ByteOrder::Little, ByteOrder::Big]
            .into_iter()
            .filter(|_| first.len() >= 4)
            .find_map(|order| match order.u32(first, 0) {
                MAGIC_US => Some((order, 1000, 16, 24)),
                MAGIC_NS => Some((order, 1, 16, 24)),
                MAGIC_KUZNETZOV => Some((order, 1000, 24, 24)),
                MAGIC_IXIA_HARDWARE | MAGIC_IXIA_SOFTWARE => Some((order, 1, 16, 28)),
                _ => None,
            });
        let Some((order, ns_per_fraction, record_header_bytes, head_bytes)) = known else {
            return Ok(None);
        };
        if input.ready(head_bytes) < head_bytes {
            return Err(input.truncated("the head of a pcap file"));
        }
        let head = input.bytes();
        let (major, minor) = (order.u16(head, 4), order.u16(head, 6));
        let lengths = match (major, minor) {
            (2, 0..=2) => Lengths::WireFirst,
            (2, 3) => Lengths::Shorter,
            // 543.0 is how DG/UX's tcpdump numbers its files.
            (2, 4..) | (543, 0) => Lengths::CapturedFirst,
            _ => {
                let found = format!("version {major}.{minor}");
                return Err(input.corrupt(found, "a pcap file of version 2.0 to 2.4"));
            }
        };
        let snaplen_bytes = order.u32(head, 16);
        let interface = Interface {
            // The upper half describes frame check sequences.
            link_type: order.u32(head, 20) as u16,
            snaplen_bytes,
            resolution_ns: ns_per_fraction,
            ..Interface::default()
        };
        input.pass(head_bytes);
        let reader = Self {
            order,
            ns_per_fraction,
            record_header_bytes,
            lengths,
            captured_max_bytes: snaplen_bytes.clamp(SNAPLEN_MAX_BYTES, CAPTURED_MAX_BYTES),
        };
        Ok(Some((reader, interface)))
    }

    /// Skips the next record.
    #[inline]
    pub(super) fn next(&mut self, input: &mut Input) -> Result<Option<Found>, TraceError> {
        let header_bytes = self.record_header_bytes;
        if !input.has(header_bytes, "a packet's header")? {
            return Ok(None);
        }
        let header = input.bytes();
        let seconds = self.order.u32(header, 0);
        let fraction = self.order.u32(header, 4);
        let (first, second) = (self.order.u32(header, 8), self.order.u32(header, 12));
        let (captured_bytes, wire_bytes) = match self.lengths {
            Lengths::CapturedFirst => (first, second),
            Lengths::WireFirst => (second, first),
            Lengths::Shorter => (first.min(second), first.max(second)),
        };
        if captured_bytes > self.captured_max_bytes {
            return Err(input.corrupt(
                format!("a packet of {captured_bytes} captured bytes"),
                format!("at most {}", self.captured_max_bytes),
            ));
        }
        let record_bytes = header_bytes + captured_bytes as usize;
        if input.ready(record_bytes) < record_bytes {
            return Err(input.truncated("a packet"));
        }
        input.pass(record_bytes);
        Ok(Some(Found {
            time_ns: u64::from(seconds) * NS_PER_S + u64::from(fraction) * self.ns_per_fraction,
            wire_bytes,
            behind_bytes: captured_bytes as usize,
            captured_bytes: captured_bytes as usize,
            ..Found::default()
        }))
    }
}
