//! `AF_PACKET`: frames from user space, straight to the driver.

use super::Backend;
use super::pace::Pace;
use crate::generate::GenerateError;
use crate::generate::error::failed;
use crate::generate::plan_ring::PlanRing;
use crate::net::packet_socket::PacketSocket;
use crate::net::socket::failed as failed_to;
use parshall_core::workload::{Packets, Workload};
use rustix::net::{SendFlags, sockopt};
use std::io;

/// Frames of one system call when packets are not paced.
const BATCH: usize = 64;
/// Send buffer: with a smaller one the sender sleeps until the receiver has freed packets. The kernel
/// reserves twice as much, for its own data.
const SEND_BUFFER_BYTES: usize = 8 << 20;

pub(crate) struct AfPacket {
    socket: PacketSocket,
    packets: Packets,
    is_stamped: bool,
    // Each holds the payload from the start; only the header is written for a packet.
    frames: Vec<Vec<u8>>,
}

impl AfPacket {
    /// Opens a socket that sends from an interface of the calling thread's network namespace.
    pub fn open(
        workload: &Workload,
        packets: &Packets,
        interface_index: u32,
    ) -> Result<Self, GenerateError> {
        let socket = PacketSocket::open(interface_index)?;
        socket.bypass_qdisc()?;
        sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER_BYTES)
            .map_err(failed_to("setting the send buffer (CAP_NET_ADMIN)"))?;
        let blank = packets.blank_frame(workload.largest_frame_bytes());
        Ok(Self {
            socket,
            packets: packets.clone(),
            is_stamped: workload.is_stamped,
            frames: vec![blank; BATCH],
        })
    }

    /// Sends the first frames, of these lengths; returns how many the kernel did not take when it is stopped or fails.
    fn send(&self, lengths: &[usize], pace: &Pace<'_>) -> (usize, Result<(), GenerateError>) {
        let mut sent = 0;
        while sent < lengths.len() {
            let frames = self.frames.iter().zip(lengths).skip(sent);
            let frames = frames.map(|(frame, bytes)| &frame[..*bytes]);
            match self.socket.send(frames, SendFlags::empty()) {
                Ok(count) => sent += count,
                Err(error) => {
                    // The driver's queue is full, or our signal came: the packet has not left and may try again.
                    let is_passing = matches!(
                        error.raw_os_error(),
                        Some(libc::ENOBUFS | libc::EAGAIN | libc::EINTR)
                    );
                    if is_passing && !pace.is_stopped() {
                        std::thread::yield_now();
                        continue;
                    }
                    return (lengths.len() - sent, result_of(is_passing, error));
                }
            }
        }
        (0, Ok(()))
    }
}

fn result_of(is_passing: bool, error: io::Error) -> Result<(), GenerateError> {
    match is_passing {
        true => Ok(()),
        false => Err(failed("send from the packet socket")(error)),
    }
}

impl Backend for AfPacket {
    fn run(&mut self, ring: &PlanRing) -> Result<(), GenerateError> {
        let mut pace = Pace::new(ring, self.is_stamped);
        let batch = if ring.is_paced() { 1 } else { BATCH };
        let mut lengths = Vec::with_capacity(batch);
        loop {
            lengths.clear();
            while lengths.len() < batch && (lengths.is_empty() || pace.is_ready()) {
                let Some(due) = pace.next() else { break };
                let frame = &mut self.frames[lengths.len()];
                lengths.push(
                    self.packets
                        .write(&due.packet, due.sequence, due.now_ns, frame),
                );
            }
            if lengths.is_empty() {
                return Ok(());
            }
            let (unsent, result) = self.send(&lengths, &pace);
            pace.report(unsent as u64);
            result?;
            if unsent > 0 {
                return Ok(());
            }
        }
    }
}
