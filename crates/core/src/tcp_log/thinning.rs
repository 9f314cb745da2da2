//! How the packets of a log are thinned, where that changes while it is written.

use serde::{Deserialize, Serialize};

/// How packets are thinned from a time on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThinningRow {
    /// From when, ns of `CLOCK_REALTIME`.
    pub time_ns: i64,
    /// Every n-th packet of each flow is logged; 0: packets are not observed.
    pub packets_per_log: u32,
    /// What the log cost since the row before, as a share of one CPU.
    pub cost_share: f64,
}
