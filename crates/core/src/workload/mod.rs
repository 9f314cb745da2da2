//! Workloads: size distribution x gap distribution x flows x seed. The kernel sends the packets calculated
//! here, byte for byte: the [`Plan`] has the fields of every packet, and [`Packets`] builds it.

mod account;
mod address;
mod checksum;
mod digest;
mod error;
mod flows;
mod header;
mod packets;
mod plan;
mod rate;
mod replay;
#[cfg(test)]
mod tests;

pub use account::{Account, GapAccount, Quantiles, SizeAccount};
pub use digest::Digest;
pub use error::WorkloadError;
pub use flows::{FLOWS_MAX, Flows, Order, Protocol, Range, Vlan};
pub use header::{HEADER_BYTES_MAX, Header, Layout};
pub use packets::{FRAME_BYTES_MIN, Packets, STAMP_BYTES};
pub use plan::{Packet, Plan, Workload};
pub use rate::{LINE_OVERHEAD_BYTES, Rate};
pub use replay::{Replay, ReplayError, ReplayLimits};
