//! One row of the flow table: what a connection is, and its account.

use crate::abi::{
    FLOW_BEGAN_BEFORE, FLOW_ECN, FLOW_IS_IPV6, FLOW_PASSIVE, FLOW_SACK, FLOW_TIMESTAMPS,
    FLOW_WINDOW_SCALING, TcpFlowRecord,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A connection. The last row of a flow in a log is the one that holds.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FlowRow {
    /// Number of the flow in this log, from 1.
    pub flow: u32,
    /// Address of this host.
    pub local_address: IpAddr,
    /// Port of this host.
    pub local_port: u16,
    /// Address of the peer.
    pub remote_address: IpAddr,
    /// Port of the peer.
    pub remote_port: u16,
    /// Name of the congestion control module.
    pub congestion_control: String,
    /// The kernel's number of the socket.
    pub socket_cookie: u64,
    /// The control group of the socket.
    pub cgroup_id: u64,
    /// Its path, when it could be found.
    pub cgroup: Option<String>,
    /// The kernel's number of the network namespace.
    pub netns_cookie: u64,
    /// Inode of the network namespace, as `lsns` shows it.
    pub netns_inode: u32,
    /// The command that owns the socket.
    pub command: Option<String>,
    /// Its process.
    pub pid: Option<u32>,
    /// The user that owns the socket.
    pub uid: u32,
    /// Accepted, not connected.
    pub passive: bool,
    /// Older than the log.
    pub began_before: bool,
    /// The MSS option of the peer.
    pub mss_clamp_bytes: u32,
    /// The MSS option of this host.
    pub advmss_bytes: u32,
    /// Selective acknowledgements were agreed.
    pub sack: bool,
    /// Time stamps were agreed.
    pub timestamps: bool,
    /// Explicit congestion notification was agreed.
    pub ecn: bool,
    /// Window scaling was agreed.
    pub window_scaling: bool,
    /// First sight, `CLOCK_REALTIME`.
    pub first_time_ns: i64,
    /// Last sight, `CLOCK_REALTIME`.
    pub last_time_ns: i64,
    /// The socket was destroyed.
    pub ended: bool,
    /// Packets that reached the hooks.
    pub packets_seen: u64,
    /// Packets that the filters did not want.
    pub packets_filtered: u64,
    /// Packets that were thinned out.
    pub packets_thinned: u64,
    /// Packets in the log.
    pub packets_logged: u64,
    /// Packets that the ring refused.
    pub packets_dropped: u64,
    /// Packets overwritten in the ring.
    pub packets_overwritten: u64,
    /// Packets that the file could not take.
    pub packets_unwritten: u64,
    /// Events that are no packets, and reached the hooks.
    pub events_seen: u64,
    /// Such events in the log.
    pub events_logged: u64,
    /// Such events that the ring refused.
    pub events_dropped: u64,
    /// Such events overwritten in the ring.
    pub events_overwritten: u64,
    /// Such events that the file could not take.
    pub events_unwritten: u64,
}

impl FlowRow {
    /// From the kernel's record, with all accounts 0. `monotonic_offset_ns` is that of the log's clock.
    pub fn new(record: &TcpFlowRecord, monotonic_offset_ns: i64) -> Self {
        let flag = |bit: u32| record.flags & bit != 0;
        let time_ns = (record.time_ns as i64).wrapping_add(monotonic_offset_ns);
        Self {
            flow: record.flow,
            local_address: address(record.local_address, flag(FLOW_IS_IPV6)),
            local_port: record.local_port,
            remote_address: address(record.remote_address, flag(FLOW_IS_IPV6)),
            remote_port: record.remote_port,
            congestion_control: text(&record.congestion_control).unwrap_or_default(),
            socket_cookie: record.socket_cookie,
            cgroup_id: record.cgroup_id,
            cgroup: None,
            netns_cookie: record.netns_cookie,
            netns_inode: record.netns_inode,
            command: text(&record.command),
            pid: (record.pid != 0).then_some(record.pid),
            uid: record.uid,
            passive: flag(FLOW_PASSIVE),
            began_before: flag(FLOW_BEGAN_BEFORE),
            mss_clamp_bytes: record.mss_clamp_bytes,
            advmss_bytes: record.advmss_bytes,
            sack: flag(FLOW_SACK),
            timestamps: flag(FLOW_TIMESTAMPS),
            ecn: flag(FLOW_ECN),
            window_scaling: flag(FLOW_WINDOW_SCALING),
            first_time_ns: time_ns,
            last_time_ns: time_ns,
            ended: false,
            packets_seen: 0,
            packets_filtered: 0,
            packets_thinned: 0,
            packets_logged: 0,
            packets_dropped: 0,
            packets_overwritten: 0,
            packets_unwritten: 0,
            events_seen: 0,
            events_logged: 0,
            events_dropped: 0,
            events_overwritten: 0,
            events_unwritten: 0,
        }
    }

    /// 4 or 6.
    pub fn ip_version(&self) -> u8 {
        if self.local_address.is_ipv4() { 4 } else { 6 }
    }
}

fn address(bytes: [u8; 16], is_ipv6: bool) -> IpAddr {
    if is_ipv6 {
        IpAddr::V6(Ipv6Addr::from(bytes))
    } else {
        IpAddr::V4(Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]))
    }
}

/// The text of a zero-terminated field, `None` when it is empty.
fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    (end > 0).then(|| String::from_utf8_lossy(&bytes[..end]).into_owned())
}
