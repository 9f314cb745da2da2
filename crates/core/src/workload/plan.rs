//! The plan: what every packet is and when it is due, from the seed alone.

use super::packets::{FRAME_BYTES_MIN, STAMP_BYTES};
use super::{Flows, Layout, Order, Packets, Replay};
use crate::distributions::{GapDistribution, GapProcess, Rng};
use crate::sizes::SizeDistribution;
use std::sync::Arc;

// Streams of the seed: samples of one do not change the others.
const SIZES_STREAM: u64 = 1;
const GAPS_STREAM: u64 = 2;
const FLOWS_STREAM: u64 = 3;

/// The packets that a generator sends.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Sizes of the IP packets. Sizes too small for the headers are raised.
    pub sizes: SizeDistribution,
    /// Gaps between them.
    pub gaps: GapDistribution,
    /// Flows.
    pub flows: Flows,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Whether the payload has sequence number and send time.
    pub is_stamped: bool,
    /// Frames to send instead; `sizes` is then the distribution of their sizes.
    pub replay: Option<Arc<Replay>>,
}

impl Workload {
    /// The smallest IP packet that holds headers and stamp, bytes.
    pub fn smallest_ip_bytes(&self) -> u32 {
        if self.replay.is_some() {
            return 1;
        }
        let stamp = if self.is_stamped { STAMP_BYTES } else { 0 };
        (Layout::of(&self.flows).headers_bytes() + stamp) as u32
    }

    /// The size that a packet of `size_bytes` gets.
    pub fn ip_bytes(&self, size_bytes: u32) -> u32 {
        size_bytes.max(self.smallest_ip_bytes())
    }

    /// The frame of an IP packet of `ip_bytes`, without its check sequence.
    pub fn frame_bytes(&self, ip_bytes: u32) -> usize {
        (Layout::of(&self.flows).ip_offset + ip_bytes as usize).max(FRAME_BYTES_MIN)
    }

    /// The largest IP packet, bytes.
    pub fn largest_ip_bytes(&self) -> u32 {
        self.ip_bytes(self.sizes.largest_bytes())
    }

    /// The largest frame, bytes, without its check sequence.
    pub fn largest_frame_bytes(&self) -> usize {
        self.frame_bytes(self.largest_ip_bytes())
    }

    /// Mean length of the frames, bytes, without their check sequence.
    pub fn mean_frame_bytes(&self) -> f64 {
        self.sizes
            .mean_of(|size| self.frame_bytes(self.ip_bytes(size)) as f64)
    }
}

/// One packet of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// When it is due, ns since the first.
    pub due_ns: u64,
    /// Its flow.
    pub flow: u32,
    /// Length of the IP packet, bytes.
    pub ip_bytes: u32,
    /// Checksum of the IPv4 header.
    pub ip_checksum: u16,
    /// Checksum of UDP or TCP, or its sum so far: see [`Packets::transport_checksum`].
    pub transport_checksum: u16,
}

/// The endless sequence of the packets of a workload.
#[derive(Debug, Clone)]
pub struct Plan<'a> {
    workload: &'a Workload,
    packets: &'a Packets,
    smallest_ip_bytes: u32,
    sizes: Rng,
    gaps: Rng,
    flows: Rng,
    // None without gaps.
    process: Option<GapProcess>,
    due_ns: f64,
    sequence: u64,
}

impl<'a> Plan<'a> {
    /// From the first packet on; `packets` are those of the workload.
    pub fn new(workload: &'a Workload, packets: &'a Packets) -> Self {
        let mut gaps = Rng::new(workload.seed, GAPS_STREAM);
        Self {
            process: (!workload.gaps.is_none()).then(|| workload.gaps.start(&mut gaps)),
            smallest_ip_bytes: workload.smallest_ip_bytes(),
            workload,
            packets,
            sizes: Rng::new(workload.seed, SIZES_STREAM),
            gaps,
            flows: Rng::new(workload.seed, FLOWS_STREAM),
            due_ns: 0.0,
            sequence: 0,
        }
    }
}

impl Plan<'_> {
    fn advance(&mut self) {
        if let Some(process) = &mut self.process {
            self.due_ns += process.next_gap_ns(&mut self.gaps);
        }
        self.sequence += 1;
    }
}

impl Iterator for Plan<'_> {
    type Item = Packet;

    fn next(&mut self) -> Option<Packet> {
        if let Some(replay) = &self.workload.replay {
            let packet = Packet {
                due_ns: self.due_ns as u64,
                flow: 0,
                ip_bytes: replay.packet_bytes(self.sequence),
                ip_checksum: 0,
                transport_checksum: 0,
            };
            self.advance();
            return Some(packet);
        }
        let drawn = self.workload.sizes.sample(&mut self.sizes);
        let ip_bytes = drawn.max(self.smallest_ip_bytes);
        let count = u64::from(self.workload.flows.count);
        let flow = match self.workload.flows.order {
            _ if count == 1 => 0,
            Order::Cycling => (self.sequence % count) as u32,
            Order::Random => self.flows.below(count) as u32,
        };
        let packet = Packet {
            // Sums of f64 are exact to a nanosecond for a hundred days.
            due_ns: self.due_ns as u64,
            flow,
            ip_bytes,
            ip_checksum: self.packets.ip_checksum(flow, ip_bytes),
            transport_checksum: self
                .packets
                .transport_checksum(flow, ip_bytes, self.sequence),
        };
        self.advance();
        Some(packet)
    }
}
