//! What a TCP state log is asked for.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use parshall_core::abi::{
    FILTER_HOSTS_MAX, FILTER_PIDS_MAX, FILTER_PORTS_MAX, RingLayout, TcpOptions,
};
use parshall_core::tcp_log::Compression;

use serde::Deserialize;

use crate::measurement_error::MeasurementError;
use crate::os_text;
use crate::ring::{self, Preference};

/// The directions that are observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Directions {
    /// Inbound packets only: the outbound hook is not even attached.
    In,
    /// Outbound packets only.
    Out,
    /// Both.
    Both,
}

/// Options of a TCP state log.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct TcpLogOptions {
    /// Log every n-th packet of each flow; 1 logs all.
    pub packets_per_log: u32,
    /// Thin out as many packets as keep the cost below this share of one CPU.
    pub budget: Option<f64>,
    /// Log when the flow's cwnd or ssthresh changed (and every n-th packet when that is not 1).
    pub on_change: bool,
    /// Either end has one of these ports; empty: all.
    pub ports: Vec<u16>,
    /// Either end has one of these addresses; empty: all.
    pub hosts: Vec<IpAddr>,
    /// Which packets.
    #[serde(rename = "direction")]
    pub directions: Directions,
    /// Only sockets below this directory of the cgroup-v2 mount; `None`: all.
    #[serde(deserialize_with = "os_text::optional_path")]
    pub cgroup: Option<PathBuf>,
    /// Only sockets of the network namespace with this inode number; `None`: all.
    pub netns_inode: Option<u32>,
    /// Only sockets that one of these processes made or holds as the log begins, and connections that were
    /// accepted from them; numbers of the initial PID namespace. Empty: all.
    pub pids: Vec<u32>,
    /// Bytes of the packet ring for each CPU, a power of two: one half for inbound packets, the
    /// other for all else.
    pub ring_bytes: u64,
    /// Who waits for whom.
    #[serde(rename = "policy")]
    pub preference: Preference,
    /// A passive open that is silent for longer has failed, seconds.
    pub handshake_silence_s: f64,
    /// How the rows of the log are compressed.
    pub compression: Compression,
}

/// TCP waits at most 120 s before it sends anything again (`TCP_RTO_MAX`): of a handshake that is silent
/// for longer no SYN-ACK will follow. By default the last one is sent after 31 s, and given up after 63.
const HANDSHAKE_SILENCE_S: f64 = 120.0;

impl Default for TcpLogOptions {
    fn default() -> Self {
        Self {
            packets_per_log: 1,
            budget: None,
            on_change: false,
            ports: Vec::new(),
            hosts: Vec::new(),
            directions: Directions::Both,
            cgroup: None,
            netns_inode: None,
            pids: Vec::new(),
            ring_bytes: 16 << 20,
            preference: Preference::FastReader,
            handshake_silence_s: HANDSHAKE_SILENCE_S,
            compression: Compression::default(),
        }
    }
}

impl TcpLogOptions {
    /// The options as the programs take them.
    ///
    /// # Errors
    /// [`MeasurementError::Option`] names the option that is out of bounds.
    pub fn to_kernel(
        &self,
        packet_layout: RingLayout,
        flow_layout: RingLayout,
        cgroup_id: u64,
    ) -> Result<TcpOptions, MeasurementError> {
        let mut options = TcpOptions {
            inbound_layout: RingLayout {
                writers_alone: u64::from(ring::bottom_halves_run_alone()),
                ..packet_layout
            },
            packet_layout,
            flow_layout,
            cgroup_id,
            host_count: self.hosts.len() as u32,
            port_count: self.ports.len() as u32,
            pid_count: self.pids.len() as u32,
            pid_namespace: pid_namespace(),
            packets_per_log: self.packets_per_log,
            on_change: u32::from(self.on_change),
            handshake_silence_ns: (self.handshake_silence_s * 1e9) as u64,
            netns_inode: self.netns_inode.unwrap_or(0),
            outbound_only: u32::from(self.directions == Directions::Out),
            adapts: u32::from(self.budget.is_some()),
            ..TcpOptions::default()
        };
        if self.packets_per_log == 0 {
            return Err(MeasurementError::Option {
                option: "ppl",
                value: "0".into(),
                expected: "1 (every packet) or more".into(),
            });
        }
        for (option, count, things, most) in [
            ("port", self.ports.len(), "ports", FILTER_PORTS_MAX),
            ("host", self.hosts.len(), "addresses", FILTER_HOSTS_MAX),
            ("pid", self.pids.len(), "processes", FILTER_PIDS_MAX),
        ] {
            if count > most {
                return Err(MeasurementError::Option {
                    option,
                    value: format!("{count} {things}"),
                    expected: format!("at most {most}"),
                });
            }
        }
        options.pids[..self.pids.len()].copy_from_slice(&self.pids);
        options.ports[..self.ports.len()].copy_from_slice(&self.ports);
        for (slot, host) in options.hosts.iter_mut().zip(&self.hosts) {
            let octets = match host {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            let (high, low) = octets.split_at(8);
            for (word, half) in slot.iter_mut().zip([high, low]) {
                *word = half
                    .iter()
                    .rev()
                    .fold(0, |word, byte| word << 8 | u64::from(*byte));
                *word = u64::from_le(*word).to_le();
            }
        }
        Ok(options)
    }
}
/// Inode of the first namespace of process IDs, `PROC_PID_INIT_INO` of the kernel.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Inode of the calling process' namespace of process IDs; 0 for the first one, whose IDs the kernel itself uses.
fn pid_namespace() -> u32 {
    let inode = std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
    if inode == FIRST_PID_NAMESPACE {
        0
    } else {
        inode as u32
    }
}
