//! A connection between keeper and subscriber: whole messages, with descriptors beside them.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest part of a message; the kernel's default for a socket's buffer is of this order.
const PART_MAX_BYTES: usize = 128 << 10;
/// First byte of a part that is not the last; no message starts with it.
const MORE: u8 = b'+';
/// Longest message, so that no peer fills our memory: dozens of filters of thousands of ports.
const MESSAGE_MAX_BYTES: usize = 32 << 20;
/// Bytes that may wait for an end that does not read; every answer is much shorter.
const WAITING_MAX_BYTES: usize = 1 << 20;
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
    /// Received parts of an incomplete message.
    parts: Vec<u8>,
    message_max_bytes: usize,
    /// Parts that wait for room at the other end, with their descriptors.
    waiting: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    waiting_bytes: usize,
}

impl Channel {
    /// Over a connected socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            parts: Vec::new(),
            message_max_bytes: MESSAGE_MAX_BYTES,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
        }
    }

    /// Two connected sockets, one for each end.
    pub fn sockets() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
        socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
    }

    /// Sets the maximum length of a received message.
    pub fn accept_at_most(&mut self, message_max_bytes: usize) {
        self.message_max_bytes = message_max_bytes;
    }

    /// Process at the other end, and its user.
    pub fn peer(&self) -> io::Result<(i32, u32)> {
        let peer = rustix::net::sockopt::socket_peercred(&self.socket)?;
        Ok((peer.pid.as_raw_nonzero().get(), peer.uid.as_raw()))
    }

    /// Sends a message; waits for room for each part of a long one.
    ///
    /// # Errors
    /// The error of `sendmsg(2)`; `WouldBlock` when the other end does not read.
    pub fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut parts = parts_of(message)?;
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            self.send_part(&part, &[])?;
            let mut waiting = [PollFd::new(&self.socket, PollFlags::OUT)];
            retry_on_intr(|| poll(&mut waiting, Some(&PART_PATIENCE)))?;
        }
        self.send_part(&last, descriptors)
    }

    /// Sends a message as far as there is room, and never waits: the rest goes by [`Channel::flush`].
    ///
    /// # Errors
    /// The error of `sendmsg(2)`; `StorageFull` when the other end has left too much unread.
    pub fn queue(
        &mut self,
        message: &impl Serialize,
        mut descriptors: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let parts = parts_of(message)?;
        let count = parts.len();
        for (number, part) in parts.into_iter().enumerate() {
            let beside = if number + 1 == count {
                std::mem::take(&mut descriptors)
            } else {
                Vec::new()
            };
            self.waiting_bytes += part.len();
            self.waiting.push_back((part, beside));
        }
        self.flush()?;
        if self.waiting_bytes > WAITING_MAX_BYTES {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// Sends what waits, as far as there is room.
    pub fn flush(&mut self) -> io::Result<()> {
        while let Some((part, descriptors)) = self.waiting.front() {
            let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
            match self.send_part(part, &descriptors) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                sent => sent?,
            }
            self.waiting_bytes -= part.len();
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// Whether something waits for room.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Bytes of a message that is not whole yet.
    pub fn unfinished_bytes(&self) -> usize {
        self.parts.len()
    }

    fn send_part(&self, part: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("too many descriptors in a message"));
        }
        sendmsg(
            &self.socket,
            &[IoSlice::new(part)],
            &mut beside,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        )?;
        Ok(())
    }

    /// Waits for a message up to a time, whatever signals come.
    ///
    /// # Errors
    /// As of [`Channel::receive`].
    pub fn receive_until<T: DeserializeOwned>(
        &mut self,
        deadline: Instant,
    ) -> io::Result<(T, Vec<OwnedFd>)> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.receive(left) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut && !left.is_zero() => {}
                received => return received,
            }
        }
    }

    /// Waits for a message, at most this long for each part; a signal ends the wait early. Parts of an incomplete message
    /// are kept for the next call.
    ///
    /// # Errors
    /// `UnexpectedEof` when the other end has closed, `TimedOut`, `InvalidData` for what is no message.
    pub fn receive<T: DeserializeOwned>(
        &mut self,
        timeout: Duration,
    ) -> io::Result<(T, Vec<OwnedFd>)> {
        loop {
            let (part, descriptors) = self.receive_part(timeout)?;
            if self.parts.len() + part.len() > self.message_max_bytes {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if let Some(part) = part.strip_prefix(&[MORE]) {
                self.parts.extend_from_slice(part);
                continue;
            }
            let mut whole = std::mem::take(&mut self.parts);
            whole.extend_from_slice(&part);
            return Ok((serde_json::from_slice(&whole)?, descriptors));
        }
    }

    fn receive_part(&self, timeout: Duration) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
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
        let mut part = vec![0; PART_MAX_BYTES + 1];
        let mut receive = || {
            recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut part)],
                &mut beside,
                RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
            )
        };
        // When the other end closed with unread data, that error comes before the data that it sent.
        let received = match receive() {
            Err(rustix::io::Errno::CONNRESET) => receive()?,
            received => received?,
        };
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
        part.truncate(received.bytes);
        Ok((part, descriptors))
    }
}

/// A message as what is sent at once.
fn parts_of(message: &impl Serialize) -> io::Result<Vec<Vec<u8>>> {
    let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
    let mut rest = &bytes[..];
    let mut parts = Vec::new();
    while rest.len() > PART_MAX_BYTES {
        let (part, behind) = rest.split_at(PART_MAX_BYTES);
        parts.push([&[MORE], part].concat());
        rest = behind;
    }
    parts.push(rest.to_vec());
    Ok(parts)
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_any_length_arrive_whole_and_in_order() {
        let (left, right) = Channel::sockets().unwrap();
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

    #[test]
    fn a_peer_that_does_not_read_is_not_waited_for_and_holds_little() {
        let (left, right) = Channel::sockets().unwrap();
        let (mut left, mut right) = (Channel::new(left), Channel::new(right));
        let answer = "x".repeat(40_000);
        let mut sent = 0;
        let refused = loop {
            match left.queue(&answer, Vec::new()) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
            assert!(sent < 1000, "nothing bounds it");
        };
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert!(left.has_waiting() && left.waiting_bytes <= WAITING_MAX_BYTES + answer.len() + 2);
        // What was queued arrives in order, once it is read.
        for _ in 0..sent {
            let (text, _) = right.receive::<String>(Duration::from_secs(10)).unwrap();
            assert_eq!(text.len(), answer.len());
            left.flush().unwrap();
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_not_gathered() {
        let (left, right) = Channel::sockets().unwrap();
        let (left, mut right) = (Channel::new(left), Channel::new(right));
        right.accept_at_most(2 * PART_MAX_BYTES);
        let sender = std::thread::spawn(move || left.send(&"x".repeat(8 * PART_MAX_BYTES), &[]));
        let refused = right
            .receive::<String>(Duration::from_secs(10))
            .unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        assert!(right.unfinished_bytes() <= 2 * PART_MAX_BYTES);
        drop(right);
        assert!(sender.join().unwrap().is_err());
    }

    #[test]
    fn messages_sent_before_the_close_are_received() {
        let (left, right) = Channel::sockets().unwrap();
        let (mut left, mut right) = (Channel::new(left), Channel::new(right));
        right.send(&"a question that is never read", &[]).unwrap();
        left.queue(&"no", Vec::new()).unwrap();
        drop(left);
        let (text, _) = right.receive::<String>(Duration::from_secs(10)).unwrap();
        assert_eq!(text, "no");
    }
}
