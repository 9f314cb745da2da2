//! The frames and the times of a capture file, for a replay.

use super::WorkloadError;
use crate::protocols::ETHERTYPE_VLAN;
use crate::sizes::SizeCounts;
use crate::trace::{LINK_TYPE_ETHERNET, Reader, TraceError};

/// Ethernet's header: what follows counts as the packet.
const ETHERNET_BYTES: usize = 14;
/// A tag of 802.1Q, which the kernel takes in addition to the MTU.
const TAG_BYTES: usize = 4;

/// Limits of the frames of a file.
#[derive(Clone, Copy, Debug)]
pub struct ReplayLimits {
    /// Memory for all of them, bytes.
    pub memory_bytes: u64,
    /// Bytes behind the Ethernet header, and a tag of 802.1Q, of each; none: any number.
    pub ip_bytes: Option<u32>,
}

/// Frames of a capture file in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    bytes: Vec<u8>,
    // Where each frame ends.
    ends: Vec<usize>,
    gaps_ns: Vec<f64>,
}

impl Replay {
    /// Reads all frames; `name` is for messages.
    ///
    /// # Errors
    /// The file's; a file without packets, without Ethernet, with a packet that was cut short or is longer than it may
    /// be, or that takes more memory. The first such packet ends the reading.
    pub fn read(
        reader: &mut Reader,
        name: &str,
        limits: ReplayLimits,
    ) -> Result<Self, ReplayError> {
        let refused = |reason: String, expected| {
            ReplayError::Workload(WorkloadError::Flows {
                parameter: "--replay",
                found: name.into(),
                reason,
                expected,
            })
        };
        let ethernet = "a capture of whole packets from an Ethernet interface";
        let mut replay = Self {
            bytes: Vec::new(),
            ends: Vec::new(),
            gaps_ns: Vec::new(),
        };
        let (mut previous_ns, mut known_interface): (Option<u64>, _) = (None, None);
        while let Some(packet) = reader.next()? {
            let number = replay.ends.len() + 1;
            let (captured_bytes, wire_bytes) = (packet.captured.len(), packet.wire_bytes as usize);
            if captured_bytes < wire_bytes || captured_bytes <= ETHERNET_BYTES {
                let reason =
                    format!("packet {number} is not whole, {captured_bytes} of {wire_bytes} bytes");
                return Err(refused(reason, ethernet));
            }
            let untagged_bytes = untagged_bytes(packet.captured);
            if let Some(ip_bytes) = limits.ip_bytes
                && untagged_bytes > ip_bytes
            {
                let reason = format!(
                    "packet {number} of {untagged_bytes} bytes is longer than the MTU of the interface, {ip_bytes}"
                );
                return Err(refused(
                    reason,
                    "shorter packets, or a longer MTU at both ends (ip link set IF mtu BYTES)",
                ));
            }
            replay.bytes.extend(packet.captured);
            replay.ends.push(replay.bytes.len());
            if let Some(previous_ns) = previous_ns {
                // A packet that goes back in time has a gap of 0.
                replay
                    .gaps_ns
                    .push(packet.time_ns.saturating_sub(previous_ns) as f64);
            }
            previous_ns = Some(previous_ns.unwrap_or(0).max(packet.time_ns));
            if replay.memory_bytes() > limits.memory_bytes {
                let reason = format!(
                    "takes more than the {} MiB of memory that a file of its length may",
                    limits.memory_bytes >> 20
                );
                return Err(refused(
                    reason,
                    "a shorter file, such as a part of it (editcap), or the same one decompressed",
                ));
            }
            let interface = packet.interface;
            if known_interface != Some(interface) {
                known_interface = Some(interface);
                if reader.interfaces()[interface as usize].link_type != LINK_TYPE_ETHERNET {
                    return Err(refused("has another link layer".into(), ethernet));
                }
            }
        }
        if replay.ends.is_empty() {
            return Err(refused("has no packets".into(), ethernet));
        }
        // From the last frame to the first of the next round: the mean of the other gaps.
        let rounds = replay.gaps_ns.len().max(1) as f64;
        let mean_ns = replay.gaps_ns.iter().sum::<f64>() / rounds;
        replay.gaps_ns.push(mean_ns);
        Ok(replay)
    }

