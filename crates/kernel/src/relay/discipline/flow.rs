//! The flow of a frame: addresses, protocol and ports.

use std::hash::{BuildHasher as _, Hasher as _};

use rustc_hash::FxBuildHasher;

const TAGS: [u16; 2] = [0x8100, 0x88a8];
const ADDRESSES_BYTES: usize = 12;

/// The header of IPv4 or IPv6 and what follows it; none when the frame has none that is whole.
pub fn network_header(frame: &[u8]) -> Option<&[u8]> {
    let mut rest = frame.get(ADDRESSES_BYTES..)?;
    loop {
        let kind = u16::from_be_bytes([*rest.first()?, *rest.get(1)?]);
        let (version, least_bytes) = match kind {
            0x0800 => (4, 20),
            0x86dd => (6, 40),
            kind if TAGS.contains(&kind) => {
                rest = rest.get(4..)?;
                continue;
            }
            _ => return None,
        };
        let header = rest.get(2..)?;
        return (header.len() >= least_bytes && header[0] >> 4 == version).then_some(header);
    }
}

/// A number of the flow, the same for all its frames; other frames have that of their addresses of Ethernet.
pub fn number_of(frame: &[u8], seed: u64) -> u64 {
    let mut hasher = FxBuildHasher.build_hasher();
    hasher.write_u64(seed);
    let Some(header) = network_header(frame) else {
        hasher.write(&frame[..frame.len().min(ADDRESSES_BYTES)]);
        return spread(hasher.finish());
    };
    let (protocol, addresses, transport, is_fragment) = match header[0] >> 4 {
        4 => {
            let words = usize::from(header[0] & 15);
            let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
            (
                header[9],
                &header[12..20],
                header.get(words * 4..),
                is_fragment,
            )
        }
        _ => (header[6], &header[8..40], header.get(40..), false),
    };
    hasher.write(addresses);
    hasher.write_u8(protocol);
    // TCP, UDP, DCCP, SCTP and UDP-Lite begin with both ports.
    if matches!(protocol, 6 | 17 | 33 | 132 | 136)
        && !is_fragment
        && let Some(ports) = transport.and_then(|transport| transport.get(..4))
    {
        hasher.write(ports);
    }
    spread(hasher.finish())
}

/// Mixes the bits: the remainder of a division takes the last ones (the finalizer of MurmurHash3).
fn spread(mut bits: u64) -> u64 {
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        bits = (bits ^ bits >> 33).wrapping_mul(factor);
    }
    bits ^ bits >> 33
}
