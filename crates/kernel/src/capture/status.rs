//! Where a capture stands: posted by the threads that read, looked at by whoever made it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a capture stands.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Packets handed to files so far, all subscribers together.
    pub packets: u64,
    /// Their bytes on the wire.
    pub wire_bytes: u64,
    /// Packets lost so far, all subscribers together; an estimate until the end.
    pub lost: u64,
    /// What happened since the last look, each in one line.
    pub notices: Vec<String>,
    /// Whether all readers have stopped, by request or by themselves.
    pub has_ended: bool,
}

/// The one status of a capture; its clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct StatusBoard(Arc<Mutex<Status>>);

impl StatusBoard {
    /// Brings the numbers up to date.
    pub(super) fn post(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.status());
    }

    /// Adds a notice.
    pub(super) fn say(&self, notice: String) {
        self.status().notices.push(notice);
    }

    /// The status, whose notices are taken.
    pub(super) fn look(&self, has_ended: bool) -> Status {
        let mut status = self.status();
        Status {
            notices: std::mem::take(&mut status.notices),
            has_ended,
            ..*status
        }
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        // A thread that died while it held the status left it whole: nothing in between can fail.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
