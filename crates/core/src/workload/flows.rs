//! The flows of the packets.

use super::WorkloadError;
use super::address::{MAC_RANGE, ip_address, ip_number, ip_range, mac_number};
use std::net::IpAddr;

/// Maximum number of flows: each has a header in memory.
pub const FLOWS_MAX: u32 = 1 << 16;

/// Protocol above IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// UDP.
    Udp,
    /// TCP: an acknowledging segment, sequence number 0.
    Tcp,
    /// Only the payload, with an IP protocol number.
    Raw(u8),
}

/// A VLAN tag (802.1Q).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vlan {
    /// VLAN number, 0 to 4095.
    pub id: u16,
    /// Priority, 0 to 7.
    pub priority: u8,
}

/// The order in which packets take flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// One after the other.
    Cycling,
    /// Each with equal probability.
    Random,
}

/// Values of a field, from the first to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    first: u128,
    last: u128,
}

impl Range {
    /// From `first` to `last`, both of them included.
    pub fn new(first: u128, last: u128) -> Self {
        Self {
            first,
            last: last.max(first),
        }
    }

    /// One value.
    pub fn one(value: u128) -> Self {
        Self::new(value, value)
    }

    fn length(self) -> u128 {
        (self.last - self.first).saturating_add(1)
    }

    fn at(self, index: u32) -> u128 {
        self.first + u128::from(index) % self.length()
    }
}

/// Flow k has the k-th value of every field; a field with fewer values begins again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flows {
    /// Number of flows, 1 to [`FLOWS_MAX`].
    pub count: u32,
    /// The order in which packets take them.
    pub order: Order,
    /// Protocol of all.
    pub protocol: Protocol,
    /// VLAN tag of all.
    pub vlan: Option<Vlan>,
    /// Whether the source MAC address is the interface's own. Then the digest leaves it out.
    pub has_own_mac: bool,
    is_ipv6: bool,
    source_ip: Range,
    destination_ip: Range,
    source_port: Range,
    destination_port: Range,
    source_mac: Range,
    destination_mac: Range,
}

impl Flows {
    /// One UDP flow between these addresses: port 9 (discard) to port 9.
    ///
    /// # Errors
    /// When one is IPv4 and the other IPv6.
    pub fn between(source: &str, destination: &str) -> Result<Self, WorkloadError> {
        let (source_first, source_last) = ip_range("source address", source)?;
        let (first, last) = ip_range("destination address", destination)?;
        if source_first.is_ipv4() != first.is_ipv4() {
            return Err(WorkloadError::Flows {
                parameter: "destination address",
                found: destination.into(),
                reason: format!("is of another family than the source {source}"),
                expected: "two IPv4 or two IPv6 addresses",
            });
        }
        let range = |first: IpAddr, last: IpAddr| Range::new(ip_number(first).0, ip_number(last).0);
        let mut flows = Self {
            count: 1,
            order: Order::Cycling,
            protocol: Protocol::Udp,
            vlan: None,
            has_own_mac: false,
            is_ipv6: first.is_ipv6(),
            source_ip: range(source_first, source_last),
            destination_ip: range(first, last),
            source_port: Range::one(9),
            destination_port: Range::one(9),
            source_mac: Range::one(0x02_00_00_00_00_01),
            destination_mac: Range::one(0x02_00_00_00_00_02),
        };
        flows.count = flows.longest();
        Ok(flows)
    }

    /// Sets the ports, each `PORT` or `FIRST-LAST`.
    ///
    /// # Errors
    /// When one is no port from 0 to 65535.
    pub fn with_ports(mut self, source: &str, destination: &str) -> Result<Self, WorkloadError> {
        self.source_port = port_range("source port", source)?;
        self.destination_port = port_range("destination port", destination)?;
        self.count = self.longest();
        Ok(self)
    }

