//! Puts VLAN tags back that the kernel took out of packets.

use crate::net::packet_receive::{ADDRESSES_BYTES, TAG_BYTES};

/// Inserts a tag into the packet that starts at offset [`TAG_BYTES`] of `bytes`, so that it starts
/// at offset 0. Returns false, and changes nothing, when the packet is too short.
pub(super) fn put_back(bytes: &mut [u8], tag: [u8; TAG_BYTES]) -> bool {
    if bytes.len() < TAG_BYTES + ADDRESSES_BYTES {
        return false;
    }
    bytes.copy_within(TAG_BYTES..TAG_BYTES + ADDRESSES_BYTES, 0);
    bytes[ADDRESSES_BYTES..ADDRESSES_BYTES + TAG_BYTES].copy_from_slice(&tag);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_stands_behind_the_addresses() {
        let mut bytes: Vec<u8> = (0..24).collect();
        assert!(put_back(&mut bytes, [0x81, 0, 0, 7]));
        let addresses: Vec<u8> = (4..16).collect();
        assert_eq!(bytes[..12], addresses);
        assert_eq!(bytes[12..16], [0x81, 0, 0, 7]);
        assert_eq!(bytes[16..], (16..24).collect::<Vec<u8>>());
        assert!(!put_back(&mut bytes[..15], [0; 4]));
    }
}
