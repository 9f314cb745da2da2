//! Why a socket cannot capture, each in one line.

use std::io;

use crate::net::interface::InterfaceError;
use crate::net::socket::SocketError;

/// An error of a capture back end.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document variants and fields")]
pub enum BackendError {
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error("interface {interface}: {action} failed ({source}); {remedy}")]
    Socket {
        interface: String,
        action: &'static str,
        source: io::Error,
        remedy: &'static str,
    },
    #[error("interface {interface}: {what}; {remedy}")]
    Unsupported {
        interface: String,
        what: String,
        remedy: &'static str,
    },
}

impl BackendError {
    /// Whether the request itself was wrong.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::Socket { .. })
    }

    /// A call that failed, with the remedy that its error number suggests.
    pub(super) fn socket(interface: &str, error: SocketError) -> Self {
        Self::Socket {
            interface: interface.to_owned(),
            action: error.action,
            remedy: remedy(&error.source),
            source: error.source,
        }
    }

    /// The kernel rejected a filter.
    pub(super) fn filter(interface: &str, error: SocketError) -> Self {
        Self::Socket {
            interface: interface.to_owned(),
            action: error.action,
            source: error.source,
            remedy: "a filter has at most 4096 instructions, all of the classic machine",
        }
    }

    /// An XDP program was not attached to an interface with this MTU.
    pub(super) fn attaching(interface: &str, mtu_bytes: u32, source: io::Error) -> Self {
        let is_long = mtu_bytes > BUFFER_MTU_BYTES;
        let what = match source.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => {
                return Self::Unsupported {
                    interface: interface.to_owned(),
                    what: format!("another XDP program is attached to it ({source})"),
                    remedy: "detach that program, or give --backend af-packet",
                };
            }
            // A veth's error for the MTU of its peer.
            Some(libc::ERANGE) => format!("the MTU of its peer is too large for AF_XDP ({source})"),
            Some(libc::EINVAL | libc::EOPNOTSUPP | libc::E2BIG) if is_long => {
                format!("its MTU of {mtu_bytes} bytes is too large for AF_XDP ({source})")
            }
            _ => {
                let action = "attaching the XDP program";
                return Self::socket(interface, SocketError { action, source });
            }
        };
        Self::Unsupported {
            interface: interface.to_owned(),
            what: format!("{what}, which takes a packet in one buffer"),
            remedy: "set an MTU of 3400 or less there, or give --backend af-packet, which takes any",
        }
    }
}

/// The MTU above which drivers may refuse an XDP program that takes packets in one buffer: XDP's headroom, the
/// kernel's `skb_shared_info` and the Ethernet header leave 3,506 bytes of a page.
const BUFFER_MTU_BYTES: u32 = 3400;

/// What may help against an error of a system call.
fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "it needs CAP_NET_RAW and CAP_NET_ADMIN: see 'parshall doctor'"
        }
        Some(libc::ENOMEM | libc::ENOBUFS) => {
            "the kernel has no memory for it: give a smaller --buffer"
        }
        Some(libc::EBUSY) => "another program uses it: end that program",
        Some(libc::ENODEV | libc::ENXIO | libc::ENETDOWN) => "see 'ip link'",
        _ => "see 'parshall doctor' for what this host offers",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attaching(mtu_bytes: u32, number: i32) -> String {
        let source = io::Error::from_raw_os_error(number);
        BackendError::attaching("eth0", mtu_bytes, source).to_string()
    }

    #[test]
    fn only_errors_that_the_mtu_can_cause_name_it() {
        assert!(attaching(9000, libc::ERANGE).contains("the MTU of its peer is too large"));
        assert!(attaching(9000, libc::EINVAL).contains("its MTU of 9000 bytes is too large"));
        for (mtu_bytes, number) in [
            (1500, libc::EINVAL),
            (9000, libc::EPERM),
            (9000, libc::EBUSY),
        ] {
            let message = attaching(mtu_bytes, number);
            assert!(!message.contains("MTU"), "{message}");
        }
        assert!(attaching(1500, libc::EBUSY).contains("another XDP program"));
    }
}
