//! `AF_XDP`: an XDP program hands packets to a socket, before the stack sees them.

use std::time::Duration;

use parshall_core::trace::{Direction, LINK_TYPE_ETHERNET, Packet};

use super::error::BackendError;
use super::redirect::{QUEUE, Redirect};
use super::{Backend, Counts, Settings};
use crate::clock::realtime_ns;
use crate::net::af_xdp::{FRAME_BYTES, XdpReceiver};
use crate::net::interface::Interface;
use crate::net::socket::{SocketError, wait_readable};

/// Minimum number of frames; the rings need a power of two. The driver's headroom leaves 3,840
/// bytes of each frame: longer packets are dropped and counted.
const FRAMES_MIN: usize = 64;
/// Maximum number of packets whose frames go back to the kernel together.
const BATCH: u32 = 64;

/// See [`super::Kind::AfXdp`].
pub(super) struct AfXdp {
    /// Dropped before the socket, so that no packet is redirected to a closed socket.
    redirect: Redirect,
    socket: XdpReceiver,
    interface: String,
    snaplen_bytes: usize,
    delivered: u64,
}

impl AfXdp {
    pub(super) fn open(settings: &Settings<'_>) -> Result<Self, BackendError> {
        let interface = Interface::find(settings.interface)?;
        let frames = (settings.buffer_bytes / FRAME_BYTES).max(FRAMES_MIN);
        let socket = XdpReceiver::open(interface.index, QUEUE, 1 << frames.ilog2())
            .map_err(|error| BackendError::socket(settings.interface, error))?;
        Ok(Self {
            redirect: Redirect::attach(&interface, &socket, settings.filter)?,
            socket,
            interface: interface.name,
            snaplen_bytes: settings.snaplen_bytes() as usize,
            delivered: 0,
        })
    }

    fn failed(&self, error: SocketError) -> BackendError {
        BackendError::socket(&self.interface, error)
    }

    /// Passes received packets to `take`, at most a batch; returns how many.
    fn receive(&mut self, take: &mut dyn FnMut(&Packet<'_>)) -> u32 {
        let packets = self.socket.received().min(BATCH);
        if packets == 0 {
            return 0;
        }
        let time_ns = realtime_ns();
        for number in 0..packets {
            let packet = self.socket.packet(number);
            take(&Packet {
                time_ns,
                direction: Direction::In,
                wire_bytes: packet.len() as u32,
                captured: &packet[..packet.len().min(self.snaplen_bytes)],
                ..Packet::default()
            });
        }
        self.socket.give_back(packets);
        self.delivered += u64::from(packets);
        packets
    }
}

impl Backend for AfXdp {
    fn link_type(&self) -> u16 {
        LINK_TYPE_ETHERNET
    }

    fn next_batch(
        &mut self,
        timeout: Duration,
        take: &mut dyn FnMut(&Packet<'_>),
    ) -> Result<usize, BackendError> {
        let mut packets = self.receive(take);
        if packets == 0 && !timeout.is_zero() {
            wait_readable(&self.socket, timeout).map_err(|error| self.failed(error))?;
            packets = self.receive(take);
        }
        Ok(packets as usize)
    }

    fn stop(&mut self) -> Result<(), BackendError> {
        self.redirect.detach();
        Ok(())
    }

    fn counts(&mut self) -> Result<Counts, BackendError> {
        let statistics = self
            .socket
            .statistics()
            .map_err(|error| self.failed(error))?;
        let redirected = self
            .redirect
            .redirected()
            .map_err(|error| self.failed(error))?;
        Ok(Counts {
            seen: redirected,
            // Packets without a frame or longer than one, and packets for which the receive ring
            // was full. `rx_fill_ring_empty_descs` counts packets without a frame a second time.
            dropped: statistics.rx_dropped + statistics.rx_ring_full.unwrap_or(0),
            delivered: self.delivered,
        })
    }
}
