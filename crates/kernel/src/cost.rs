//! The CPU time of the eBPF programs, from the kernel's run-time statistics. They are enabled in
//! short windows only, because they add tens of nanoseconds to every run.

use std::os::fd::OwnedFd;

use parshall_core::ledger::ProgramCost;

use crate::clock::monotonic_ns;
use crate::programs::calls;

const FIRST_WINDOW_NS: u64 = 50_000_000;
const WINDOW_NS: u64 = 100_000_000;
/// Time between two windows: short at first, so that a run of one second has several. It doubles
/// after each window, up to the maximum.
const FIRST_PERIOD_NS: u64 = 250_000_000;
const PERIOD_MAX_NS: u64 = 5_000_000_000;
/// The same for those who decide by the times.
const OFTEN_NS: u64 = 900_000_000;

/// What became of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Programs are timed from now on.
    Opened,
    /// They are not timed any more.
    Closed,
}

/// Opens and closes the windows.
#[derive(Debug)]
pub struct CostSampler {
    open: Option<OwnedFd>,
    next_ns: u64,
    period_ns: u64,
    period_max_ns: u64,
}

impl CostSampler {
    /// A sampler whose first window opens soon.
    pub fn new() -> Self {
        Self {
            open: None,
            next_ns: monotonic_ns() + FIRST_WINDOW_NS,
            period_ns: FIRST_PERIOD_NS,
            period_max_ns: PERIOD_MAX_NS,
        }
    }

    /// A sampler whose windows stay as close as the first two.
    pub fn often() -> Self {
        Self {
            period_max_ns: OFTEN_NS,
            ..Self::new()
        }
    }

    /// Opens or closes a window when it is due.
    pub fn update(&mut self) -> Option<Window> {
        let now = monotonic_ns();
        if now < self.next_ns {
            return None;
        }
        if self.open.take().is_some() {
            self.next_ns = now + self.period_ns;
            self.period_ns = self.period_max_ns.min(2 * self.period_ns);
            return Some(Window::Closed);
        }
        self.open = calls::enable_run_time_statistics().ok();
        self.next_ns = now + WINDOW_NS;
        Some(Window::Opened)
    }
}

/// The ledger's line for one program.
pub fn program_cost(name: &str, runs: u64, run_ns: u64) -> ProgramCost {
    ProgramCost {
        program: name.to_string(),
        sampled_runs: runs,
        ns_per_run: if runs == 0 {
            0.0
        } else {
            run_ns as f64 / runs as f64
        },
    }
}
