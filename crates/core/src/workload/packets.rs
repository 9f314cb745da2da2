//! The bytes of packets: the reference for the kernel side.

use super::checksum::{finish, finish_udp, fold, sum};
use super::header::{Header, Layout};
use super::{Packet, Protocol, Replay, Workload};
use crate::distributions::Rng;
use std::sync::Arc;

/// Shortest frame, without its check sequence: Ethernet pads what is shorter.
pub const FRAME_BYTES_MIN: usize = 60;
/// Sequence number and send time at the start of the payload, each 8 bytes in network byte order.
pub const STAMP_BYTES: usize = 16;
/// Stream of the seed from which the payload comes.
const PAYLOAD_STREAM: u64 = 4;

/// Headers and payload of a workload: the constant parts of its frames.
#[derive(Debug, Clone)]
pub struct Packets {
    layout: Layout,
    headers: Vec<Header>,
    // Bytes of the largest payload; every packet has the first of them.
    payload: Vec<u8>,
    // Sum of the first n bytes of the payload (the stamp's place taken as 0).
    payload_sums: Vec<u16>,
    is_stamped: bool,
    has_own_mac: bool,
    replay: Option<Arc<Replay>>,
}

impl Packets {
    /// For a workload.
    pub fn of(workload: &Workload) -> Self {
        let layout = Layout::of(&workload.flows);
        let headers = (0..workload.flows.count)
            .map(|flow| Header::of(&workload.flows, flow))
            .collect();
        let largest = workload.largest_frame_bytes();
        let mut rng = Rng::new(workload.seed, PAYLOAD_STREAM);
        let mut payload: Vec<u8> = (0..(largest - layout.payload_offset).div_ceil(8))
            .flat_map(|_| rng.bits().to_be_bytes())
            .collect();
        payload.truncate(largest - layout.payload_offset);
        if workload.is_stamped {
            payload[..STAMP_BYTES].fill(0);
        }
        let mut payload_sums = vec![0; payload.len() + 1];
        let mut even = 0_u16;
        for (index, byte) in payload.iter().enumerate() {
            // An odd last byte is the high one of its word.
            payload_sums[index + 1] = if index % 2 == 0 {
                fold(u64::from(even) + (u64::from(*byte) << 8))
            } else {
                even = fold(u64::from(even) + sum(&payload[index - 1..=index]));
                even
            };
        }
        Self {
            layout,
            headers,
            payload,
            payload_sums,
            is_stamped: workload.is_stamped,
            has_own_mac: workload.flows.has_own_mac,
            replay: workload.replay.clone(),
        }
    }

    /// The offsets in all frames.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether the source MAC address in the headers is that of the interface.
    pub fn has_own_mac(&self) -> bool {
        self.has_own_mac
    }

    /// The header of each flow.
    pub fn headers(&self) -> &[Header] {
        &self.headers
    }

    /// The replayed frames, one after the other; empty without a replay.
    pub fn replayed(&self) -> &[u8] {
        self.replay.as_deref().map_or(&[], Replay::bytes)
    }

    /// The payload of the largest packet.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Checksum of the IPv4 header for a packet of `ip_bytes`; 0 for IPv6, which has none.
    pub fn ip_checksum(&self, flow: u32, ip_bytes: u32) -> u16 {
        if self.layout.is_ipv6 {
            return 0;
        }
        finish(u64::from(self.headers[flow as usize].ip_sum) + u64::from(ip_bytes))
    }

    /// Checksum of UDP or TCP for a packet of `ip_bytes`. With a stamp: the sum before its
    /// complement, without the send time, which is known only when the packet is sent.
    pub fn transport_checksum(&self, flow: u32, ip_bytes: u32, sequence: u64) -> u16 {
        if matches!(self.layout.protocol, Protocol::Raw(_)) {
            return 0;
        }
        let transport_bytes =
            ip_bytes as usize - (self.layout.transport_offset - self.layout.ip_offset);
        let payload_bytes = ip_bytes as usize - self.layout.headers_bytes();
        let mut total = u64::from(self.headers[flow as usize].transport_sum)
            + u64::from(self.payload_sums[payload_bytes])
            + transport_bytes as u64;
        if matches!(self.layout.protocol, Protocol::Udp) {
            // Once in the pseudo header, once in the header.
            total += transport_bytes as u64;
        }
        if self.is_stamped {
            return fold(total + sum(&sequence.to_be_bytes()));
        }
        self.finish_transport(total)
    }

    fn finish_transport(&self, total: u64) -> u16 {
        match self.layout.protocol {
            Protocol::Udp => finish_udp(total),
            _ => finish(total),
        }
    }

    /// A frame of `frame_bytes` whose payload is already there, for [`Packets::write`].
    pub fn blank_frame(&self, frame_bytes: usize) -> Vec<u8> {
        let mut frame = vec![0; self.layout.payload_offset];
        frame.extend(&self.payload);
        frame.resize(frame_bytes, 0);
        frame
    }

    /// The frame of a packet, without its check sequence. `sent_ns` matters only with a stamp.
    pub fn frame(&self, packet: &Packet, sequence: u64, sent_ns: u64) -> Vec<u8> {
        let mut frame = self.blank_frame(self.layout.payload_offset + self.payload.len());
        let frame_bytes = self.write(packet, sequence, sent_ns, &mut frame);
        frame.truncate(frame_bytes);
        frame
    }

    /// Writes the varying fields of a packet into a frame that was once a blank one, and returns the length, without
    /// the check sequence. `sent_ns` matters only with a stamp.
    ///
    /// # Panics
    /// When the frame is shorter than the packet.
    pub fn write(&self, packet: &Packet, sequence: u64, sent_ns: u64, frame: &mut [u8]) -> usize {
        if let Some(replay) = &self.replay {
            let bytes = replay.frame(sequence);
            let padded = bytes.len().max(FRAME_BYTES_MIN);
            frame[..bytes.len()].copy_from_slice(bytes);
            frame[bytes.len()..padded].fill(0);
            return padded;
        }
        let layout = self.layout;
        let ip_bytes = packet.ip_bytes as usize;
        let header = &self.headers[packet.flow as usize].bytes;
        frame[..header.len()].copy_from_slice(header);
        let mut put = |offset: usize, value: u16| {
            frame[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
        };
        if layout.is_ipv6 {
            put(layout.ip_offset + 4, (ip_bytes - 40) as u16);
        } else {
            put(layout.ip_offset + 2, ip_bytes as u16);
            put(layout.ip_offset + 10, packet.ip_checksum);
        }
        if layout.protocol == Protocol::Udp {
            let udp_bytes = ip_bytes - (layout.transport_offset - layout.ip_offset);
            put(layout.transport_offset + 4, udp_bytes as u16);
        }
        if let Some(offset) = layout.transport_checksum_offset() {
            let checksum = if self.is_stamped {
                let time_sum = sum(&sent_ns.to_be_bytes());
                self.finish_transport(u64::from(packet.transport_checksum) + time_sum)
            } else {
                packet.transport_checksum
            };
            put(offset, checksum);
        }
        if self.is_stamped {
            let stamp = layout.payload_offset;
            frame[stamp..stamp + 8].copy_from_slice(&sequence.to_be_bytes());
            frame[stamp + 8..stamp + 16].copy_from_slice(&sent_ns.to_be_bytes());
        }
        (layout.ip_offset + ip_bytes).max(FRAME_BYTES_MIN)
    }
}
