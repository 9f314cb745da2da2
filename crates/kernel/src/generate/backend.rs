//! The ways of sending: all of them take the same packets from the same plan.

use super::GenerateError;
use super::plan_ring::PlanRing;
use serde::{Deserialize, Serialize};

/// A way of sending.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendKind {
    /// Live XDP frames: a program in the kernel writes and paces them.
    #[default]
    Xdp,
    /// `AF_PACKET`: one copy and one buffer of the stack a packet, past the queueing discipline.
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
            Self::Xdp => Some(super::program::FRAME_BYTES_MAX),
            _ => None,
        }
    }
}

/// The account of a way of sending that draws by itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    /// Packets sent.
    pub packets: u64,
    /// Packets that the driver refused.
    pub errors: u64,
    /// From the first to the last, ns.
    pub elapsed_ns: Option<u64>,
}

/// What sends, in the thread that sends.
pub(super) trait Backend {
    /// Sends the plan until its end or until it is stopped. What was sent is told to the ring, also when it fails.
    fn run(&mut self, ring: &PlanRing) -> Result<(), GenerateError>;

    /// What it says that it sent, if it does not follow the plan.
    fn told(&self) -> Option<Told> {
        None
    }
}

/// An error of a system call that sending needs.
pub(super) fn failed(what: &'static str) -> impl Fn(std::io::Error) -> GenerateError {
    move |error| GenerateError::Kernel {
        what,
        reason: error.to_string(),
    }
}
