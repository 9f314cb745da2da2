//! A connection between keeper and subscriber: whole messages, with descriptors beside them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest message; the kernel's default for a socket's buffer is of this order.
const MESSAGE_MAX_BYTES: usize = 192 << 10;
const DESCRIPTORS_MAX: usize = 4;

/// One end of a connection (`SOCK_SEQPACKET`).
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Channel {
    /// Over a connected socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            buffer: vec![0; MESSAGE_MAX_BYTES],
        }
    }

    /// Process at the other end.
    pub fn peer_pid(&self) -> i32 {
        rustix::net::sockopt::socket_peercred(&self.socket)
            .map_or(0, |peer| peer.pid.as_raw_nonzero().get())
    }

    /// Sends a message; it does not wait.
    ///
    /// # Errors
    /// What `sendmsg(2)` says; `WouldBlock` when the other end does not listen.
    pub fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("too many descriptors in a message"));
        }
        sendmsg(
            &self.socket,
            &[IoSlice::new(&bytes)],
            &mut beside,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        )?;
        Ok(())
    }

    /// Waits for a message, at most this long.
    ///
    /// # Errors
    /// `UnexpectedEof` when the other end has gone, `TimedOut`, `InvalidData` for what is no message.
    pub fn receive<T: DeserializeOwned>(
        &mut self,
        timeout: Duration,
    ) -> io::Result<(T, Vec<OwnedFd>)> {
        let mut waiting = [PollFd::new(&self.socket, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        match poll(&mut waiting, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Err(io::ErrorKind::TimedOut.into()),
            done => done?,
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut self.buffer)],
            &mut beside,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
        )?;
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut descriptors = Vec::new();
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let message = serde_json::from_slice(&self.buffer[..received.bytes])?;
        Ok((message, descriptors))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
