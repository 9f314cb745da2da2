//! The frames and the times of a capture file, to be sent anew.

use super::WorkloadError;
use crate::sizes::SizeCounts;
use crate::trace::{LINK_TYPE_ETHERNET, Reader, TraceError};

/// Ethernet's header: what follows counts as the packet.
const ETHERNET_BYTES: usize = 14;

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
    /// The file's; a file without packets, without Ethernet, or whose packets were cut short.
    pub fn read(reader: &mut Reader, name: &str) -> Result<Self, ReplayError> {
        let refused = |reason: String, expected| {
            ReplayError::Workload(WorkloadError::Flows {
                parameter: "--replay",
                found: name.into(),
                reason,
                expected,
            })
        };
        let mut replay = Self {
            bytes: Vec::new(),
            ends: Vec::new(),
            gaps_ns: Vec::new(),
        };
        let (mut cut_short, mut previous_ns): (u64, Option<u64>) = (0, None);
        while let Some(packet) = reader.next()? {
            cut_short += u64::from(
                packet.captured.len() < packet.wire_bytes as usize
                    || packet.captured.len() <= ETHERNET_BYTES,
            );
            replay.bytes.extend(packet.captured);
            replay.ends.push(replay.bytes.len());
            if let Some(previous_ns) = previous_ns {
                // What goes back in time follows at once.
                replay
                    .gaps_ns
                    .push(packet.time_ns.saturating_sub(previous_ns) as f64);
            }
            previous_ns = Some(previous_ns.unwrap_or(0).max(packet.time_ns));
        }
        let ethernet = "a capture of whole packets from an Ethernet interface";
        if replay.ends.is_empty() {
            return Err(refused("has no packets".into(), ethernet));
        }
        if cut_short > 0 {
            let reason = format!("{cut_short} of {} packets are not whole", replay.ends.len());
            return Err(refused(reason, ethernet));
        }
        if reader
            .interfaces()
            .iter()
            .any(|interface| interface.link_type != LINK_TYPE_ETHERNET)
        {
            return Err(refused("has another link layer".into(), ethernet));
        }
        // From the last frame to the first of the next round: as long as the others are in the mean.
        let rounds = replay.gaps_ns.len().max(1) as f64;
        let mean_ns = replay.gaps_ns.iter().sum::<f64>() / rounds;
        replay.gaps_ns.push(mean_ns);
        Ok(replay)
    }

    /// How many frames there are.
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

    /// All frames, one behind the other.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Gaps between the frames, ns, as many as there are frames.
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

/// Why a capture file cannot be sent anew.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// It is of the wrong kind.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}
