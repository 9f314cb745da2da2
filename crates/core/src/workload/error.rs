//! What can be wrong with a workload.

/// A workload that cannot be: its text is one line.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// Something of the flows.
    #[error("{parameter} {found:?}: {reason}; expected {expected}")]
    Flows {
        /// The parameter.
        parameter: &'static str,
        /// What was given.
        found: String,
        /// What is wrong with it.
        reason: String,
        /// What it may be.
        expected: &'static str,
    },
    /// A rate that cannot be.
    #[error("{parameter} {found}: expected {expected}")]
    Rate {
        /// The parameter.
        parameter: &'static str,
        /// What was given.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
}
