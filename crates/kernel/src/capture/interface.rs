//! Interfaces as the kernel knows them.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use parshall_core::filter::emit::LinkLayer;
use parshall_core::trace::{LINK_TYPE_ETHERNET, LINK_TYPE_RAW};
use rustix::net::{AddressFamily, SocketType, socket};
use serde::{Deserialize, Serialize};

use super::CaptureError;

/// `ARPHRD_RAWIP` of `linux/if_arp.h`.
const ARPHRD_RAWIP: u16 = 519;

/// An interface of the network namespace of the calling thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Number in its namespace.
    pub index: u32,
    /// What its packets start with, a number of libpcap's registry of link types.
    pub link_type: u16,
    /// Whether what it sends comes back in.
    pub is_loopback: bool,
    /// Whether it was up when it was looked up.
    pub is_up: bool,
    /// Its MTU when it was looked up.
    pub mtu_bytes: u32,
}

impl Interface {
    /// What its packets start with, as filters know it.
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
    /// [`CaptureError::Interface`] when there is none of that name, or one whose packets have a link
    /// layer that cannot be captured.
    pub fn find(name: &str) -> Result<Self, CaptureError> {
        let fail = |reason: String| CaptureError::Interface {
            name: name.into(),
            reason,
        };
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)
            .map_err(|error| fail(error.to_string()))?;
        let index = rustix::net::netdevice::name_to_index(&socket, name).map_err(|error| {
            if error == rustix::io::Errno::NODEV {
                fail("no such interface; `ip link` lists them".into())
            } else {
                fail(error.to_string())
            }
        })?;
        let ask = |command| ask(&socket, name, command).map_err(|error| fail(error.to_string()));
        // SAFETY: each command fills in the member of the union that is read.
        let (hardware, flags, mtu_bytes) = unsafe {
            (
                ask(libc::SIOCGIFHWADDR)?.ifru_hwaddr.sa_family,
                ask(libc::SIOCGIFFLAGS)?.ifru_flags,
                ask(libc::SIOCGIFMTU)?.ifru_mtu,
            )
        };
        let link_type = match hardware {
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
            is_loopback: hardware == libc::ARPHRD_LOOPBACK,
            is_up: libc::c_int::from(flags) & libc::IFF_UP != 0,
            mtu_bytes: mtu_bytes as u32,
        })
    }
}

/// Number of the calling thread's network namespace; 0 when it cannot be told.
pub(super) fn namespace_number() -> u64 {
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |namespace| namespace.ino())
}

/// What a command of `netdevice(7)` says of an interface.
fn ask(
    socket: &OwnedFd,
    name: &str,
    command: libc::Ioctl,
) -> std::io::Result<libc::__c_anonymous_ifr_ifru> {
    // SAFETY: all zeros are a value of this structure of integers and unions of them.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The name was found by the kernel, so it is shorter than the field; the rest stays zero.
    for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *slot = byte as libc::c_char;
    }
    // SAFETY: the request is the structure that these commands read and write, and outlives the call.
    let status = unsafe { libc::ioctl(socket.as_raw_fd(), command, &mut request) };
    if status < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(request.ifr_ifru)
}
