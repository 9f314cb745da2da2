//! The generator: a workload's packets, sent by the kernel from live frames, or from user space.
//!
//! [`feeder`] draws the one plan ahead and takes account of what was sent; a [`schedule`] assigns packets to senders,
//! and each has its packets in a [`plan_ring`]. [`sender`] is a thread that sends, by a [`backend`]; [`team`] is all of them.
//! [`link`] watches the interface. [`run`] is a run from its beginning to its [`report`], [`affinity`] the CPU of its
//! thread, and [`session`] who holds it.
//! The packets are those of [`parshall_core::workload`], byte for byte.

mod affinity;
pub(crate) mod backend;
mod departure_log;
mod error;
mod feeder;
mod interface;
mod link;
mod plan_ring;
mod report;
mod request;
mod run;
mod schedule;
mod sender;
mod session;
mod team;

pub use backend::BackendKind;
pub use error::GenerateError;
pub use interface::takes_xdp_frames;
pub use report::{GeneratorProgress, Report, SenderReport};
pub use request::{Description, Request};
pub use session::{Generator, start};
