//! Counts of packets read from the ring, by subscriber and hook. With the kernel's counts they make the accounts.

use parshall_core::ledger::{HookAccount, Lost};
use parshall_core::trace::{Statistics, Written};

use super::keeper::message::RingDescription;
use super::kept_ring::HookCount;
use super::ledger::HookTally;

/// Counts of packets read from the ring.
#[derive(Clone)]
pub(super) struct Tally {
    /// By subscriber and hook.
    pub read: Vec<Vec<u64>>,
    /// Packets beyond the requested count: by subscriber and interface.
    pub thinned: Vec<Vec<u64>>,
    /// Bytes on the wire of the packets written to files.
    pub wire_bytes: u64,
    hook_interfaces: Vec<usize>,
}

impl Tally {
    /// No packets read yet.
    pub fn new(ring: &RingDescription, subscribers: usize) -> Self {
        Self {
            read: vec![vec![0; ring.hooks.len()]; subscribers],
            thinned: vec![vec![0; ring.interfaces.len()]; subscribers],
            wire_bytes: 0,
            hook_interfaces: ring
                .hooks
                .iter()
                .map(|hook| usize::from(hook.interface_number))
                .collect(),
        }
    }

    /// The account of one subscriber by interface, as its file contains it. `common` has the values
    /// that all interfaces share. Until the capture is complete, an unread packet may still be in
    /// the ring: at most `gaps` packets were overwritten.
    pub fn statistics(
        &self,
        subscriber: usize,
        counts: &[HookCount],
        gaps: u64,
        common: Statistics,
    ) -> Vec<Statistics> {
        let mut all: Vec<Statistics> = self.thinned[subscriber]
            .iter()
            .map(|thinned| Statistics {
                // The format has one counter for filtered and thinned packets.
                filtered: *thinned,
                ..common
            })
            .collect();
        for (hook, count) in counts.iter().enumerate() {
            let statistics = &mut all[self.hook_interfaces[hook]];
            let dropped_or_read = count.dropped + self.read[subscriber][hook];
            let mut overwritten = count.matched.saturating_sub(dropped_or_read);
            if !common.complete {
                overwritten = overwritten.min(gaps);
            }
            statistics.seen += count.seen;
            statistics.filtered += count.seen.saturating_sub(count.matched);
            statistics.lost.dropped += count.dropped;
            statistics.lost.overwritten += overwritten;
        }
        all
    }

    /// The account of one subscriber by interface, when its file has been written.
    pub fn accounts(
        &self,
        subscriber: usize,
        statistics: &[Statistics],
        written: &[Written],
        ring: &RingDescription,
    ) -> Vec<HookAccount> {
        statistics
            .iter()
            .enumerate()
            .map(|(interface, statistics)| {
                let written = written.get(interface).copied().unwrap_or_default();
                let thinned = self.thinned[subscriber][interface];
                HookAccount {
                    hook: ring.interfaces[interface].name.clone(),
                    seen: statistics.seen,
                    filtered: statistics.filtered - thinned,
                    thinned,
                    logged: written.logged(),
                    lost: Lost {
                        unwritten: written.unwritten,
                        ..statistics.lost
                    },
                    unowned: 0,
                }
            })
            .collect()
    }

    /// Counts of kernel and reader for one subscriber, by hook.
    pub fn hooks(
        &self,
        subscriber: usize,
        counts: &[HookCount],
        ring: &RingDescription,
    ) -> Vec<HookTally> {
        counts
            .iter()
            .zip(&ring.hooks)
            .zip(&self.read[subscriber])
            .map(|((count, hook), read)| HookTally {
                hook: hook.name(),
                seen: count.seen,
                matched: count.matched,
                dropped: count.dropped,
                read: *read,
            })
            .collect()
    }
}
