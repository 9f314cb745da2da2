//! On which CPU the thread that draws runs, when every CPU has a sender.

use rustix::thread::{CpuSet, sched_getaffinity};

use crate::cpus;

/// A sender is ahead by so many packets before the thread that draws moves to its CPU: some milliseconds of a flood.
const LEAD: u64 = 1 << 14;

/// The CPU of the thread that draws. It takes time from the sender there, and no sender can be
/// further ahead than the rings hold, so it runs beside the one that is ahead. The kernel alone
/// would leave it beside the same sender for 0.1 s or more.
pub(super) struct Affinity {
    // None when there is a CPU without a sender: the kernel finds it.
    cpus: Option<Vec<usize>>,
    at: Option<usize>,
}

impl Affinity {
    /// Of the calling thread, beside senders on these CPUs.
    pub fn beside(cpus: &[usize]) -> Self {
        let is_taken = |allowed: CpuSet| {
            (0..CpuSet::MAX_CPU).all(|cpu| !allowed.is_set(cpu) || cpus.contains(&cpu))
        };
        let is_crowded = cpus.len() > 1 && sched_getaffinity(None).is_ok_and(is_taken);
        Self {
            cpus: is_crowded.then(|| cpus.to_vec()),
            at: None,
        }
    }

    /// Moves to the sender that is ahead; `sent` are the packets of each sender.
    pub fn settle(&mut self, sent: impl Iterator<Item = u64> + Clone) {
        let Some(cpus) = &self.cpus else { return };
        let least = sent.clone().min().unwrap_or(0);
        let Some((most, cpu)) = sent.zip(cpus).max() else {
            return;
        };
        if most - least < LEAD || self.at == Some(*cpu) {
            return;
        }
        // Where that is not allowed, drawing is only slower.
        let _ = cpus::bind_to(*cpu);
        self.at = Some(*cpu);
    }
}
