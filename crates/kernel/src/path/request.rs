//! What the path instrument is asked for.

use std::path::PathBuf;

use serde::Deserialize;

use crate::os_text;

/// What has histograms of its own, beside the code paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Nothing.
    #[default]
    None,
    /// The interface of the first stage.
    Interface,
    /// Addresses, ports and protocol.
    Connection,
    /// The control group of the socket.
    Cgroup,
    /// The name of the thread that sent it, or that last read from its socket.
    Command,
}

/// A measurement of paths.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathRequest {
    /// The log of packets; `-` is standard output. `None`: histograms only.
    #[serde(default, deserialize_with = "os_text::optional_path")]
    pub path: Option<PathBuf>,
    /// JSON object of the host, for the head of the log.
    pub environment: String,
    /// JSON object of the options, for the head of the log.
    pub options_text: String,
    /// Names of the stages.
    pub stages: Vec<String>,
    /// Follow the readers of sockets, too.
    pub reads: bool,
    /// Measure interrupts and softirqs, too.
    pub noise: bool,
    /// Capture filter (pcap-filter(7) syntax) from the network layer on.
    pub filter: Option<String>,
    /// Follow every n-th packet.
    pub every: u32,
    /// Only packets that begin at these interfaces.
    pub interfaces: Vec<String>,
    /// Only packets of this network namespace, which is entered for the netfilter hooks.
    #[serde(default, deserialize_with = "os_text::optional_path")]
    pub netns: Option<PathBuf>,
    /// Only packets of sockets below this control group.
    #[serde(default, deserialize_with = "os_text::optional_path")]
    pub cgroup: Option<PathBuf>,
    /// What has histograms of its own.
    pub group: Group,
    /// Groups that have histograms, at most.
    pub groups_max: u32,
    /// Packets that are followed at once, a power of two.
    pub packets_max: u32,
    /// Bytes of the ring for each CPU, a power of two.
    pub ring_bytes: u64,
    /// Part of the time that the programs are attached, in windows at random times.
    pub share: f64,
    /// Seed of these times.
    pub seed: u64,
    /// Measure the cost of the probes between first and last stage, in windows with and without them.
    pub probe_cost: bool,
}