    /// Memory that the frames take, with the spare capacity of the vectors.
    fn memory_bytes(&self) -> u64 {
        let lists =
            size_of::<usize>() * self.ends.capacity() + size_of::<f64>() * self.gaps_ns.capacity();
        (self.bytes.capacity() + lists) as u64
    }

    /// Number of frames.
    pub fn frames(&self) -> usize {
        self.ends.len()
    }

    /// The frame of packet number `sequence`; after the last comes the first.
    pub fn frame(&self, sequence: u64) -> &[u8] {
        let index = (sequence % self.ends.len() as u64) as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }

    /// Bytes behind the Ethernet header of packet number `sequence`.
    pub fn packet_bytes(&self, sequence: u64) -> u32 {
        (self.frame(sequence).len() - ETHERNET_BYTES) as u32
    }

    /// Bytes of the largest packet, held against an MTU: without a tag of 802.1Q.
    pub fn largest_untagged_bytes(&self) -> u32 {
        (0..self.frames() as u64)
            .map(|sequence| untagged_bytes(self.frame(sequence)))
            .max()
            .unwrap_or(0)
    }

    /// All frames, one behind the other.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Gaps after each frame, ns.
    pub fn gaps_ns(&self) -> &[f64] {
        &self.gaps_ns
    }

    /// How often each size occurs.
    ///
    /// # Errors
    /// When a frame is longer than an IP packet can be.
    pub fn sizes(&self) -> Result<SizeCounts, crate::sizes::SizesError> {
        let mut counts = SizeCounts::new();
        for sequence in 0..self.frames() as u64 {
            counts.add(self.packet_bytes(sequence), 1)?;
        }
        Ok(counts)
    }
}

/// Bytes behind the Ethernet header of a frame, and behind a tag of 802.1Q.
fn untagged_bytes(frame: &[u8]) -> u32 {
    let ethertype = frame.get(ETHERNET_BYTES - 2..ETHERNET_BYTES);
    let tag_bytes = match ethertype == Some(&ETHERTYPE_VLAN.to_be_bytes()[..]) {
        true => TAG_BYTES,
        false => 0,
    };
    frame.len().saturating_sub(ETHERNET_BYTES + tag_bytes) as u32
}

/// Why a capture file cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// It is of the wrong kind.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A capture file of this many Ethernet frames of 1000 bytes.
    fn file(frames: u32) -> Reader {
        let mut bytes = Vec::new();
        for word in [0xa1b2_3c4d, 4 << 16 | 2, 0, 0, 65535, 1_u32] {
            bytes.extend(word.to_le_bytes());
        }
        for number in 0..frames {
            for word in [number, 0, 1000, 1000] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend([7; 1000]);
        }
        Reader::new(Box::new(std::io::Cursor::new(bytes)), "day.pcap").unwrap()
    }

    fn read(frames: u32, memory_bytes: u64, ip_bytes: Option<u32>) -> Result<Replay, ReplayError> {
        let limits = ReplayLimits {
            memory_bytes,
            ip_bytes,
        };
        Replay::read(&mut file(frames), "day.pcap", limits)
    }

    #[test]
    fn a_file_beyond_the_memory_limit_is_refused() {
        let few = read(1000, 2 << 20, Some(986)).unwrap();
        assert_eq!((few.frames(), few.gaps_ns()[0]), (1000, 1e9));
        let refusal = read(3000, 2 << 20, None).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "--replay \"day.pcap\": takes more than the 2 MiB of memory that a file of its length may; expected a \
             shorter file, such as a part of it (editcap), or the same one decompressed"
        );
    }

    #[test]
    fn the_first_packet_beyond_the_mtu_is_refused() {
        let refusal = read(3000, 2 << 20, Some(985)).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "--replay \"day.pcap\": packet 1 of 986 bytes is longer than the MTU of the interface, 985; expected \
             shorter packets, or a longer MTU at both ends (ip link set IF mtu BYTES)"
        );
    }
}
