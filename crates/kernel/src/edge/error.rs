//! Why times cannot be recorded.

use std::io;

use crate::capture::CaptureError;
use crate::net::interface::InterfaceError;
use crate::session::{InstrumentError, SessionError};

/// An error of the edges: one line with the remedy.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document variants and fields")]
pub enum EdgeError {
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error(transparent)]
    Attach(#[from] CaptureError),
    #[error("network namespace {path}: {source}; `ip netns list` names those there are")]
    Namespace { path: String, source: io::Error },
    #[error("edge {interface}: capacity {capacity}: expected 1 to {maximum} packets")]
    Capacity {
        interface: String,
        capacity: u32,
        maximum: u32,
    },
    #[error(
        "edge {interface}: cannot be loaded: {reason}; `parshall doctor` shows what this host offers"
    )]
    Load { interface: String, reason: String },
    #[error("{path}: cannot be written: {source}")]
    Write { path: String, source: io::Error },
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl InstrumentError for EdgeError {
    fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Interface(_) | Self::Namespace { .. } | Self::Capacity { .. }
        )
    }
}
