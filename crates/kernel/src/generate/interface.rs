//! The interface that sends.

use super::GenerateError;
use crate::net::interface::{self, InterfaceError};
use std::path::Path;

/// `NETDEV_XDP_ACT_NDO_XMIT` of linux/netdev.h.
const TAKES_FRAMES: u64 = 1 << 2;

/// Moves the calling thread into a network namespace; none: it stays.
pub(super) fn enter(namespace: Option<&Path>) -> Result<(), GenerateError> {
    let Some(path) = namespace else { return Ok(()) };
    interface::enter_namespace(path).map_err(|source| GenerateError::Namespace {
        path: path.display().to_string(),
        source,
    })
}

/// The index of an interface in the namespace of the calling thread.
pub(super) fn index(name: &str) -> Result<u32, GenerateError> {
    interface::index(name).map_err(|error| {
        let reason = match error.raw_os_error() {
            Some(libc::ENODEV) => {
                "no such interface; `ip link` lists them, --netns selects a namespace".into()
            }
            _ => error.to_string(),
        };
        InterfaceError::new(name, reason).into()
    })
}

/// Whether XDP frames that are redirected to the interface would leave; for a veth they do when its peer
/// has NAPI on. None where the kernel (before 6.3) does not report it.
///
/// # Errors
/// When there is no such interface or the namespace cannot be entered.
pub fn takes_xdp_frames(name: &str) -> Result<Option<bool>, GenerateError> {
    match interface::xdp_features(index(name)?) {
        Ok(0) => Ok(None),
        Ok(features) => Ok(Some(features & TAKES_FRAMES != 0)),
        Err(error) => {
            let reason = format!("the kernel does not say what it can do: {error}");
            Err(InterfaceError::new(name, reason).into())
        }
    }
}
