//! What a measurement of paths reports: while it runs, and at its end.

use std::collections::BTreeMap;

use parshall_core::ledger::Ledger;
use serde::Serialize;

use super::account::{Drops, Noise, PathAccount, StageTimes, Wait};
use super::budget::BudgetAccount;
use super::estimates::PathEstimate;
use super::selection::Unavailable;
use crate::measurement_error::MeasurementError;
use crate::session::{self, Progress};

/// Numbers of a measurement that runs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PathProgress {
    /// Packets that began.
    pub packets: u64,
    /// Of these, ended and counted in histograms.
    pub ended: u64,
    /// Packets and reads that are lost to the log.
    pub lost: u64,
    /// Rows in the log.
    pub rows: u64,
    /// Bytes in the log.
    pub log_bytes: u64,
    /// Times of the stages so far, without their buckets.
    pub stages: Vec<StageTimes>,
    /// What those see who ask for more.
    #[serde(skip)]
    pub account: PathAccount,
}

impl Progress for PathProgress {
    fn read(&mut self) -> Self {
        Self {
            stages: self.stages.clone(),
            account: PathAccount::default(),
            ..*self
        }
    }

    fn account(&self) -> serde_json::Result<String> {
        serde_json::to_string(&self.account)
    }
}

/// How a measurement ended.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// The final account; the hooks are `packets` and `reads`.
    pub ledger: Ledger,
    /// What stopped it before it was asked to end.
    #[serde(serialize_with = "session::as_text")]
    pub failure: Option<MeasurementError>,
    /// Stages that were measured.
    pub stages: Vec<&'static str>,
    /// What was asked for and is not there.
    pub unavailable: Vec<Unavailable>,
    /// Packets by code path.
    pub paths: BTreeMap<&'static str, u64>,
    /// Times of the stages.
    pub times: Vec<StageTimes>,
    /// Where packets spent their time, by how long the whole took.
    pub waits: Vec<Wait>,
    /// Packets whose group found no histograms of its own.
    pub ungrouped: u64,
    /// Drops by reason.
    pub drops: Vec<Drops>,
    /// Drops for still other reasons: `drops` has room for 256.
    pub uncounted_drops: u64,
    /// Packets that ended on a CPU that came online after the start: they are in no histogram.
    pub without_histogram: u64,
    /// Interrupts and softirqs.
    pub noise: Vec<Noise>,
    /// Times of reads.
    pub reads: Vec<Noise>,
    /// Runs that the kernel skipped, because the program was running already, by program.
    pub missed: Vec<(String, u64)>,
    /// What the probes between first and last stage cost, by code path.
    pub probe_cost: Vec<ProbeCost>,
    /// Whether that was asked for: the windows are then for it, and no sample of the time.
    pub measures_probe_cost: bool,
    /// Seconds during which the programs were attached.
    pub attached_s: f64,
    /// Seconds between their windows, and before the first and behind the last one.
    pub paused_s: f64,
    /// Windows in which they were.
    pub windows: u64,
    /// What a budget came to; `None`: there was none.
    pub budget: Option<BudgetAccount>,
    /// What the windows say of the whole time; empty with fewer than ten gaps between them.
    pub estimates: Vec<PathEstimate>,
}

/// What the probes between first and last stage cost the packets of one code path: the median of the whole in a window
/// with them less that in the next one without them, for each of these probes.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeCost {
    /// Code path.
    pub path: &'static str,
    /// Probes that were attached and detached in turns, and that packets of this path pass.
    pub probes: usize,
    /// Pairs of windows, one with them and one without.
    pub windows: usize,
    /// Cost of one probe, ns.
    pub ns_per_probe: f64,
    /// Half of its 95 % interval, ns.
    pub interval_ns: f64,
    /// Whether that interval lies above zero.
    pub is_distinguishable: bool,
}
