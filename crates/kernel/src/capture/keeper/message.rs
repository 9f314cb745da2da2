//! Messages between keeper and subscribers: one JSON object each, with descriptors beside it.

use parshall_core::abi::RingLayout;
use serde::{Deserialize, Serialize};

use crate::capture::attachment::Direction;
use crate::capture::dispatcher::CompiledFilter;
use crate::capture::generation::{Hook, RunTime};
use crate::capture::kept_ring::{HookCount, Start};
use crate::capture::request::{RingRequest, Subscription};
use crate::net::interface::Interface;

/// Version of these messages and of the records in the ring.
pub const PROTOCOL_VERSION: u32 = 3;

/// From a subscriber to the keeper.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// First message of the creator, and only of it.
    #[serde(rename = "found")]
    Create {
        /// What to create.
        ring: RingRequest,
        /// The subscriber's version.
        version: u32,
    },
    /// First message of all other subscribers.
    Join {
        /// The subscriber's version.
        version: u32,
    },
    /// Takes in subscribers.
    Subscribe {
        /// What each wants, and its filter as a program.
        subscriptions: Vec<(Subscription, CompiledFilter)>,
    },
    /// Takes in subscribers that filter themselves until their filters are merged: they get every packet at once.
    SubscribeAtOnce {
        /// What each wants, and its filter as a program.
        subscriptions: Vec<(Subscription, CompiledFilter)>,
        /// The kernel is to wake the subscriber, which is one, at each packet: a bell comes beside the answer.
        is_immediate: bool,
    },
    /// Changes the filters of all subscribers of this connection, in their order. Their counts go on. They get every
    /// packet, and filter themselves, until the new filters are merged.
    Replace {
        /// What each wants from now on, and its filter as a program.
        subscriptions: Vec<(Subscription, CompiledFilter)>,
    },
    /// Asks what was counted so far.
    Account,
    /// Ends all subscriptions of this connection.
    Leave,
    /// Asks for the subscribers; it may come first, and nothing follows.
    List,
}

/// From the keeper to a subscriber.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// To `Create` and `Join`, with the ring's descriptor, and under slow-reader preference that of the
    /// register of readers.
    Ring(RingDescription),
    /// To `Subscribe` and `SubscribeAtOnce`.
    Subscribed {
        /// The bit of each.
        bits: Vec<usize>,
        /// For each lane: where what they want begins.
        starts: Vec<Start>,
    },
    /// To `Replace`: the subscribers get every packet that the hooks see from now on.
    Replaced,
    /// Unasked, after `Replace`: they get only the packets that their filters accept.
    Merged {
        /// The number of `Replace` requests up to then.
        changes: u64,
    },
    /// To `Account`.
    Account {
        /// For each subscription of the connection, by hook.
        counts: Vec<Vec<HookCount>>,
        /// By hook.
        run_times: Vec<RunTime>,
    },
    /// To `Leave`.
    Left(Left),
    /// To `List`.
    Listed(ListedRing),
    /// To anything: it was not done.
    Refused {
        /// Why, in one line.
        message: String,
        /// Whether the request itself was wrong.
        is_usage: bool,
    },
    /// To all members, unasked.
    Event(Event),
}

/// The final account of the subscriptions of one connection.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Left {
    /// For each subscription, by hook.
    pub counts: Vec<Vec<HookCount>>,
    /// By hook.
    pub run_times: Vec<RunTime>,
    /// For each lane: where their packets end.
    pub ends: Vec<u64>,
}

/// What happened to an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names of the fields say what they are")]
pub enum Event {
    /// It went down: no packets until it is up again.
    Down { interface: String },
    /// It is up again.
    Up { interface: String },
    /// It was removed. Another interface may get its name, and later its index.
    Gone {
        interface: String,
        index: u32,
        was_last: bool,
    },
    /// It has another name.
    Renamed { interface: String, name: String },
    /// Its MTU changed.
    Mtu { interface: String, bytes: u32 },
}

impl Event {
    /// In one line, for people.
    pub fn sentence(&self) -> String {
        match self {
            Self::Down { interface } => {
                format!("interface {interface} went down; the capture goes on when it is up again")
            }
            Self::Up { interface } => format!("interface {interface} is up again"),
            Self::Gone {
                interface,
                was_last,
                ..
            } => {
                let rest = if *was_last {
                    "it was the last one"
                } else {
                    "the others go on"
                };
                format!("interface {interface} is gone; {rest}")
            }
            Self::Renamed { interface, name } => {
                format!("interface {interface} has the name {name} now; the capture goes on")
            }
            Self::Mtu { interface, bytes } => {
                format!("interface {interface} has an MTU of {bytes} bytes now")
            }
        }
    }
}

/// What a reader must know of a ring.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RingDescription {
    /// Its name.
    pub name: String,
    /// Lanes, one a CPU.
    pub lanes: usize,
    /// Constants of the ring.
    pub layout: RingLayout,
    /// By number, with their names at this time.
    pub interfaces: Vec<Interface>,
    /// Numbers of those that were removed.
    pub removed: Vec<u8>,
    /// Number of the network namespace in which they are.
    pub namespace: u64,
    /// By number.
    pub hooks: Vec<Hook>,
    /// Where to report how far one has read, under slow-reader preference.
    pub reader_slot: Option<usize>,
}

impl RingDescription {
    /// Names of the interfaces whose sent packets are not captured. A loopback receives what it sends.
    pub fn interfaces_without_sent(&self) -> impl Iterator<Item = &str> {
        let has_outbound_hook = |number: usize| {
            self.hooks.iter().any(|hook| {
                usize::from(hook.interface_number) == number && hook.direction == Direction::Out
            })
        };
        self.interfaces
            .iter()
            .enumerate()
            .filter(move |(number, interface)| {
                !interface.is_loopback && !has_outbound_hook(*number)
            })
            .map(|(_, interface)| interface.name.as_str())
    }
}

/// A ring that runs, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedRing {
    /// Its name.
    pub name: String,
    /// Process of the keeper.
    pub keeper_pid: i32,
    /// Names of the hooks.
    pub hooks: Vec<String>,
    /// Names of the interfaces that were not removed, at this time.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// Their indices: an interface keeps its index, and not its name.
    #[serde(default)]
    pub indices: Vec<u32>,
    /// Number of the network namespace in which they are.
    #[serde(default)]
    pub namespace: u64,
    /// Bytes for each CPU.
    pub ring_bytes: u64,
    /// CPUs.
    pub lanes: usize,
    /// "fast" or "slow".
    pub policy: String,
    /// Whose members may join; `None`: root only.
    pub group: Option<String>,
    /// Its subscribers.
    pub subscribers: Vec<ListedSubscriber>,
}

/// A subscriber, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedSubscriber {
    /// Its process.
    pub pid: i32,
    /// Its filter; empty: everything.
    pub filter: String,
    /// Most bytes of a packet that it wants.
    pub snaplen: u32,
    /// Packets that passed its hooks so far.
    #[serde(default)]
    pub seen: u64,
    /// Of these, what its filter matched.
    #[serde(default)]
    pub matched: u64,
    /// Of these, what found no room in the ring. What a slow reader then lets others overwrite, only it can count.
    #[serde(default)]
    pub dropped: u64,
}
