//! What the programs cost while they are attached, are being attached and detached. The kernel times them for a part of
//! that time only, because timing costs, too; otherwise packets are counted, and each costs what it did when it was timed.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::hooks::PathHooks;
use crate::programs::calls;

const TIMED: Duration = Duration::from_millis(20);
const PERIOD: Duration = Duration::from_millis(250);
/// With fewer packets, their mean cost says little.
const PACKETS_MIN: f64 = 20.0;
/// Of former parts in the mean.
const WEIGHT: f64 = 0.7;

/// Time of all runs that were timed, ns, and packets that began.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    run_ns: u64,
    packets: u64,
}

impl Counts {
    fn of(hooks: &PathHooks) -> Self {
        Self {
            run_ns: hooks.run_ns(),
            packets: hooks.arrays.account().seen,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Meter {
    /// While it is open, the kernel times the programs.
    statistics: Option<OwnedFd>,
    /// When to end that, or to begin it again.
    next: Option<Instant>,
    /// At the last look, and when the part began for whose packets the programs were timed.
    last: Counts,
    begun: Counts,
    /// Sums of parts, of which former ones weigh less: ns, and packets.
    parts: [f64; 2],
    spent_s: f64,
}

impl Meter {
    /// CPU seconds of the programs so far.
    pub fn spent_s(&self) -> f64 {
        self.spent_s
    }

    /// Before the programs are attached, or detached.
    pub fn begin(&mut self, hooks: &PathHooks) {
        self.look(hooks);
        // Without the kernel's statistics nothing is known, and `PathHooks::costs` has nothing either.
        if self.statistics.is_none() {
            self.statistics = calls::enable_run_time_statistics().ok();
        }
    }

    /// When they have been attached.
    pub fn open(&mut self, hooks: &PathHooks) {
        self.look(hooks);
        self.begun = self.last;
        self.next = Some(Instant::now() + TIMED);
    }

    /// Takes in what passed.
    pub fn update(&mut self, hooks: &PathHooks) {
        self.look(hooks);
        if self.next.is_none_or(|next| Instant::now() < next) {
            return;
        }
        if self.statistics.take().is_some() {
            let part = [
                (self.last.run_ns - self.begun.run_ns) as f64,
                (self.last.packets - self.begun.packets) as f64,
            ];
            for (sum, own) in self.parts.iter_mut().zip(part) {
                *sum = WEIGHT * *sum + own;
            }
            self.next = Some(Instant::now() + PERIOD);
        } else {
            self.begin(hooks);
            self.open(hooks);
        }
    }

    /// When they have been detached.
    pub fn close(&mut self, hooks: &PathHooks) {
        self.look(hooks);
        self.statistics = None;
        self.next = None;
    }

    /// Adds what was timed since the last look, or what its packets cost.
    fn look(&mut self, hooks: &PathHooks) {
        let now = Counts::of(hooks);
        let before = std::mem::replace(&mut self.last, now);
        let [ns, packets] = self.parts;
        self.spent_s += 1e-9
            * if self.statistics.is_some() {
                now.run_ns.saturating_sub(before.run_ns) as f64
            } else if packets >= PACKETS_MIN {
                now.packets.saturating_sub(before.packets) as f64 * ns / packets
            } else {
                0.0
            };
    }
}
