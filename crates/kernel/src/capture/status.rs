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
    /// Their bytes on the wire.
    pub wire_bytes: u64,
    /// Packets lost so far, all subscribers together; an estimate until the end.
    pub lost: u64,
    /// What happened since the last status, each in one line.
    pub notices: Vec<String>,
}

/// How a capture ended.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// The final account.
    pub ledger: CaptureLedger,
    /// What stopped it before it was asked to end, or the first file that took no more.
    #[serde(serialize_with = "session::as_text")]
    pub failure: Option<CaptureError>,
}

impl Progress for CaptureProgress {
    fn read(&mut self) -> Self {
        Self {
            notices: std::mem::take(&mut self.notices),
            ..*self
        }
    }
}

impl Control<CaptureProgress> {
    /// Adds a notice.
    pub(super) fn notify(&self, notice: String) {
        self.update(|progress| progress.notices.push(notice));
    }
}
