//! What the interface is and what it counts.

use super::GenerateError;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::{CStr, CString};
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

/// What the interface counted; 32 bits that wrap.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counters {
    pub transmitted: u32,
    pub dropped: u32,
    pub errors: u32,
}

impl Counters {
    /// Of an interface in the namespace of the calling thread; None if the kernel does not tell.
    pub fn read(name: &str) -> Option<Self> {
        let mut list = std::ptr::null_mut();
        // SAFETY: the pointer is written by the call, and freed below if it succeeds.
        if unsafe { libc::getifaddrs(&mut list) } != 0 {
            return None;
        }
        let mut found = None;
        let mut next = list;
        while !next.is_null() {
            // SAFETY: an entry of the list that is not yet freed.
            let entry = unsafe { &*next };
            next = entry.ifa_next;
            if entry.ifa_addr.is_null() || entry.ifa_data.is_null() {
                continue;
            }
            // SAFETY: names are strings that end in 0, and addresses have a family.
            let (entry_name, family) =
                unsafe { (CStr::from_ptr(entry.ifa_name), (*entry.ifa_addr).sa_family) };
            if i32::from(family) == libc::AF_PACKET && entry_name.to_bytes() == name.as_bytes() {
                // SAFETY: the data of a packet address is a struct rtnl_link_stats, which begins
                // with eight 32-bit counters.
                let counters = unsafe { *entry.ifa_data.cast::<[u32; 8]>() };
                found = Some(Self {
                    transmitted: counters[1],
                    errors: counters[5],
                    dropped: counters[7],
                });
            }
        }
        // SAFETY: the list of the call above, freed once.
        unsafe { libc::freeifaddrs(list) };
        found
    }
}