    /// Sets the MAC addresses, each `ADDRESS` or `FIRST-LAST`.
    ///
    /// # Errors
    /// When one is no MAC address.
    pub fn with_macs(mut self, source: &str, destination: &str) -> Result<Self, WorkloadError> {
        self.source_mac = mac_range("source MAC", source)?;
        self.destination_mac = mac_range("destination MAC", destination)?;
        self.count = self.longest();
        Ok(self)
    }

    /// Sets the number of flows; by default, the number of values of the longest range.
    ///
    /// # Errors
    /// When it is not 1 to [`FLOWS_MAX`].
    pub fn with_count(mut self, count: u32) -> Result<Self, WorkloadError> {
        if !(1..=FLOWS_MAX).contains(&count) {
            return Err(WorkloadError::Flows {
                parameter: "flows",
                found: count.to_string(),
                reason: "is too few or too many".into(),
                expected: "1 to 65536",
            });
        }
        self.count = count;
        Ok(self)
    }

    /// Whether they are IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.is_ipv6
    }

    fn longest(&self) -> u32 {
        let ports_count = !matches!(self.protocol, Protocol::Raw(_));
        [
            self.source_ip,
            self.destination_ip,
            self.source_mac,
            self.destination_mac,
        ]
        .into_iter()
        .chain(
            [self.source_port, self.destination_port]
                .into_iter()
                .filter(|_| ports_count),
        )
        .map(Range::length)
        .max()
        .map_or(1, |longest| longest.min(u128::from(FLOWS_MAX)) as u32)
    }

    /// Source and destination address of a flow.
    pub fn addresses(&self, flow: u32) -> (IpAddr, IpAddr) {
        (
            ip_address(self.source_ip.at(flow), self.is_ipv6),
            ip_address(self.destination_ip.at(flow), self.is_ipv6),
        )
    }

    /// First and last source address, first and last destination address.
    pub fn address_ranges(&self) -> [(IpAddr, IpAddr); 2] {
        [self.source_ip, self.destination_ip].map(|range| {
            (
                ip_address(range.first, self.is_ipv6),
                ip_address(range.last, self.is_ipv6),
            )
        })
    }

    /// First and last source port, first and last destination port.
    pub fn port_ranges(&self) -> [(u16, u16); 2] {
        [self.source_port, self.destination_port]
            .map(|range| (range.first as u16, range.last as u16))
    }

    /// First source and first destination MAC address, each with the number of those that follow, itself included.
    pub fn mac_ranges(&self) -> [([u8; 6], u128); 2] {
        let (source, destination) = self.macs(0);
        [
            (source, self.source_mac.length()),
            (destination, self.destination_mac.length()),
        ]
    }

    /// Source and destination port of a flow.
    pub fn ports(&self, flow: u32) -> (u16, u16) {
        (
            self.source_port.at(flow) as u16,
            self.destination_port.at(flow) as u16,
        )
    }

    /// Source and destination MAC address of a flow, in the order of the wire.
    pub fn macs(&self, flow: u32) -> ([u8; 6], [u8; 6]) {
        let bytes = |range: Range| {
            let mut mac = [0; 6];
            mac.copy_from_slice(&(range.at(flow) as u64).to_be_bytes()[2..]);
            mac
        };
        (bytes(self.source_mac), bytes(self.destination_mac))
    }
}

fn port_range(parameter: &'static str, text: &str) -> Result<Range, WorkloadError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
        (Ok(first), Ok(last)) if first <= last => Ok(Range::new(first.into(), last.into())),
        _ => Err(WorkloadError::Flows {
            parameter,
            found: text.into(),
            reason: "is no port and no range of ports".into(),
            expected: "PORT or FIRST-LAST from 0 to 65535",
        }),
    }
}

fn mac_range(parameter: &'static str, text: &str) -> Result<Range, WorkloadError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (mac_number(parameter, first)?, mac_number(parameter, last)?);
    if first > last {
        return Err(WorkloadError::Flows {
            parameter,
            found: text.into(),
            reason: "ends before it begins".into(),
            expected: MAC_RANGE,
        });
    }
    Ok(Range::new(first.into(), last.into()))
}
