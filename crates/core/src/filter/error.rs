//! Why filters cannot be merged.

use super::classic::ProgramError;
use crate::abi::{CAPTURE_SNAPLEN_MAX, CAPTURE_SUBSCRIBERS_MAX};

/// An invalid set of filters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum FilterError {
    /// No subscribers, or too many.
    #[error(
        "filters: {found} subscribers, expected 1 to {CAPTURE_SUBSCRIBERS_MAX}; detach the hook or share it among fewer"
    )]
    Subscriptions { found: usize },
    /// A number without a bit in the verdict.
    #[error("filters: subscriber {found}, expected 0 to {}; give it a free number", CAPTURE_SUBSCRIBERS_MAX - 1)]
    Subscriber { found: u32 },
    /// Two subscribers have the same bit.
    #[error("filters: subscriber {subscriber} occurs twice; give each a number of its own")]
    SubscriberTwice { subscriber: u32 },
    /// The snapshot length is too large.
    #[error(
        "filters: subscriber {subscriber} wants {found} bytes of a frame, expected 0 to {CAPTURE_SNAPLEN_MAX}; ask for fewer"
    )]
    Snaplen { subscriber: u32, found: u32 },
    /// One of the filters cannot be merged.
    #[error("subscriber {subscriber}: {source}")]
    Program {
        subscriber: u32,
        source: ProgramError,
    },
    /// Values of one question need more memory than an eBPF program has.
    #[error(
        "filters: a question needs more than {limit} values at once; simplify the arithmetic of the expressions"
    )]
    TooManyValues { limit: usize },
}
