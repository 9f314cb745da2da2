//! Errors of workloads.

/// An invalid workload. The message is one line.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum WorkloadError {
    /// A parameter of the flows.
    #[error("{parameter} {found:?}: {reason}; expected {expected}")]
    Flows {
        parameter: &'static str,
        found: String,
        reason: String,
        expected: &'static str,
    },
    /// An invalid rate.
    #[error("{parameter} {found}: expected {expected}")]
    Rate {
        parameter: &'static str,
        found: String,
        expected: &'static str,
    },
}
