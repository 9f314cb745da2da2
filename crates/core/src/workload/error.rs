//! What can be wrong with a workload.

/// A workload that cannot be: its text is one line.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum WorkloadError {
    /// Something of the flows.
    #[error("{parameter} {found:?}: {reason}; expected {expected}")]
    Flows {
        parameter: &'static str,
        found: String,
        reason: String,
        expected: &'static str,
    },
    /// A rate that cannot be.
    #[error("{parameter} {found}: expected {expected}")]
    Rate {
        parameter: &'static str,
        found: String,
        expected: &'static str,
    },
}
