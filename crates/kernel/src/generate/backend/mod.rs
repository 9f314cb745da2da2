//! What packets are sent by: all back ends send the same packets from the same plan.
//!
//! [`live_frames`] are sent by a [`program`] in the kernel, with a trace in [`trace_memory`]. [`af_packet`] and [`af_xdp`]
//! send from user space, [`pace`]d there; [`pktgen`] draws by itself.

pub(crate) mod af_packet;
pub(crate) mod af_xdp;
pub(crate) mod frame_limit;
pub(crate) mod live_frames;
mod pace;
pub(crate) mod pktgen;
pub(crate) mod program;
pub(crate) mod trace_memory;

use super::GenerateError;
use super::plan_ring::PlanRing;
use serde::{Deserialize, Serialize};

/// A back end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendKind {
    /// Live XDP frames: a program in the kernel writes and paces them.
    #[default]
    Xdp,
    /// `AF_PACKET`: one copy and one buffer of the stack a packet, past the queue discipline.
    AfPacket,
    /// `AF_XDP`: without a copy where the driver can, otherwise with one.
    AfXdp,
    /// The kernel's packet generator: it draws by itself.
    Pktgen,
}

impl BackendKind {
    /// The longest frame it sends, bytes; None: what the interface takes.
    pub fn frame_bytes_max(self) -> Option<usize> {
        match self {
            Self::Xdp => Some(frame_limit::FRAME_BYTES_MAX),
            _ => None,
        }
    }
}

/// What a back end that draws by itself counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnCounts {
    /// Packets sent.
    pub packets: u64,
    /// Packets that the driver refused.
    pub errors: u64,
    /// From the first to the last, ns.
    pub elapsed_ns: Option<u64>,
}

/// What sends, in the thread that sends.
pub(crate) trait Backend {
    /// Sends the plan until its end or until it is stopped. The ring is set to what was sent, also when it fails.
    fn run(&mut self, ring: &PlanRing) -> Result<(), GenerateError>;

    /// What it counted itself, if it does not follow the plan.
    fn own_counts(&self) -> Option<OwnCounts> {
        None
    }
}
