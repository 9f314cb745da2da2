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

/// Longest part of a message; the kernel's default for a socket's buffer is of this order.
const PART_MAX_BYTES: usize = 128 << 10;
/// What a part starts with behind which more comes: no message does.
const MORE: u8 = b'+';
/// Longest message, so that nobody fills our memory: dozens of filters of thousands of ports.
const MESSAGE_MAX_BYTES: usize = 32 << 20;
/// How long the other end may take to make room for the next part.
const PART_PATIENCE: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};
const DESCRIPTORS_MAX: usize = 4;

/// One end of a connection (`SOCK_SEQPACKET`).
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// Parts of a message whose end is to come.
    parts: Vec<u8>,
}

impl Channel {
    /// Over a connected socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            buffer: vec![0; PART_MAX_BYTES + 1],
            parts: Vec::new(),
        }
    }

    /// Process at the other end.
    pub fn peer_pid(&self) -> i32 {
        rustix::net::sockopt::socket_peercred(&self.socket)
            .map_or(0, |peer| peer.pid.as_raw_nonzero().get())
    }

    /// Sends a message; it does not wait, unless the message is too long to be sent in one part.
    ///
    /// # Errors
    /// What `sendmsg(2)` says; `WouldBlock` when the other end does not listen.
    pub fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
        let mut rest = &bytes[..];
        while rest.len() > PART_MAX_BYTES {
            let (part, behind) = rest.split_at(PART_MAX_BYTES);
            self.send_part(&[&[MORE], part], &[])?;
            poll(
                &mut [PollFd::new(&self.socket, PollFlags::OUT)],
                Some(&PART_PATIENCE),
            )?;
            rest = behind;
        }
        self.send_part(&[rest], descriptors)
    }

    fn send_part(&self, pieces: &[&[u8]], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("too many descriptors in a message"));
        }
        let pieces: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        sendmsg(
            &self.socket,
            &pieces,
            &mut beside,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        )?;
        Ok(())
    }

    /// Waits for a message, at most this long for each part. What came of one that is not whole
    /// then is kept for the next call.
    ///
    /// # Errors
    /// `UnexpectedEof` when the other end has gone, `TimedOut`, `InvalidData` for what is no message.
    pub fn receive<T: DeserializeOwned>(
        &mut self,
        timeout: Duration,
    ) -> io::Result<(T, Vec<OwnedFd>)> {
        loop {
            let (bytes, descriptors) = self.receive_part(timeout)?;
            let part = &self.buffer[..bytes];
            if let Some(part) = part.strip_prefix(&[MORE]) {
                self.parts.extend_from_slice(part);
            } else if self.parts.is_empty() {
                return Ok((serde_json::from_slice(part)?, descriptors));
            } else {
                let mut whole = std::mem::take(&mut self.parts);
                whole.extend_from_slice(part);
                return Ok((serde_json::from_slice(&whole)?, descriptors));
            }
            if self.parts.len() > MESSAGE_MAX_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }

    fn receive_part(&mut self, timeout: Duration) -> io::Result<(usize, Vec<OwnedFd>)> {
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
        Ok((received.bytes, descriptors))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn messages_of_any_length_arrive_whole_and_in_order() {
        let (left, right) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let (left, mut right) = (Channel::new(left), Channel::new(right));
        let lengths = [
            0,
            PART_MAX_BYTES - 2,
            PART_MAX_BYTES - 1,
            3 * PART_MAX_BYTES,
            1,
            1 << 20,
        ];
        let sender = std::thread::spawn(move || {
            for length in lengths {
                left.send(&"x".repeat(length), &[left.as_fd()]).unwrap();
            }
        });
        for length in lengths {
            let (text, descriptors) = right.receive::<String>(Duration::from_secs(10)).unwrap();
            assert_eq!(text, "x".repeat(length));
            assert_eq!(descriptors.len(), 1);
        }
        sender.join().unwrap();
        let gone = right
            .receive::<String>(Duration::from_secs(10))
            .unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::UnexpectedEof);
    }
}
