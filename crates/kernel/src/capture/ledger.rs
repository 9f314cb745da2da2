//! The account of a capture: for each subscriber, what its interfaces saw, and what became of it.

use parshall_core::ledger::{Cost, HookAccount};
use serde::{Deserialize, Serialize};

/// What one hook counted for one subscriber, and what was read of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookTally {
    /// Interface, direction and kind.
    pub hook: String,
    /// Packets that passed the hook.
    pub seen: u64,
    /// Packets that the filter matched.
    pub matched: u64,
    /// Of these, packets dropped because the ring was full.
    pub dropped: u64,
    /// Packets that were read from the ring.
    pub read: u64,
}

/// The account of one subscriber.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriberAccount {
    /// The file, `-`, or nothing for packets that went to a program.
    pub file: String,
    /// The filter; empty: everything.
    pub filter: String,
    /// Most bytes of a packet.
    pub snaplen: u32,
    /// One account per interface, both directions together: `seen = filtered + thinned + logged + lost`.
    /// `thinned` is what came after `--count` was reached.
    pub interfaces: Vec<HookAccount>,
    /// What the kernel and the reader counted at each hook.
    pub hooks: Vec<HookTally>,
}

/// The whole account of a capture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CaptureLedger {
    /// Name of the ring.
    pub ring: String,
    /// One account a subscriber.
    pub subscribers: Vec<SubscriberAccount>,
    /// Packets of all subscribers that were overwritten before this process read them, by the gaps
    /// in the lanes' numbers: an upper bound for each subscriber.
    pub sequence_gaps: u64,
    /// What it cost; `programs` are the hooks with everything that they do for all subscribers.
    pub cost: Cost,
    /// False while hooks run, and when the keeper died: such an account need not balance.
    pub complete: bool,
}
