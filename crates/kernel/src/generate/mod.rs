//! The generator: a workload's packets, sent by the kernel from live frames.
//!
//! [`program`] is the kernel side, [`sender`] the thread that runs it, [`feeder`] draws the plan ahead and takes
//! account of what was sent, [`session`] puts them together. What is sent is what
//! [`parshall_core::workload`] says, byte for byte.

mod error;
mod feeder;
mod interface;
#[cfg(test)]
mod layout_test;
mod program;
mod report;
mod request;
mod sender;
mod session;

pub use error::GenerateError;
pub use interface::takes_xdp_frames;
pub use report::{Progress, Report};
pub use request::{Description, Request};
pub use session::Session;
