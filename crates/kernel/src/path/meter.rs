//! What the programs cost while they are attached. The kernel times them for a part of that time only, because timing
//! costs, too.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::hooks::PathHooks;
use crate::programs::calls;

const TIMED: Duration = Duration::from_millis(20);
const PERIOD: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(super) struct Meter {
    /// While it is open, the kernel times the programs; since when, and the sum of all times by then.
    statistics: Option<(OwnedFd, Instant, u64)>,
    next: Option<Instant>,
    charged_until: Option<Instant>,
    /// CPU seconds in a second, as of the newest part.
    rate: f64,
    spent_s: f64,
}

impl Meter {
    /// CPU seconds of the programs so far.
    pub fn spent_s(&self) -> f64 {
        self.spent_s
    }

    /// Begins, when the programs have been attached; `since` when that began.
    pub fn open(&mut self, hooks: &PathHooks, since: Instant) {
        self.charged_until = Some(since);
        self.time(hooks);
    }

    /// Takes in what passed.
    pub fn update(&mut self, hooks: &PathHooks) {
        if let Some((_, since, _)) = &self.statistics {
            if since.elapsed() >= TIMED {
                self.end_part(hooks);
            }
        } else {
            self.charge();
            if self.next.is_some_and(|next| Instant::now() >= next) {
                self.time(hooks);
            }
        }
    }

    /// Ends, when the programs have been detached.
    pub fn close(&mut self, hooks: &PathHooks) {
        if self.statistics.is_some() {
            self.end_part(hooks);
        } else {
            self.charge();
        }
        self.charged_until = None;
        self.next = None;
    }

    fn time(&mut self, hooks: &PathHooks) {
        // Without the kernel's statistics nothing is known, and `PathHooks::costs` has nothing either.
        if let Ok(open) = calls::enable_run_time_statistics() {
            self.statistics = Some((open, Instant::now(), hooks.run_ns()));
        }
        self.next = Some(Instant::now() + PERIOD);
    }

    fn end_part(&mut self, hooks: &PathHooks) {
        if let Some((open, since, before_ns)) = self.statistics.take() {
            let past_s = since.elapsed().as_secs_f64();
            let spent_s = 1e-9 * hooks.run_ns().saturating_sub(before_ns) as f64;
            drop(open);
            self.rate = spent_s / past_s.max(1e-6);
        }
        self.charge();
    }

    fn charge(&mut self) {
        let now = Instant::now();
        if let Some(since) = self.charged_until.replace(now) {
            self.spent_s += self.rate * (now - since).as_secs_f64();
        }
    }
}
