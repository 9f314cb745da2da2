//! What the interface is.

use super::GenerateError;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

/// `NETDEV_XDP_ACT_NDO_XMIT` of linux/netdev.h.
const TAKES_FRAMES: u64 = 1 << 2;

/// Moves the calling thread into a network namespace.
pub(super) fn enter(namespace: Option<&Path>) -> Result<(), GenerateError> {
    let Some(path) = namespace else { return Ok(()) };
    let failed = |source: std::io::Error| GenerateError::Namespace {
        path: path.display().to_string(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|errno| failed(errno.into()))
}

/// The index of an interface in the namespace of the calling thread.
pub(super) fn index(name: &str) -> Result<u32, GenerateError> {
    let missing = |reason: &str| GenerateError::Interface {
        interface: name.into(),
        reason: reason.into(),
    };
    let text = CString::new(name).map_err(|_| missing("no interface has such a name"))?;
    // SAFETY: a string that ends in 0 and outlives the call.
    match unsafe { libc::if_nametoindex(text.as_ptr()) } {
        0 => Err(missing(
            "there is none; `ip link` names those there are, and --netns another namespace",
        )),
        index => Ok(index),
    }
}

/// Whether XDP frames that are redirected to the interface would leave; for a veth they do when its peer
/// has NAPI on. None where the kernel (before 6.3) does not tell.
///
/// # Errors
/// When there is no such interface or the namespace cannot be entered.
pub fn takes_xdp_frames(name: &str) -> Result<Option<bool>, GenerateError> {
    let index = index(name)?;
    let mut options = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: the options outlive the call and are as long as they say.
    let status = unsafe { libbpf_sys::bpf_xdp_query(index as i32, 0, &mut options) };
    if status < 0 {
        return Err(GenerateError::Interface {
            interface: name.into(),
            reason: format!(
                "the kernel does not tell what it can do: {}",
                std::io::Error::from_raw_os_error(-status)
            ),
        });
    }
    match options.feature_flags {
        0 => Ok(None),
        flags => Ok(Some(flags & TAKES_FRAMES != 0)),
    }
}
