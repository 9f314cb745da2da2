//! The generator: a workload's packets, sent by the kernel from live frames, or from user space.
//!
//! [`feeder`] draws the one plan ahead and takes account of what was sent; [`deal`] gives each sender its [`share`] of it, in a
//! [`plan_ring`]. [`sender`] is a thread that sends, by a [`backend`]: [`live_frames`] ([`program`] is the kernel side, [`trace_memory`] a
//! trace for it),
//! [`packet_socket`], [`express_socket`], the latter two [`pace`]d in user space, and [`pktgen`], which draws by itself;
//! [`team`] is all of them. [`link`] tells what became of the interface. [`run`] is a run from its beginning to its [`report`], [`seat`] is where its thread sits, and [`session`] who holds it.
//! What is sent is what [`parshall_core::workload`] says, byte for byte.

mod backend;
mod deal;
mod departures;
mod error;
mod express_socket;
mod feeder;
mod interface;
#[cfg(test)]
mod layout_test;
mod link;
mod live_frames;
mod pace;
mod packet_socket;
mod pktgen;
mod plan_ring;
mod program;
mod report;
mod request;
mod run;
mod seat;
mod sender;
mod session;
mod share;
mod team;
mod trace_memory;

pub use backend::BackendKind;
pub use error::GenerateError;
pub use interface::takes_xdp_frames;
pub use report::{GeneratorProgress, Report, SenderReport};
pub use request::{Description, Request};
pub use session::Generator;
