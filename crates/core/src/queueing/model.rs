//! A model as plain data, as in a model file.

use serde::{Deserialize, Serialize};

use super::amount::Amount;

/// An open network of queues that stations serve, between sources and sinks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Its name in results.
    pub name: String,
    /// Names of the packet classes.
    pub classes: Vec<String>,
    /// The sources of packets.
    pub sources: Vec<Source>,
    /// The stations that serve the queues. Services that end at the same time end in the order of the
    /// stations.
    pub stations: Vec<Station>,
    /// The queues. If a policy ranks two equal, the first is served.
    pub queues: Vec<Queue>,
    /// Names of the sinks, where packets leave.
    pub sinks: Vec<String>,
}

/// Sends packets of one class into the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Its name.
    pub name: String,
    /// The class of its packets.
    pub class: String,
    /// Time between packets; the first packet arrives one gap after the start.
    pub gap_ns: Amount,
    /// Length of a packet.
    #[serde(default = "zero")]
    pub size_bytes: Amount,
    /// Factor on the rate: every gap is divided by it.
    #[serde(default = "whole")]
    pub rate_factor: f64,
    /// Number of packets after which the source ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Where packets go: one copy for each transition.
    pub to: Vec<Transition>,
}

fn zero() -> Amount {
    Amount::Number(0.0)
}

/// One or more servers that serve queues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Station {
    /// Its name.
    pub name: String,
    /// Number of servers; each serves one packet or batch at a time.
    #[serde(default = "one")]
    pub servers: u32,
    /// How packets share the servers.
    #[serde(default)]
    pub kind: StationKind,
    /// Clock of the processor, MHz. Service times with `measured_at_mhz` are scaled to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_mhz: Option<f64>,
    /// Policies of the priorities; `fcfs` for priorities that have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<LevelPolicy>,
}

fn one() -> u32 {
    1
}

/// How packets share a station.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StationKind {
    /// A server serves one packet at a time, to its end. The smallest priority number is served first.
    #[default]
    NonPreemptive,
    /// A packet with a smaller priority number interrupts one with a larger number, which keeps its position and the work
    /// done.
    PreemptiveResume,
    /// All packets are served at once, each with an equal share of the servers, at most one server.
    ProcessorSharing,
    /// All packets are served at once, each by a server of its own: a delay (infinite server).
    Delay,
}

impl StationKind {
    /// Whether all packets at the station are in service at once.
    pub(super) fn is_shared(self) -> bool {
        matches!(self, Self::ProcessorSharing | Self::Delay)
    }
}

/// The policy among the queues of one priority.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LevelPolicy {
    /// The priority.
    #[serde(default)]
    pub priority: u32,
    /// How its queues are served.
    #[serde(flatten)]
    pub policy: Policy,
}

/// How queues of the same priority are served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Policy {
    /// First come, first served over all queues; at the same time in the order of the queues.
    #[default]
    Fcfs,
    /// One packet of each queue in turn; or, with a quantum, the quantum of each.
    RoundRobin {
        /// Maximum time of a service in one turn, ns. A packet with work left goes to the end of its queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        quantum_ns: Option<f64>,
    },
    /// Limited polling: up to `batch` packets of each queue in turn (Mogul and Ramakrishnan's quota,
    /// Linux's `dev_weight`), up to `budget` packets or `budget_ns` in a cycle, checked after each queue.
    Polling {
        /// Maximum number of packets of a queue in one visit.
        batch: u32,
        /// Number of packets after which a cycle ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        budget: Option<u32>,
        /// Time after which a cycle ends, ns.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        budget_ns: Option<f64>,
        /// Time for which the level yields to lower priorities after a cycle that spent its budget, ns; less if they
        /// have no packets.
        #[serde(default)]
        yield_ns: f64,
        /// Time to switch to a queue, ns.
        #[serde(default = "zero")]
        visit_ns: Amount,
        /// Time to wake the server, ns: the service of the first packet after the station was idle includes it, in place
        /// of `visit_ns`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wake_ns: Option<Amount>,
        /// Which queues are visited.
        #[serde(default)]
        visits: Visited,
    },
    /// Weighted fair queueing by start times (SFQ: Goyal, Vin, Cheng, SIGCOMM 1996).
    WeightedFair {
        /// The unit of the shares.
        tags: Tags,
    },
}

