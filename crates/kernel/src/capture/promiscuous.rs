//! Promiscuous mode, held by a socket: it goes when the process goes, however it goes.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::CaptureError;
use super::interface::Interface;

/// Keeps an interface promiscuous while it lives.
#[derive(Debug)]
pub struct Promiscuous {
    _socket: OwnedFd,
}

impl Promiscuous {
    /// Switches the mode on.
    ///
    /// # Errors
    /// [`CaptureError::Interface`] with what the kernel says.
    pub fn hold(interface: &Interface) -> Result<Self, CaptureError> {
        let fail = || CaptureError::Interface {
            name: interface.name.clone(),
            reason: format!(
                "cannot be made promiscuous: {}; run as root, or without --promiscuous",
                std::io::Error::last_os_error()
            ),
        };
        // Protocol 0: the socket receives nothing.
        // SAFETY: no pointers; the descriptor is taken over at once.
        let socket = unsafe {
            let descriptor = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
            if descriptor < 0 {
                return Err(fail());
            }
            OwnedFd::from_raw_fd(descriptor)
        };
        let membership = libc::packet_mreq {
            mr_ifindex: interface.index as libc::c_int,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        // SAFETY: the structure is the one of this option, outlives the call, and its size is given.
        let status = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                std::ptr::from_ref(&membership).cast(),
                size_of::<libc::packet_mreq>() as libc::socklen_t,
            )
        };
        if status < 0 {
            return Err(fail());
        }
        Ok(Self { _socket: socket })
    }
}
