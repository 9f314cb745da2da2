//! A place where packets pass, and the link that holds a program there.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use libbpf_sys as sys;
use serde::{Deserialize, Serialize};

use super::CaptureError;
use crate::net::interface::{Interface, InterfaceError};
use crate::programs::InterfaceHook;

/// The kinds of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HookKind {
    /// XDP in the driver.
    XdpNative,
    /// XDP behind the driver.
    XdpGeneric,
    /// Traffic control.
    Tcx,
}

impl HookKind {
    /// As a ledger names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::XdpNative => "xdp",
            Self::XdpGeneric => "xdp-generic",
            Self::Tcx => "tcx",
        }
    }

    /// Whether its programs are XDP programs.
    pub fn is_xdp(self) -> bool {
        self != Self::Tcx
    }
}

/// Direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
}

/// A program at a hook, for as long as this lives.
#[derive(Debug)]
pub struct Attachment {
    link: OwnedFd,
}

impl Attachment {
    /// Attaches `program`.
    ///
    /// # Errors
    /// [`CaptureError::Interface`] with the kernel's error and the remedy.
    pub fn new(
        interface: &Interface,
        kind: HookKind,
        direction: Direction,
        program: BorrowedFd<'_>,
    ) -> Result<Self, CaptureError> {
        let hook = match kind {
            HookKind::XdpNative => InterfaceHook::NativeXdp,
            HookKind::XdpGeneric => InterfaceHook::GenericXdp,
            // First in line, so that packets which later programs drop are captured, as by a tap.
            HookKind::Tcx => InterfaceHook::Tcx {
                is_egress: direction == Direction::Out,
                is_first: true,
            },
        };
        hook.attach(program, interface.index)
            .map(|link| Self { link })
            .map_err(|error| {
                let reason = match (error.raw_os_error(), kind.is_xdp()) {
                    (Some(libc::EBUSY | libc::EEXIST), true) => format!(
                        "another XDP program is attached to it ({error}); take packets with --hook tcx"
                    ),
                    (Some(libc::EOPNOTSUPP | libc::EINVAL), true) => format!(
                        "the driver takes no XDP program in this mode ({error}); take packets with --hook tcx"
                    ),
                    (Some(libc::EINVAL), false) => format!(
                        "tcx cannot be attached, as where a kernel has none ({error}); take what comes in with \
                         --hook xdp --direction in, or both directions with --backend af-packet"
                    ),
                    _ => format!(
                        "{} cannot be attached: {error}; `parshall doctor` shows what this host offers",
                        kind.name()
                    ),
                };
                InterfaceError::new(&interface.name, reason).into()
            })
    }

    /// Puts another program in the place of the one that is there. No packet is missed in between.
    ///
    /// # Errors
    /// The kernel's error; `ENOLINK` when the interface was removed.
    pub fn replace(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: both descriptors are open, and there are no options.
        let status = unsafe {
            sys::bpf_link_update(self.link.as_raw_fd(), program.as_raw_fd(), std::ptr::null())
        };
        if status < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}
