//! Plain receiving: a system call and a copy for each packet.

use std::time::Duration;

use parshall_core::trace::{LINK_TYPE_ETHERNET, Packet};

use super::error::BackendError;
use super::packet_socket::{FilteredSocket, direction};
use super::vlan;
use super::{Backend, Counts, Settings};
use crate::net::packet_receive::{BATCH, TAG_BYTES};

/// See [`super::Kind::Receive`].
pub(super) struct Receive {
    socket: FilteredSocket,
    /// Room for a VLAN tag, then for a packet.
    buffer: Vec<u8>,
}

impl Receive {
    pub(super) fn open(settings: &Settings<'_>) -> Result<Self, BackendError> {
        let socket = FilteredSocket::open(settings)?;
        socket.set_buffer(settings.buffer_bytes)?;
        socket.start()?;
        Ok(Self {
            socket,
            buffer: vec![0; TAG_BYTES + settings.snaplen_bytes() as usize],
        })
    }

    /// Receives one packet and hands it on; false when there is none.
    fn receive(&mut self, take: &mut dyn FnMut(&Packet<'_>)) -> Result<bool, BackendError> {
        let Some(frame) = self.socket.receive(&mut self.buffer[TAG_BYTES..])? else {
            return Ok(false);
        };
        let mut captured_bytes = frame.captured_bytes;
        let mut wire_bytes = frame.control.wire_bytes;
        let mut start = TAG_BYTES;
        if self.socket.link_type() == LINK_TYPE_ETHERNET
            && let Some(tag) = frame.control.vlan_tag
            && vlan::put_back(&mut self.buffer[..TAG_BYTES + captured_bytes], tag)
        {
            start = 0;
            captured_bytes = (captured_bytes + TAG_BYTES).min(self.buffer.len() - TAG_BYTES);
            wire_bytes += TAG_BYTES as u32;
        }
        take(&Packet {
            time_ns: frame.control.arrival_realtime_ns.unwrap_or(0),
            direction: direction(frame.packet_type),
            wire_bytes,
            captured: &self.buffer[start..start + captured_bytes],
            ..Packet::default()
        });
        Ok(true)
    }
}

impl Backend for Receive {
    fn link_type(&self) -> u16 {
        self.socket.link_type()
    }

    fn next_batch(
        &mut self,
        timeout: Duration,
        take: &mut dyn FnMut(&Packet<'_>),
    ) -> Result<usize, BackendError> {
        let mut packets = 0;
        let result = loop {
            match self.receive(take) {
                Ok(true) => packets += 1,
                Ok(false) if packets == 0 && !timeout.is_zero() => {
                    let waited = self.socket.wait(timeout);
                    match waited.and_then(|()| self.receive(take)) {
                        Ok(true) => packets += 1,
                        result => break result,
                    }
                }
                result => break result,
            }
            if packets == BATCH {
                break Ok(true);
            }
        };
        self.socket.count_delivered(packets);
        result.map(|_| packets)
    }

    fn stop(&mut self) -> Result<(), BackendError> {
        self.socket.stop()
    }

    fn counts(&mut self) -> Result<Counts, BackendError> {
        self.socket.counts()
    }
}
