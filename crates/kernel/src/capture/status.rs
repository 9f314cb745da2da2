//! What a capture reports while it runs.

use serde::Serialize;

use crate::session::{Control, Progress};

/// Numbers of a capture that is being made.
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
