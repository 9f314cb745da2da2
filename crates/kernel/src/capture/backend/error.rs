//! Why a yardstick cannot capture, each in one line.

use std::io;

/// An error of a capture back end.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// There is no such interface.
    #[error("interface {interface}: not in this network namespace ({source}); see 'ip link'")]
    Interface {
        /// Its name.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The interface has a kind of packets that is not known here.
    #[error(
        "interface {interface}: hardware type {hardware_type}, expected Ethernet, loopback or plain IP; capture on another one"
    )]
    HardwareType {
        /// Its name.
        interface: String,
        /// Number of the kernel's `ARPHRD_...`.
        hardware_type: u16,
    },
    /// A call on the socket failed.
    #[error("interface {interface}: {action} failed ({source}); {remedy}")]
    Socket {
        /// Name of the interface.
        interface: String,
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
        /// What may help.
        remedy: &'static str,
    },
    /// The back end cannot do what is asked.
    #[error("interface {interface}: {what}; {remedy}")]
    Unsupported {
        /// Name of the interface.
        interface: String,
        /// What cannot be.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
}

/// What most failures of sockets mean.
pub(super) const PRIVILEGES: &str = "it needs CAP_NET_RAW and CAP_NET_ADMIN: see 'parshall doctor'";
