//! The headers of flows, built before sending.

use super::checksum::{fold, sum};
use super::{Flows, Protocol};
use crate::protocols::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, PROTOCOL_TCP, PROTOCOL_UDP,
};
use std::net::IpAddr;

/// Ethernet, a VLAN tag, IPv6 and TCP are 78 bytes; rounded up to whole words.
pub const HEADER_BYTES_MAX: usize = 80;

const HOP_LIMIT: u8 = 64;
const DONT_FRAGMENT: u16 = 0x4000;
const TCP_OFFSET_AND_ACK: u16 = 0x5010;

/// The offsets in every frame of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Whether it is IPv6.
    pub is_ipv6: bool,
    /// Protocol above IP.
    pub protocol: Protocol,
    /// First byte of the IP header.
    pub ip_offset: usize,
    /// First byte of the UDP or TCP header.
    pub transport_offset: usize,
    /// First byte of the payload.
    pub payload_offset: usize,
}

impl Layout {
    /// The layout of the frames of these flows.
    pub fn of(flows: &Flows) -> Self {
        let ip_offset = if flows.vlan.is_some() { 18 } else { 14 };
        let transport_offset = ip_offset + if flows.is_ipv6() { 40 } else { 20 };
        let transport_bytes = match flows.protocol {
            Protocol::Udp => 8,
            Protocol::Tcp => 20,
            Protocol::Raw(_) => 0,
        };
        Self {
            is_ipv6: flows.is_ipv6(),
            protocol: flows.protocol,
            ip_offset,
            transport_offset,
            payload_offset: transport_offset + transport_bytes,
        }
    }

    /// Bytes of IP and transport header: no packet is smaller.
    pub fn headers_bytes(&self) -> usize {
        self.payload_offset - self.ip_offset
    }

    /// Offset of the checksum of UDP or TCP.
    pub fn transport_checksum_offset(&self) -> Option<usize> {
        match self.protocol {
            Protocol::Udp => Some(self.transport_offset + 6),
            Protocol::Tcp => Some(self.transport_offset + 16),
            Protocol::Raw(_) => None,
        }
    }
}

/// The header of one flow, with lengths and checksums 0, and the sums of its constant parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The first bytes of every frame of this flow.
    pub bytes: Vec<u8>,
    /// Sum over the IPv4 header.
    pub(super) ip_sum: u16,
    /// Sum over pseudo header and transport header, without lengths.
    pub(super) transport_sum: u16,
}

impl Header {
    /// The header of flow number `flow`.
    pub fn of(flows: &Flows, flow: u32) -> Self {
        let layout = Layout::of(flows);
        let mut bytes = Vec::with_capacity(HEADER_BYTES_MAX);
        let (source_mac, destination_mac) = flows.macs(flow);
        bytes.extend(destination_mac);
        bytes.extend(source_mac);
        if let Some(vlan) = flows.vlan {
            bytes.extend(ETHERTYPE_VLAN.to_be_bytes());
            bytes.extend((u16::from(vlan.priority) << 13 | vlan.id).to_be_bytes());
        }
        let protocol = match flows.protocol {
            Protocol::Udp => PROTOCOL_UDP,
            Protocol::Tcp => PROTOCOL_TCP,
            Protocol::Raw(number) => number,
        };
        let mut pseudo_sum = u64::from(protocol);
        match flows.addresses(flow) {
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                bytes.extend(ETHERTYPE_IPV6.to_be_bytes());
                // Version 6, no traffic class, no flow label; the length is written for each packet.
                bytes.extend([0x60, 0, 0, 0, 0, 0, protocol, HOP_LIMIT]);
                bytes.extend(source.octets());
                bytes.extend(destination.octets());
                pseudo_sum += sum(&source.octets()) + sum(&destination.octets());
            }
            (source, destination) => {
                bytes.extend(ETHERTYPE_IPV4.to_be_bytes());
                bytes.extend([0x45, 0, 0, 0]);
                // Never fragmented, so that the identification may be 0 (RFC 6864).
                bytes.extend([0, 0]);
                bytes.extend(DONT_FRAGMENT.to_be_bytes());
                bytes.extend([HOP_LIMIT, protocol, 0, 0]);
                for address in [source, destination] {
                    if let IpAddr::V4(address) = address {
                        bytes.extend(address.octets());
                        pseudo_sum += sum(&address.octets());
                    }
                }
            }
        }
        let (source_port, destination_port) = flows.ports(flow);
        match flows.protocol {
            Protocol::Udp => {
                bytes.extend(source_port.to_be_bytes());
                bytes.extend(destination_port.to_be_bytes());
                bytes.extend([0; 4]);
            }
            Protocol::Tcp => {
                bytes.extend(source_port.to_be_bytes());
                bytes.extend(destination_port.to_be_bytes());
                bytes.extend([0; 8]);
                bytes.extend(TCP_OFFSET_AND_ACK.to_be_bytes());
                bytes.extend(u16::MAX.to_be_bytes());
                bytes.extend([0; 4]);
            }
            Protocol::Raw(_) => {}
        }
        Self {
            ip_sum: fold(sum(&bytes[layout.ip_offset..layout.transport_offset])),
            transport_sum: fold(pseudo_sum + sum(&bytes[layout.transport_offset..])),
            bytes,
        }
    }
}
