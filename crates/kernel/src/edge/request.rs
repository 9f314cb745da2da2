//! Which edges to record.

use std::path::PathBuf;

use serde::Deserialize;

use crate::capture::attachment::{Direction, HookKind};
use crate::os_text;

/// A place at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EdgeHook {
    /// Where packets leave: after the stack, before the interface's queue.
    Out,
    /// Where packets arrive: XDP in the driver.
    Xdp,
    /// Where packets arrive: behind the driver.
    In,
}

impl EdgeHook {
    /// Kind and direction of the hook.
    pub(super) fn place(self) -> (HookKind, Direction) {
        match self {
            Self::Out => (HookKind::Tcx, Direction::Out),
            Self::In => (HookKind::Tcx, Direction::In),
            Self::Xdp => (HookKind::XdpNative, Direction::In),
        }
    }
}

/// An edge.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EdgeRequest {
    /// Its interface.
    pub interface: String,
    /// Path of the interface's network namespace; none: that of the caller.
    #[serde(default, deserialize_with = "os_text::optional_path")]
    pub namespace: Option<PathBuf>,
    /// Where at the interface.
    pub hook: EdgeHook,
    /// Whether packets go no further than here; of `xdp`.
    #[serde(default)]
    pub is_discarding: bool,
    /// Sequence numbers below it are recorded; 0: packets are counted only.
    pub capacity: u32,
    /// UDP destination port of the stamped packets.
    pub port: u16,
    /// File for the times at the end: one `struct edge_time` for each sequence number; none: counts only.
    #[serde(default, deserialize_with = "os_text::optional_path")]
    pub path: Option<PathBuf>,
}

/// The edges of a measurement.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EdgesRequest {
    /// In the order of the accounts.
    pub edges: Vec<EdgeRequest>,
}
