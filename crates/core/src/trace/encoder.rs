//! Encodes packets, heads and statistics in either format, and finds the boundaries of packets in encoded
//! bytes.

use super::error::TraceError;
use super::format::Format;
use super::interface::Interface;
use super::packet::Packet;
use super::section::Section;
use super::statistics::Account;
use super::{pcap_records, pcapng_blocks};

/// Maximum bytes of the statistics of an interface.
const STATISTICS_BYTES: usize = 1024;
const PCAP_HEAD_BYTES: usize = 24;

pub(super) struct Encoder {
    format: Format,
    head: Vec<u8>,
    interfaces: usize,
}

/// A piece of a file that must not be cut: a block or a record.
pub(super) struct Piece {
    pub(super) end: usize,
    pub(super) is_packet: bool,
}

impl Encoder {
    pub(super) fn new(
        format: Format,
        section: &Section,
        interfaces: &[Interface],
        snaplen_bytes: u32,
    ) -> Result<Self, TraceError> {
        let mut head = Vec::new();
        match format {
            Format::Pcapng => {
                pcapng_blocks::section(&mut head, section)?;
                for interface in interfaces {
                    let mut interface = interface.clone();
                    interface.snaplen_bytes = match (interface.snaplen_bytes, snaplen_bytes) {
                        (0, bytes) | (bytes, 0) => bytes,
                        (own, bytes) => own.min(bytes),
                    };
                    pcapng_blocks::interface(&mut head, &interface)?;
                }
            }
            Format::Pcap => {
                let link_type = interfaces.first().map(|first| first.link_type);
                if let Some(other) = interfaces
                    .iter()
                    .find(|interface| Some(interface.link_type) != link_type)
                {
                    return Err(TraceError::Option {
                        option: "format",
                        found: "pcap".into(),
                        expected: format!(
                            "{} has link type {}, the first interface {}, and a pcap file has only one; write pcapng",
                            other.name,
                            other.link_type,
                            link_type.unwrap_or_default()
                        ),
                    });
                }
                pcap_records::head(&mut head, link_type.unwrap_or_default(), snaplen_bytes);
            }
        }
        Ok(Self {
            format,
            head,
            interfaces: interfaces.len(),
        })
    }

    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Maximum bytes that [`Encoder::statistics`] appends for all interfaces.
    pub(super) fn statistics_bytes(&self) -> usize {
        match self.format {
            Format::Pcapng => self.interfaces * STATISTICS_BYTES,
            Format::Pcap => 0,
        }
    }

    /// Maximum overhead of a packet, bytes.
    #[inline]
    pub(super) fn overhead_bytes(&self, packet: &Packet) -> usize {
        match self.format {
            Format::Pcapng => pcapng_blocks::packet_overhead_bytes(packet.comment),
            Format::Pcap => pcap_records::RECORD_HEADER_BYTES,
        }
    }

    /// Appends a packet, with the bytes `captured`.
    #[inline]
    pub(super) fn packet(&self, out: &mut Vec<u8>, packet: &Packet, captured: &[u8]) {
        match self.format {
            Format::Pcapng => pcapng_blocks::packet(out, packet, captured),
            Format::Pcap => pcap_records::packet(out, packet, captured),
        }
    }

    /// Appends the statistics of all interfaces. Classic pcap does not have them.
    pub(super) fn statistics(
        &self,
        out: &mut Vec<u8>,
        accounts: &[Account],
    ) -> Result<(), TraceError> {
        if self.format == Format::Pcapng {
            for (interface, account) in accounts.iter().enumerate() {
                pcapng_blocks::statistics(out, interface as u32, account)?;
            }
        }
        Ok(())
    }

    /// The pieces of encoded bytes that start at the head of a file or at a piece.
    pub(super) fn pieces<'a>(
        &self,
        bytes: &'a [u8],
        is_file_start: bool,
    ) -> impl Iterator<Item = Piece> + 'a {
        let format = self.format;
        let mut at = 0;
        std::iter::from_fn(move || {
            if at >= bytes.len() {
                return None;
            }
            let word = |from: usize| {
                bytes
                    .get(at + from..at + from + 4)
                    .and_then(|word| word.try_into().ok())
                    .map_or(0, u32::from_le_bytes)
            };
            let (length_bytes, is_packet) = match format {
                Format::Pcap if is_file_start && at == 0 => (PCAP_HEAD_BYTES, false),
                Format::Pcap => {
                    let captured_bytes = word(8) as usize;
                    (pcap_records::RECORD_HEADER_BYTES + captured_bytes, true)
                }
                Format::Pcapng => (word(4) as usize, word(0) == pcapng_blocks::ENHANCED_PACKET),
            };
            at += length_bytes.max(1);
            Some(Piece { end: at, is_packet })
        })
    }
}