impl Policy {
    /// Whether the server visits empty queues too.
    pub(super) fn visits_all(&self) -> bool {
        matches!(
            self,
            Self::Polling {
                visits: Visited::All,
                ..
            }
        )
    }
}

/// Which queues a polling station visits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Visited {
    /// Queues with a servable packet. The service of the first packet of a visit includes `visit_ns`.
    #[default]
    Nonempty,
    /// All queues in turn, as in the polling models of the literature. The server takes `visit_ns` to switch to each
    /// queue, empty or not, and keeps switching while all are empty.
    All,
}

/// The unit of the shares of weighted fair queueing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tags {
    /// Bytes.
    Bytes,
    /// Packets.
    Packets,
    /// Service time.
    Time,
}

/// A first-come, first-served queue and the service times of its packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// The station that serves it.
    pub station: String,
    /// The smallest number is served first.
    #[serde(default)]
    pub priority: u32,
    /// Its weight under a weighted fair policy.
    #[serde(default = "whole")]
    pub weight: f64,
    /// Capacity in packets; a packet that does not fit is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_packets: Option<u32>,
    /// Capacity in bytes; a packet that does not fit is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// When a packet frees its place.
    #[serde(default)]
    pub frees: Frees,
    /// Service times; a packet has the first that applies to its class.
    pub service: Vec<Service>,
    /// Serves several packets together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batch>,
    /// When packets wait for room behind a blocking transition.
    #[serde(default)]
    pub blocking: Blocking,
    /// Where packets go after service. The packet takes the first transition; the others take clones of it.
    pub to: Vec<Transition>,
}

fn whole() -> f64 {
    1.0
}

/// When a packet frees its place in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Frees {
    /// At the start of its service, as in BSD's `ipintrq`.
    #[default]
    AtStart,
    /// At the end of its service, as in a descriptor ring.
    AtEnd,
}

/// When packets wait for room in a full queue that a blocking transition leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Blocking {
    /// Before service, which starts when there is room and reserves it. Meanwhile the server serves other packets.
    #[default]
    BeforeService,
    /// After service, at their server, which serves no packet until they leave. The packet that has waited longest leaves
    /// first.
    AfterService,
}

/// Service time of a packet: `(time_ns + per_byte_ns x bytes) x measured_at_mhz / clock_mhz + fixed_ns`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// The classes that it applies to; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// Time per packet, ns.
    pub time_ns: Amount,
    /// Time per byte of the packet, ns.
    #[serde(default)]
    pub per_byte_ns: f64,
    /// Clock of the processor on which the times were measured, MHz; None does not scale them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_at_mhz: Option<f64>,
    /// Time per packet that does not depend on the clock, such as bus accesses, ns.
    #[serde(default)]
    pub fixed_ns: f64,
}

impl Service {
    /// A service time for all classes that does not depend on a clock.
    pub fn plain(time_ns: Amount) -> Self {
        Self {
            classes: Vec::new(),
            time_ns,
            per_byte_ns: 0.0,
            measured_at_mhz: None,
            fixed_ns: 0.0,
        }
    }
}

/// Several packets served together: `cost_ns` once, and the service time of each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Maximum number of packets; a batch takes those that wait.
    pub packets: u32,
    /// Time per batch, ns.
    #[serde(default)]
    pub cost_ns: f64,
}

/// A route of one copy of a packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transition {
    /// The queues or sinks that it leads to. The probabilities sum to 1.
    pub to: Vec<Choice>,
    /// The classes that it applies to; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// The class that packets get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub becomes: Option<String>,
    /// Packets wait while the queue that it leads to is full, and are not lost; see [`Queue::blocking`].
    #[serde(default)]
    pub blocks: bool,
}

impl Transition {
    /// A transition of every class to one place.
    pub fn to(place: &str) -> Self {
        Self {
            to: vec![Choice {
                place: place.to_string(),
                probability: 1.0,
            }],
            classes: Vec::new(),
            becomes: None,
            blocks: false,
        }
    }
}

/// A place that a transition leads to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// A queue or a sink.
    pub place: String,
    /// Probability.
    #[serde(default = "whole")]
    pub probability: f64,
}
