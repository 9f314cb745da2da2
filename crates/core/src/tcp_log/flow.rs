//! One row of the flow table: a connection and its account.

use crate::abi::{
    FLOW_BEGAN_BEFORE, FLOW_ECN, FLOW_IS_IPV6, FLOW_PASSIVE, FLOW_SACK, FLOW_TIMESTAMPS,
    FLOW_WINDOW_SCALING, TcpFlowRecord,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Calls a macro with the columns of the flow table, in the order of the file. A line has the name, the type, and the
/// value in a new row, made of the kernel's record.
macro_rules! flow_columns {
    ($callback:ident) => {
        $callback! { |record, flag, time_ns|
            /// Number of the flow in this log, from 1.
            flow: u32 => record.flow;
            /// Address of this host.
            local_address: IpAddr => address(record.local_address, flag(FLOW_IS_IPV6));
            /// Port of this host.
            local_port: u16 => record.local_port;
            /// Address of the peer.
            remote_address: IpAddr => address(record.remote_address, flag(FLOW_IS_IPV6));
            /// Port of the peer.
            remote_port: u16 => record.remote_port;
            /// Name of the congestion control module.
            congestion_control: String => text(&record.congestion_control).unwrap_or_default();
            /// The kernel's number of the socket.
            socket_cookie: u64 => record.socket_cookie;
            /// The control group of the socket.
            cgroup_id: u64 => record.cgroup_id;
            /// Its path, if known.
            cgroup: Option<String> => None;
            /// The kernel's number of the network namespace.
            netns_cookie: u64 => record.netns_cookie;
            /// Inode of the network namespace, as `lsns` shows it.
            netns_inode: u32 => record.netns_inode;
            /// The command that owns the socket.
            command: Option<String> => text(&record.command);
            /// Its process.
            pid: Option<u32> => (record.pid != 0).then_some(record.pid);
            /// The user that owns the socket.
            uid: u32 => record.uid;
            /// A passive open: accept(2), not connect(2).
            passive: bool => flag(FLOW_PASSIVE);
            /// Older than the log.
            began_before: bool => flag(FLOW_BEGAN_BEFORE);
            /// The MSS option of the peer.
            mss_clamp_bytes: u32 => record.mss_clamp_bytes;
            /// The MSS option of this host.
            advmss_bytes: u32 => record.advmss_bytes;
            /// SACK was negotiated.
            sack: bool => flag(FLOW_SACK);
            /// Timestamps were negotiated.
            timestamps: bool => flag(FLOW_TIMESTAMPS);
            /// ECN was negotiated.
            ecn: bool => flag(FLOW_ECN);
            /// Window scaling was negotiated.
            window_scaling: bool => flag(FLOW_WINDOW_SCALING);
            /// First event, `CLOCK_REALTIME`.
            first_time_ns: i64 => time_ns;
            /// Last event, `CLOCK_REALTIME`.
            last_time_ns: i64 => time_ns;
            /// The socket was destroyed, or the handshake failed.
            ended: bool => false;
            /// Packets that reached the hooks.
            packets_seen: u64 => 0;
            /// Packets that the filters rejected.
            packets_filtered: u64 => 0;
            /// Packets that were thinned out.
            packets_thinned: u64 => 0;
            /// Packets in the log.
            packets_logged: u64 => 0;
            /// Packets that the full ring dropped.
            packets_dropped: u64 => 0;
            /// Packets overwritten in the ring.
            packets_overwritten: u64 => 0;
            /// Packets that could not be written to the file.
            packets_unwritten: u64 => 0;
            /// Events other than packets that reached the hooks.
            events_seen: u64 => 0;
            /// Such events in the log.
            events_logged: u64 => 0;
            /// Such events that the full ring dropped.
            events_dropped: u64 => 0;
            /// Such events overwritten in the ring.
            events_overwritten: u64 => 0;
            /// Such events that could not be written to the file.
            events_unwritten: u64 => 0;
            /// The token of the MPTCP connection that this is a subflow of.
            mptcp_token: Option<u32> => (record.mptcp_token != 0).then_some(record.mptcp_token);
            /// Segments that the kernel counts as sent again since the log began (`total_retrans`).
            retransmits_total: Option<u32> => None;
            /// Of these, those of events in the log.
            retransmits_logged: Option<u32> => None;
            /// Of these, those that a filter or a full queue of this host took.
            retransmits_failed: Option<u32> => None;
            /// Of these, those of events that were lost to the log.
            retransmits_lost: Option<u32> => None;
            /// Attempts that failed before the kernel counted them.
            retransmits_refused: Option<u32> => None;
            /// How the connection ended, of [`ENDING_NAMES`](super::columns::ENDING_NAMES).
            ending: Option<&'static str> => None;
            /// This host sent a FIN.
            fin_sent: Option<bool> => None;
            /// The peer sent a FIN.
            fin_received: Option<bool> => None;
            /// This host sent a reset.
            rst_sent: Option<bool> => None;
            /// The peer sent a reset.
            rst_received: Option<bool> => None;
            /// Bytes that the peer acknowledged since the log first saw the connection, as the kernel counts.
            bytes_acked: Option<u64> => None;
            /// Bytes that came since then.
            bytes_received: Option<u64> => None;
        }
    };
}
pub(super) use flow_columns;

macro_rules! flow_row {
    (|$record:ident, $flag:ident, $time_ns:ident|
        $($(#[$doc:meta])* $name:ident: $type:ty => $value:expr;)*) => {
        /// A connection. The last row of a flow in a log is valid.
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
        pub struct FlowRow { $($(#[$doc])* pub $name: $type,)* }

        impl FlowRow {
            /// From the kernel's record, with all accounts 0. `monotonic_offset_ns` is that of the log's clock.
            pub fn new($record: &TcpFlowRecord, monotonic_offset_ns: i64) -> Self {
                let $flag = |bit: u32| $record.flags & bit != 0;
                let $time_ns = ($record.time_ns as i64).wrapping_add(monotonic_offset_ns);
                Self { $($name: $value,)* }
            }
        }
    };
}

flow_columns!(flow_row);

impl FlowRow {
    /// 4 or 6.
    pub fn ip_version(&self) -> u8 {
        if self.local_address.is_ipv4() { 4 } else { 6 }
    }
}

impl Default for FlowRow {
    fn default() -> Self {
        Self::new(&TcpFlowRecord::default(), 0)
    }
}

pub(super) fn address(bytes: [u8; 16], is_ipv6: bool) -> IpAddr {
    if is_ipv6 {
        IpAddr::V6(Ipv6Addr::from(bytes))
    } else {
        IpAddr::V4(Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]))
    }
}

/// The text of a zero-terminated field, `None` when it is empty.
pub(super) fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    (end > 0).then(|| String::from_utf8_lossy(&bytes[..end]).into_owned())
}
