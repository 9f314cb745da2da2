//! Puts a VLAN tag that the kernel keeps beside a packet back to its place on the wire.

use parshall_core::abi::CaptureRecord;

use crate::net::packet_receive::{ADDRESSES_BYTES, TAG_BYTES};

/// Puts tags back; keeps the memory for it.
#[derive(Debug, Default)]
pub struct Retag {
    frame: Vec<u8>,
}

impl Retag {
    /// The packet as it was on the wire: its length there, and what was captured of it.
    #[inline]
    pub fn whole<'packet>(
        &'packet mut self,
        record: &CaptureRecord,
        bytes: &'packet [u8],
    ) -> (u32, &'packet [u8]) {
        if record.vlan_protocol == 0 || bytes.len() < ADDRESSES_BYTES {
            return (record.wire_length_bytes, bytes);
        }
        self.frame.clear();
        self.frame.extend_from_slice(&bytes[..ADDRESSES_BYTES]);
        self.frame.extend(record.vlan_protocol.to_be_bytes());
        self.frame.extend(record.vlan_tci.to_be_bytes());
        self.frame.extend_from_slice(&bytes[ADDRESSES_BYTES..]);
        (record.wire_length_bytes + TAG_BYTES as u32, &self.frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_stands_behind_the_addresses() {
        let packet: Vec<u8> = (0..20).collect();
        let mut record = CaptureRecord {
            wire_length_bytes: 60,
            vlan_tci: 0x2005,
            ..CaptureRecord::default()
        };
        let mut retag = Retag::default();
        assert_eq!(retag.whole(&record, &packet), (60, packet.as_slice()));
        record.vlan_protocol = 0x8100;
        let (wire_bytes, whole) = retag.whole(&record, &packet);
        assert_eq!(wire_bytes, 64);
        assert_eq!(&whole[..12], &packet[..12]);
        assert_eq!(&whole[12..16], &[0x81, 0x00, 0x20, 0x05]);
        assert_eq!(&whole[16..], &packet[12..]);
        // What is too short to have had a tag stays as it is.
        assert_eq!(retag.whole(&record, &packet[..11]), (60, &packet[..11]));
    }
}
