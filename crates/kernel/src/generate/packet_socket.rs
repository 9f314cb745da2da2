//! `AF_PACKET`: frames from user space, straight to the driver.

use super::GenerateError;
use super::backend::{Backend, failed};
use super::pace::Pace;
use super::plan_ring::PlanRing;
use crate::capture::backend::packet_socket::set_option;
use parshall_core::workload::{Packets, Workload};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Frames of one system call when nobody waits for the time of each.
const BATCH: usize = 64;
/// What may lie in the stack: without it the sender sleeps until the receiver has freed what it got.
const SEND_BUFFER_BYTES: i32 = 8 << 20;

pub(super) struct PacketSocket {
    fd: OwnedFd,
    packets: Packets,
    is_stamped: bool,
    // Each holds the payload from the start; only the header is written for a packet.
    frames: Vec<Vec<u8>>,
}

impl PacketSocket {
    /// Opens a socket that sends from an interface of the calling thread's network namespace.
    pub fn open(
        workload: &Workload,
        packets: &Packets,
        interface_index: u32,
    ) -> Result<Self, GenerateError> {
        // SAFETY: a plain system call without pointers. Protocol 0: it receives nothing.
        let raw = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if raw < 0 {
            return Err(failed("open a packet socket (CAP_NET_RAW)")(
                io::Error::last_os_error(),
            ));
        }
        // SAFETY: the descriptor was just opened and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let set = |level, option, value: i32, what| {
            set_option(fd.as_fd(), level, option, &value).map_err(failed(what))
        };
        // A queueing discipline would reorder and drop, and would not say so.
        set(
            libc::SOL_PACKET,
            libc::PACKET_QDISC_BYPASS,
            1,
            "send past the queueing discipline",
        )?;
        set(
            libc::SOL_SOCKET,
            libc::SO_SNDBUFFORCE,
            SEND_BUFFER_BYTES,
            "give the socket its buffer (CAP_NET_ADMIN)",
        )?;
        // SAFETY: plain data for which zeros are valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = interface_index as i32;
        // SAFETY: the address is initialised, and its size is given.
        let status = unsafe {
            libc::bind(
                fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if status < 0 {
            return Err(failed("bind the packet socket")(io::Error::last_os_error()));
        }
        let blank = packets.blank_frame(workload.largest_frame_bytes());
        Ok(Self {
            fd,
            packets: packets.clone(),
            is_stamped: workload.is_stamped,
            frames: vec![blank; BATCH],
        })
    }

    /// Sends the first frames, of these lengths; gives how many the kernel did not take when it is stopped or fails.
    fn send(&self, lengths: &[usize], pace: &Pace<'_>) -> (usize, Result<(), GenerateError>) {
        let mut parts: Vec<libc::iovec> = self
            .frames
            .iter()
            .zip(lengths)
            .map(|(frame, bytes)| libc::iovec {
                iov_base: frame.as_ptr().cast_mut().cast(),
                iov_len: *bytes,
            })
            .collect();
        let mut messages: Vec<libc::mmsghdr> = parts
            .iter_mut()
            .map(|part| {
                // SAFETY: plain data for which zeros are valid.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                message.msg_hdr.msg_iov = part;
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        let mut sent = 0;
        while sent < messages.len() {
            let rest = &mut messages[sent..];
            // SAFETY: the messages point to frames of at least these lengths, all of which outlive the call.
            let status = unsafe {
                libc::sendmmsg(self.fd.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, 0)
            };
            if status > 0 {
                sent += status as usize;
                continue;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // The driver's queue is full, or our signal came: the packet has not left and may try again.
                Some(libc::ENOBUFS | libc::EAGAIN | libc::EINTR) if !pace.is_stopped() => {
                    std::thread::yield_now();
                }
                Some(libc::ENOBUFS | libc::EAGAIN | libc::EINTR) => {
                    return (messages.len() - sent, Ok(()));
                }
                _ => {
                    return (
                        messages.len() - sent,
                        Err(failed("send from the packet socket")(error)),
                    );
                }
            }
        }
        (0, Ok(()))
    }
}

impl Backend for PacketSocket {
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
            pace.tell(unsent as u64);
            result?;
            if unsent > 0 {
                return Ok(());
            }
        }
    }
}
