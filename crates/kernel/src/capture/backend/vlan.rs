//! Puts VLAN tags back that the kernel took out of packets.

/// Bytes of a tag.
pub(super) const TAG_BYTES: usize = 4;
/// Where it stands: behind the two addresses.
const ADDRESSES_BYTES: usize = 12;
const TPID_8021Q: u16 = 0x8100;

/// The tag that belongs into a packet, from what the kernel tells beside it.
pub(super) fn tag(status: u32, tci: u16, tpid: u16) -> Option<[u8; TAG_BYTES]> {
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let tpid = match status & libc::TP_STATUS_VLAN_TPID_VALID {
        0 => TPID_8021Q,
        _ => tpid,
    };
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
    Some([a, b, c, d])
}

/// Puts a tag into the packet that starts [`TAG_BYTES`] behind the start of `bytes`: it then starts at
/// their start. False, and nothing done, when the packet is too short to have one.
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

    #[test]
    fn a_tag_without_a_type_is_8021q() {
        let valid = libc::TP_STATUS_VLAN_VALID;
        assert_eq!(tag(0, 5, 0x88a8), None);
        assert_eq!(tag(valid, 5, 0), Some([0x81, 0, 0, 5]));
        let typed = valid | libc::TP_STATUS_VLAN_TPID_VALID;
        assert_eq!(tag(typed, 0x1005, 0x88a8), Some([0x88, 0xa8, 0x10, 5]));
    }
}
