//! The generator: a workload's packets, sent by the kernel from live frames, or from user space.
//!
//! [`feeder`] draws the plan ahead into a [`plan_ring`] and takes account of what was sent; [`sender`] is the thread that
//! sends, by a [`backend`]: [`live_frames`] ([`program`] is the kernel side), [`packet_socket`], [`express_socket`],
//! the latter two [`pace`]d in user space, and [`pktgen`], which draws by itself. [`session`] puts them together. What is sent is what
//! [`parshall_core::workload`] says, byte for byte.

mod backend;
mod error;
mod express_socket;
mod feeder;
mod interface;
#[cfg(test)]
mod layout_test;
mod live_frames;
mod pace;
mod packet_socket;
mod pktgen;
mod plan_ring;
mod program;
mod report;
mod request;
mod sender;
mod session;

pub use backend::BackendKind;
pub use error::GenerateError;
pub use interface::takes_xdp_frames;
pub use report::{Progress, Report};
pub use request::{Description, Request};
pub use session::Session;
