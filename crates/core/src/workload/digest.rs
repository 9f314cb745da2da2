//! A hash that shows whether two runs sent the same bytes.

use super::{Packet, Packets};
use twox_hash::XxHash3_128;

/// XXH3-128 over headers and payload of the workload, and over the varying fields of every packet sent, in
/// their order. It leaves out the send times in stamps, and the source MAC address when it is the interface's: both are
/// other ones in each run of the same workload.
#[derive(Clone)]
pub struct Digest {
    hash: XxHash3_128,
    // Packets are hashed together: the hash is fast on long input only.
    pending: Vec<u8>,
}

const PENDING_BYTES: usize = 12 * 256;
/// Its place in a frame.
const SOURCE_MAC: std::ops::Range<usize> = 6..12;

impl std::fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Digest({})", self.text())
    }
}

impl Digest {
    /// The digest of a workload before its first packet.
    pub fn new(packets: &Packets) -> Self {
        let mut hash = XxHash3_128::with_seed(0);
        for header in packets.headers() {
            let mut bytes = header.bytes.clone();
            if packets.has_own_mac() {
                bytes[SOURCE_MAC].fill(0);
            }
            hash.write(&bytes);
        }
        hash.write(packets.payload());
        hash.write(packets.replayed());
        Self {
            hash,
            pending: Vec::with_capacity(PENDING_BYTES),
        }
    }

    /// Adds a packet.
    pub fn add(&mut self, packet: &Packet) {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&packet.flow.to_be_bytes());
        bytes[4..8].copy_from_slice(&packet.ip_bytes.to_be_bytes());
        bytes[8..10].copy_from_slice(&packet.ip_checksum.to_be_bytes());
        bytes[10..].copy_from_slice(&packet.transport_checksum.to_be_bytes());
        self.pending.extend_from_slice(&bytes);
        if self.pending.len() == PENDING_BYTES {
            self.hash.write(&self.pending);
            self.pending.clear();
        }
    }

    /// 32 hexadecimal digits.
    pub fn text(&self) -> String {
        let mut hash = self.hash.clone();
        hash.write(&self.pending);
        format!("{:032x}", hash.finish_128())
    }
}
