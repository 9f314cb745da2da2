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

/// What sends, in the thread that sends.
pub(super) trait Backend {
    /// Sends the plan until its end or until it is stopped. What was sent is told to the ring, also when it fails.
    fn run(&mut self, ring: &PlanRing) -> Result<(), GenerateError>;
}

/// An error of a system call that sending needs.
pub(super) fn failed(what: &'static str) -> impl Fn(std::io::Error) -> GenerateError {
    move |error| GenerateError::Kernel {
        what,
        reason: error.to_string(),
    }
}
