//! One row of the table of listeners: an accept queue, and what found no room there.

use super::flow::{address, text};
use crate::abi::TcpListener;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A listener. The last row of a listener in a log is valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerRow {
    /// Number of the listener in this log, from 1.
    pub listener: u32,
    /// Address that it listens at; unspecified: all of this host.
    pub local_address: IpAddr,
    /// Port that it listens at.
    pub local_port: u16,
    /// 4 or 6.
    pub ip_version: u8,
    /// The kernel's number of the socket.
    pub socket_cookie: u64,
    /// The kernel's number of the network namespace.
    pub netns_cookie: u64,
    /// Inode of the network namespace, as `lsns` shows it.
    pub netns_inode: u32,
    /// The control group of the socket.
    pub cgroup_id: u64,
    /// Its path, if known.
    pub cgroup: Option<String>,
    /// The command that called listen(2), or held the socket when the log began.
    pub command: Option<String>,
    /// Its process.
    pub pid: Option<u32>,
    /// The limit of the accept queue (`sk_max_ack_backlog`).
    pub backlog_connections: u32,
    /// Length of the accept queue (`sk_ack_backlog`) when the last segment of a handshake came.
    pub queue_last_connections: u32,
    /// Greatest length of the accept queue when a segment of a handshake came.
    pub queue_longest_connections: u32,
    /// SYNs that the full accept queue refused.
    pub syns_refused: u64,
    /// Segments that would have completed a handshake, and that the full accept queue refused.
    pub acks_refused: u64,
    /// First refusal, `CLOCK_REALTIME`.
    pub first_refused_time_ns: Option<i64>,
    /// Last refusal, `CLOCK_REALTIME`.
    pub last_refused_time_ns: Option<i64>,
    /// The socket no longer listens.
    pub ended: bool,
}

impl ListenerRow {
    /// From the kernel's record, without the path of its control group. `monotonic_offset_ns` is that of the log's clock.
    pub fn new(record: &TcpListener, monotonic_offset_ns: i64) -> Self {
        let time_ns = |monotonic_ns: u64| {
            (monotonic_ns != 0).then(|| (monotonic_ns as i64).wrapping_add(monotonic_offset_ns))
        };
        let is_ipv6 = record.is_ipv6 != 0;
        Self {
            listener: record.listener,
            local_address: address(record.local_address, is_ipv6),
            local_port: record.local_port,
            ip_version: if is_ipv6 { 6 } else { 4 },
            socket_cookie: record.socket_cookie,
            netns_cookie: record.netns_cookie,
            netns_inode: record.netns_inode,
            cgroup_id: record.cgroup_id,
            cgroup: None,
            command: text(&record.command),
            pid: (record.pid != 0).then_some(record.pid),
            backlog_connections: record.backlog,
            queue_last_connections: record.queue_last,
            queue_longest_connections: record.queue_longest,
            syns_refused: record.syns_refused,
            acks_refused: record.acks_refused,
            first_refused_time_ns: time_ns(record.first_refused_ns),
            last_refused_time_ns: time_ns(record.last_refused_ns),
            ended: record.has_ended != 0,
        }
    }

    /// Whether its accept queue was full when somebody came.
    pub fn has_refused(&self) -> bool {
        self.syns_refused > 0 || self.acks_refused > 0
    }
}
