//! What a log reports while it is written and at its end.

use parshall_core::ledger::Ledger;
use parshall_core::tcp_log::ListenerRow;
use serde::Serialize;

use super::budget::BudgetAccount;
use crate::measurement_error::MeasurementError;
use crate::session::{self, Progress};

/// Name of the thread of a log.
pub(super) const THREAD: &str = "parshall-tcp";

/// Counts of a log that is being written.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct LogProgress {
    /// State records taken so far.
    pub records: u64,
    /// Flows seen so far.
    pub flows: u64,
    /// Records overwritten so far, by the lanes' sequence numbers.
    pub overwritten: u64,
    /// Bytes in the file.
    pub log_bytes: u64,
}

impl Progress for LogProgress {
    fn read(&mut self) -> Self {
        *self
    }
}

/// How a log ended.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// The final account.
    pub ledger: Ledger,
    /// Flows in the log.
    pub flows: u64,
    /// Listeners whose accept queue was full when somebody came.
    pub listeners: Vec<ListenerRow>,
    /// Segments that came to listeners for which the kernel's table had no room.
    pub segments_unlisted: u64,
    /// What the budget came to; `None`: there is none.
    pub budget: Option<BudgetAccount>,
    /// What stopped the log before it was asked to end.
    #[serde(serialize_with = "session::as_text")]
    pub failure: Option<MeasurementError>,
}
