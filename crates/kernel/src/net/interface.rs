//! Interfaces as the kernel knows them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use parshall_core::filter::emit::LinkLayer;
use parshall_core::trace::{LINK_TYPE_ETHERNET, LINK_TYPE_RAW};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, netdevice, socket};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use super::netlink;
pub use super::netlink::{LinkSummary, QdiscSummary, links, qdiscs};

/// `ARPHRD_RAWIP` of `linux/if_arp.h`.
const ARPHRD_RAWIP: u16 = 519;

/// An interface of the network namespace of the calling thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Number in its namespace.
    pub index: u32,
    /// Link type of its packets, from libpcap's registry.
    pub link_type: u16,
    /// Whether what it sends comes back in.
    pub is_loopback: bool,
    /// Whether it was up when it was looked up.
    pub is_up: bool,
    /// Its MTU when it was looked up.
    pub mtu_bytes: u32,
}

/// Why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("interface {name}: {reason}")]
pub struct InterfaceError {
    /// Its name.
    pub name: String,
    /// What is wrong, and the remedy.
    pub reason: String,
}

impl InterfaceError {
    pub(crate) fn new(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            reason: reason.into(),
        }
    }
}

impl Interface {
    /// Link type of its packets, as filters know it.
    pub fn link_layer(&self) -> LinkLayer {
        if self.link_type == LINK_TYPE_RAW {
            LinkLayer::RawIp
        } else {
            LinkLayer::Ethernet
        }
    }

    /// Looks an interface up.
    ///
    /// # Errors
    /// When there is none of that name, or one whose packets have a link layer that cannot be captured.
    pub fn find(name: &str) -> Result<Self, InterfaceError> {
        let fail = |reason: String| InterfaceError::new(name, reason);
        let index = index(name).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NODEV) if name == "any" => {
                fail("Linux has none of this name; give -i for each interface".into())
            }
            Some(Errno::NODEV) => fail("no such interface; `ip link` lists them".into()),
            _ => fail(error.to_string()),
        })?;
        let link = netlink::link(index).map_err(|error| fail(error.to_string()))?;
        let link_type = match link.hardware_type {
            libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => LINK_TYPE_ETHERNET,
            // No link header: tun, ip tunnels, WireGuard.
            libc::ARPHRD_NONE
            | ARPHRD_RAWIP
            | libc::ARPHRD_TUNNEL
            | libc::ARPHRD_TUNNEL6
            | libc::ARPHRD_SIT => LINK_TYPE_RAW,
            other => {
                return Err(fail(format!(
                    "its link layer (ARPHRD {other}) is neither Ethernet nor bare IP; capture it with tcpdump"
                )));
            }
        };
        Ok(Self {
            name: name.into(),
            index,
            link_type,
            is_loopback: link.hardware_type == libc::ARPHRD_LOOPBACK,
            is_up: link.is_up,
            mtu_bytes: link.mtu_bytes.unwrap_or(0),
        })
    }
}

/// The index of an interface in the network namespace of the calling thread.
///
/// # Errors
/// `ENODEV` when there is none of that name.
pub fn index(name: &str) -> io::Result<u32> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(netdevice::name_to_index(&socket, name)?)
}

/// The present name of an interface in the network namespace of the calling thread.
///
/// # Errors
/// `ENODEV` when there is none with that index.
pub fn name_of(index: u32) -> io::Result<String> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(netdevice::index_to_name(&socket, index)?)
}

/// Packets that an interface of the calling thread's network namespace lost before they reached the stack; `None` when
/// there is no such interface.
pub fn missed_packets(index: u32) -> Option<u64> {
    let counters = netlink::link(index).ok()?.counters?;
    Some(counters.rx_missed_errors + counters.rx_fifo_errors)
}

/// Moves the calling thread into a network namespace.
///
/// # Errors
/// When the path is not that of a network namespace, or `CAP_SYS_ADMIN` is missing.
pub(crate) fn enter_namespace(path: &Path) -> io::Result<()> {
    enter_opened_namespace(File::open(path)?.as_fd())
}

/// The same with the open file of a network namespace.
pub(crate) fn enter_opened_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(
        namespace,
        Some(LinkNameSpaceType::Network),
    )?)
}

/// Inode of the calling thread's network namespace; 0 when it is not known.
pub fn namespace_number() -> u64 {
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |namespace| namespace.ino())
}

/// What the driver of an interface can do with XDP: the `NETDEV_XDP_ACT_...` of `linux/netdev.h`, 0 where the kernel
/// (before 6.3) does not report it.
pub(crate) fn xdp_features(index: u32) -> io::Result<u64> {
    let mut options = libbpf_sys::bpf_xdp_query_opts {
        sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: the options outlive the call and are as long as they say.
    let status = unsafe { libbpf_sys::bpf_xdp_query(index as i32, 0, &mut options) };
    if status < 0 {
        return Err(io::Error::from_raw_os_error(-status));
    }
    Ok(options.feature_flags)
}
