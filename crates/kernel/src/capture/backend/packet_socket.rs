//! What the two back ends on `AF_PACKET` share: a socket with a filter on one interface.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use parshall_core::filter::classic::ClassicInstruction;
use parshall_core::trace::Direction;

use super::error::BackendError;
use super::{Counts, Settings};
use crate::net::interface::Interface;
use crate::net::packet_receive::Frame;
use crate::net::packet_socket::{PacketSocket, RETURN_CONSTANT};
use crate::net::socket::{SocketError, set_receive_buffer, wait_readable};

/// A packet socket, and the number of packets that it delivered.
pub(super) struct FilteredSocket {
    socket: PacketSocket,
    interface: Interface,
    delivered: u64,
}

impl FilteredSocket {
    /// Opens a socket with filter and options on its interface. It gets packets from [`FilteredSocket::start`] on.
    pub(super) fn open(settings: &Settings<'_>) -> Result<Self, BackendError> {
        let interface = Interface::find(settings.interface)?;
        let failed = |error| BackendError::socket(settings.interface, error);
        let socket = PacketSocket::open(interface.index).map_err(failed)?;
        if interface.is_loopback {
            // Each packet passes twice there, once out and once in.
            socket.ignore_outgoing().map_err(failed)?;
        }
        if settings.promiscuous {
            socket.hold_promiscuous().map_err(failed)?;
        }
        socket
            .attach_filter(&filter(settings))
            .map_err(|error| BackendError::filter(settings.interface, error))?;
        Ok(Self {
            socket,
            interface,
            delivered: 0,
        })
    }

    /// Starts to receive.
    pub(super) fn start(&self) -> Result<(), BackendError> {
        self.named(self.socket.start())
    }

    /// Stops receiving.
    pub(super) fn stop(&self) -> Result<(), BackendError> {
        self.named(self.socket.stop())
    }

    /// Sets an option of packet sockets.
    pub(super) fn set<T>(
        &self,
        option: libc::c_int,
        value: &T,
        action: &'static str,
    ) -> Result<(), BackendError> {
        self.named(self.socket.set(option, value, action))
    }

    /// Sets the receive buffer, and has the kernel report time, length and VLAN tag beside a packet.
    pub(super) fn set_buffer(&self, bytes: usize) -> Result<(), BackendError> {
        // The kernel reserves twice as much as is requested.
        self.named(set_receive_buffer(&self.socket, bytes / 2))?;
        self.named(self.socket.enable_control_data())
    }

    /// Receives one packet; `None` when there is none.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Result<Option<Frame>, BackendError> {
        self.named(self.socket.receive_frame(buffer))
    }

    /// Waits until there is something to read, or the time is over.
    pub(super) fn wait(&self, timeout: Duration) -> Result<(), BackendError> {
        self.named(wait_readable(&self.socket, timeout))
    }

    /// The error of a call on the socket, with the interface.
    pub(super) fn failed(&self, action: &'static str, source: io::Error) -> BackendError {
        BackendError::socket(&self.interface.name, SocketError { action, source })
    }

    fn named<T>(&self, result: Result<T, SocketError>) -> Result<T, BackendError> {
        result.map_err(|error| BackendError::socket(&self.interface.name, error))
    }

    /// Link type of the packets.
    pub(super) fn link_type(&self) -> u16 {
        self.interface.link_type
    }

    /// Counts packets that were handed on.
    pub(super) fn count_delivered(&mut self, packets: usize) {
        self.delivered += packets as u64;
    }

    /// The counts so far.
    pub(super) fn counts(&mut self) -> Result<Counts, BackendError> {
        let counters = self.socket.counters();
        let counters = self.named(counters)?;
        Ok(Counts {
            seen: counters.packets,
            dropped: counters.drops,
            delivered: self.delivered,
        })
    }
}

impl AsFd for FilteredSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The filter, with return values of at most the snapshot length: the kernel keeps as many bytes as a filter returns.
fn filter(settings: &Settings<'_>) -> Vec<libc::sock_filter> {
    let snaplen_bytes = settings.snaplen_bytes();
    let all = [ClassicInstruction {
        code: RETURN_CONSTANT,
        jt: 0,
        jf: 0,
        k: snaplen_bytes,
    }];
    settings
        .filter
        .unwrap_or(&all)
        .iter()
        .map(
            |&ClassicInstruction { code, jt, jf, k }| libc::sock_filter {
                code,
                jt,
                jf,
                k: match code {
                    RETURN_CONSTANT => k.min(snaplen_bytes),
                    _ => k,
                },
            },
        )
        .collect()
}

/// Direction of a packet, from the type that the kernel gives it.
pub(super) fn direction(packet_type: u8) -> Direction {
    match packet_type {
        libc::PACKET_OUTGOING => Direction::Out,
        _ => Direction::In,
    }
}
