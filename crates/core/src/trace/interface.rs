//! An interface that packets were captured on.

/// Link type of Ethernet, `LINKTYPE_ETHERNET`.
pub const LINK_TYPE_ETHERNET: u16 = 1;
/// Link type of BSD's loopback, `LINKTYPE_NULL`: a protocol family in the host's byte order, then the packet.
pub const LINK_TYPE_NULL: u16 = 0;
/// The same in network byte order, `LINKTYPE_LOOP`.
pub const LINK_TYPE_LOOP: u16 = 108;
/// Link type of IPv4 packets without anything before them, `LINKTYPE_IPV4`.
pub const LINK_TYPE_IPV4: u16 = 228;
/// Link type of IPv6 packets without anything before them, `LINKTYPE_IPV6`.
pub const LINK_TYPE_IPV6: u16 = 229;
/// Link type of Linux cooked capture of version 2, `LINKTYPE_LINUX_SLL2`: tcpdump's for all interfaces.
pub const LINK_TYPE_LINUX_SLL2: u16 = 276;
/// Link type of packets that start with their IP header, `LINKTYPE_RAW`.
pub const LINK_TYPE_RAW: u16 = 101;
/// Link type of Linux cooked capture, `LINKTYPE_LINUX_SLL`: `AF_PACKET` without the link header.
pub const LINK_TYPE_LINUX_SLL: u16 = 113;

/// An interface, as in the interface description block of pcapng; classic pcap keeps the link type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name in the kernel, like `eth0`; empty when not known.
    pub name: String,
    /// A description by its administrator.
    pub description: Option<String>,
    /// Link type, a number of libpcap's registry.
    pub link_type: u16,
    /// Snapshot length; 0 means no limit.
    pub snaplen_bytes: u32,
    /// The capture filter, in pcap-filter(7) syntax.
    pub filter: Option<String>,
    /// Bits per second.
    pub speed_bps: Option<u64>,
    /// Operating system of the host of the interface, as `uname` reports it.
    pub os: Option<String>,
    /// Nanoseconds of one unit of the times in the file, rounded down; 1 in what Parshall writes. Times are
    /// converted by the reader, so this is only their precision.
    pub resolution_ns: u64,
}

impl Default for Interface {
    fn default() -> Self {
        Self {
            name: String::new(),
            description: None,
            link_type: LINK_TYPE_ETHERNET,
            snaplen_bytes: 0,
            filter: None,
            speed_bps: None,
            os: None,
            resolution_ns: 1,
        }
    }
}
