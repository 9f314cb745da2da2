//! Many packet filters as one program.

mod build;
pub mod classic;
mod condition;
mod decision;
pub mod ebpf;
pub mod emit;
mod error;
mod merged;
mod stage;
mod value;

pub use error::FilterError;
pub use merged::{MergedFilter, Subscription};
