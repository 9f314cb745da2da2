//! What a capture reports while it runs and at its end.

use serde::Serialize;

use super::CaptureError;
use super::ledger::CaptureLedger;
use crate::session::{self, Control, Progress};

/// Name of the threads of a capture.
pub(super) const THREAD: &str = "parshall-capture";

/// Counts of a running capture.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CaptureProgress {
    /// Packets handed to files so far, all subscribers together.
    pub packets: u64,
    /// Bytes of these packets on the wire.
    pub wire_bytes: u64,
    /// Packets lost so far, all subscribers together; an estimate until the end.
    pub lost: u64,
    /// What happened since the last status, each in one line.
    pub notices: Vec<String>,
    /// The account so far, of a capture by a ring.
    #[serde(skip)]
    pub account: CaptureAccount,
}

/// The account of a capture at its last tick.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CaptureAccount {
    /// The ledger so far.
    pub ledger: CaptureLedger,
    /// Time of the account, nanoseconds of `CLOCK_REALTIME`; 0: no account yet.
    pub until_time_ns: u64,
}

/// How a capture ended.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// The final account.
    pub ledger: CaptureLedger,
    /// Why the capture ended without a request to stop, or the first error of a file.
    #[serde(serialize_with = "session::as_text")]
    pub failure: Option<CaptureError>,
}

impl Progress for CaptureProgress {
    fn read(&mut self) -> Self {
        Self {
            notices: std::mem::take(&mut self.notices),
            account: CaptureAccount::default(),
            ..*self
        }
    }

    fn account(&self) -> serde_json::Result<String> {
        serde_json::to_string(&self.account)
    }
}

impl Control<CaptureProgress> {
    /// Adds a notice.
    pub(super) fn notify(&self, notice: String) {
        self.update(|progress| progress.notices.push(notice));
    }
}
