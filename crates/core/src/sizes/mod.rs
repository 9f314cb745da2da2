//! Packet size distributions: counting, the two-stage representation, drawing sizes from it.
//!
//! A size is the length of an IP packet in bytes, from the first byte of its IP header. The
//! representation and its text (`procfs`) are those of F. Schneider, "Performance evaluation of
//! packet capturing systems for high-speed networks", 2005, sections 4.2.2, 4.2.3 and A.2; docs/sizes.md
//! and the functions document our corrections.

mod built_in;
mod cells;
mod comparison;
mod counts;
mod error;
mod procfs;
mod spec;
#[cfg(test)]
mod tests;
mod text;
mod trace;
mod two_stage;

pub use built_in::{BUILT_IN, built_in};
pub use comparison::{Comparison, HeavyHitter, total_variation};
pub use counts::{SIZE_MAX_BYTES, SizeCounts};
pub use error::SizesError;
pub use procfs::{read_procfs, write_procfs};
pub use spec::SizeDistribution;
pub use text::{read_dist, read_sizes, write_dist, write_sizes};
pub use trace::{CountError, TraceLedger, count_trace, trace_gaps_ns};
pub use two_stage::{CellSize, Parameters, TwoStage};
