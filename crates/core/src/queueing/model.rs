//! A model as plain data: what JSON, TOML and the Python builder describe.

use serde::{Deserialize, Serialize};

use super::amount::Amount;

/// An open network of queues that stations serve, between sources and sinks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// What it is called in results.
    pub name: String,
    /// Names of the classes of packets.
    pub classes: Vec<String>,
    /// Where packets come from.
    pub sources: Vec<Source>,
    /// What serves the queues. Their order settles what happens first at equal times.
    pub stations: Vec<Station>,
    /// Where packets wait. Their order settles which of two alike queues is served first.
    pub queues: Vec<Queue>,
    /// Names of the places where packets leave.
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
    /// Time between packets; the first comes one gap after the start.
    pub gap_ns: Amount,
    /// Length of packets.
    #[serde(default = "no_length")]
    pub size_bytes: Amount,
    /// By how much its packets come faster than `gap_ns` says: every gap is divided by it.
    #[serde(default = "whole")]
    pub rate_factor: f64,
    /// The source ends after so many packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Where they go: one copy each.
    pub to: Vec<Transition>,
}

fn no_length() -> Amount {
    Amount::Number(0.0)
}

/// A number of servers that work on queues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Station {
    /// Its name.
    pub name: String,
    /// How many packets (or batches) it serves at a time.
    #[serde(default = "one")]
    pub servers: u32,
    /// How the packets share it.
    #[serde(default)]
    pub kind: StationKind,
    /// Clock of a processor: services that name the clock they were measured at are scaled to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_mhz: Option<f64>,
    /// How queues of the same priority are served; `fcfs` for priorities that are not named.
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
    /// A server works on one packet at a time, of the smallest priority number; once begun, to its end.
    #[default]
    NonPreemptive,
    /// A packet of a smaller priority number interrupts a larger one, which keeps its place and the
    /// work done on it.
    PreemptiveResume,
    /// All packets at once, each at the same share of the servers, none faster than one server.
    ProcessorSharing,
    /// All packets at once, as many servers as there are packets: a delay.
    Delay,
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
    /// Whoever came first, over all queues; at equal times in the order of the queues.
    #[default]
    Fcfs,
    /// One packet of each queue in turn; with a quantum, so much time of each.
    RoundRobin {
        /// The longest service in one go; what is left goes to the end of its queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        quantum_ns: Option<f64>,
    },
    /// Limited polling: up to `batch` packets of each queue in turn (Mogul and Ramakrishnan's quota,
    /// Linux's `dev_weight`), up to `budget` packets or `budget_ns` a cycle, checked after each queue.
    Polling {
        /// Most packets of a queue in one visit.
        batch: u32,
        /// Packets after which a cycle ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        budget: Option<u32>,
        /// Time after which a cycle ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        budget_ns: Option<f64>,
        /// After a cycle that used up its budget, lower priorities have the station for so long,
        /// or until they have nothing to do.
        #[serde(default)]
        yield_ns: f64,
        /// Time of a visit's beginning: of switching to the queue.
        #[serde(default)]
        visit_ns: f64,
        /// Which queues are visited.
        #[serde(default)]
        visits: Visited,
    },
    /// Weighted fair queueing by start times (SFQ: Goyal, Vin, Cheng, SIGCOMM 1996).
    WeightedFair {
        /// What a packet's share is counted in.
        tags: Tags,
    },
}

impl Policy {
    /// Whether the server goes around among all queues, empty or not.
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
    /// Those with a packet that can be served; `visit_ns` is part of the service of a visit's first packet.
    #[default]
    Nonempty,
    /// All of them in turn, without an end, as in the polling models of the literature: the server takes
    /// `visit_ns` to switch to each queue, empty or not, and to go around when all are empty.
    All,
}

/// What weighted fair queueing shares out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tags {
    /// Bytes of packets.
    Bytes,
    /// Packets.
    Packets,
    /// Time of the station.
    Time,
}

/// A first-come, first-served queue and the work that its packets need.
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
    /// Its share among queues of a weighted fair policy.
    #[serde(default = "whole")]
    pub weight: f64,
    /// Most packets that it holds; more are lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_packets: Option<u32>,
    /// Most bytes that it holds; a packet that does not fit is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// When a packet's place is free again.
    #[serde(default)]
    pub frees: Frees,
    /// Work of its packets; of several the first that is for a packet's class.
    pub service: Vec<Service>,
    /// Several packets served together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batch>,
    /// When packets wait for room where a transition that blocks leads.
    #[serde(default)]
    pub blocking: Blocking,
    /// Where packets go after service: one copy each. The first carries the packet on, the others
    /// are clones of it.
    pub to: Vec<Transition>,
}

fn whole() -> f64 {
    1.0
}

/// When a packet's place in a queue is free again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Frees {
    /// When its service starts: it is taken out of the queue first, as from BSD's `ipintrq`.
    #[default]
    AtStart,
    /// When its service ends, as a descriptor ring's.
    AtEnd,
}

/// When packets wait for room in a full queue that a blocking transition leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Blocking {
    /// Before their service, which starts when there is room; the room is theirs from then on. The server serves
    /// others meanwhile.
    #[default]
    BeforeService,
    /// After their service, at their server, which serves nobody until they leave. Who has waited longest for room
    /// leaves first.
    AfterService,
}

/// Work of a packet: `(law_ns + per_byte_ns x bytes) x measured_at_mhz / clock_mhz + fixed_ns`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// The classes it is for; all, when none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// Time per packet.
    pub law_ns: Amount,
    /// Time per byte of the packet.
    #[serde(default)]
    pub per_byte_ns: f64,
    /// Clock of the processor that the times were measured on; without it they are not scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_at_mhz: Option<f64>,
    /// Time per packet that the clock does not change, such as accesses to the bus.
    #[serde(default)]
    pub fixed_ns: f64,
}

impl Service {
    /// A service that is the same law for all classes and does not depend on a clock.
    pub fn plain(law_ns: Amount) -> Self {
        Self {
            classes: Vec::new(),
            law_ns,
            per_byte_ns: 0.0,
            measured_at_mhz: None,
            fixed_ns: 0.0,
        }
    }
}

/// Several packets served together: `cost_ns` once and each one's own service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Most packets in a batch; it takes what is there.
    pub packets: u32,
    /// Time per batch.
    #[serde(default)]
    pub cost_ns: f64,
}

/// A way on for one copy of a packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transition {
    /// The queues or sinks it leads to, and how often each; the probabilities sum to 1.
    pub to: Vec<Choice>,
    /// The classes it is for; all, when none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// The class that packets have from here on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub becomes: Option<String>,
    /// Packets wait while the queue it leads to is full, so that it loses none of them; `Queue::blocking` says where.
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
    /// How often.
    #[serde(default = "whole")]
    pub probability: f64,
}
