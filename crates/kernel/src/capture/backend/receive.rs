//! Plain receiving: a system call and a copy for each packet.

use std::io;
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::time::Duration;

use parshall_core::trace::{LINK_TYPE_ETHERNET, Packet};

use super::error::BackendError;
use super::packet_socket::{PacketSocket, direction, set_option, wait_readable};
use super::vlan::{self, TAG_BYTES};
use super::{Backend, Counts, Settings};

/// Packets that are handed on before the caller gets its turn.
const BATCH: usize = 64;
/// Words of control data: a time stamp (32 bytes) and what the kernel tells beside a packet (40 bytes).
const CONTROL_WORDS: usize = 16;

/// See [`super::Kind::Receive`].
pub(super) struct Receive {
    socket: PacketSocket,
    link_type: u16,
    /// Room for a VLAN tag, then for a packet.
    buffer: Vec<u8>,
    control: [u64; CONTROL_WORDS],
}

/// What the kernel tells beside a packet.
#[derive(Default)]
struct Beside {
    time_ns: u64,
    wire_bytes: u32,
    tag: Option<[u8; TAG_BYTES]>,
}

impl Receive {
    pub(super) fn open(settings: &Settings<'_>) -> Result<Self, BackendError> {
        let socket = PacketSocket::open(settings)?;
        let one: libc::c_int = 1;
        // The kernel takes the double of what is asked, to have room for its own.
        let bytes = libc::c_int::try_from(settings.buffer_bytes).unwrap_or(libc::c_int::MAX) / 2;
        let level = libc::SOL_SOCKET;
        set_option(socket.fd(), level, libc::SO_TIMESTAMPNS, &one)
            .map_err(|source| socket.failed("asking for time stamps", source))?;
        // Beyond net.core.rmem_max with CAP_NET_ADMIN, up to it without.
        set_option(socket.fd(), level, libc::SO_RCVBUFFORCE, &bytes)
            .or_else(|_| set_option(socket.fd(), level, libc::SO_RCVBUF, &bytes))
            .map_err(|source| socket.failed("setting the receive buffer", source))?;
        socket.set(libc::PACKET_AUXDATA, &one, "asking for lengths")?;
        let link_type = socket.link_type()?;
        socket.start()?;
        Ok(Self {
            socket,
            link_type,
            buffer: vec![0; TAG_BYTES + settings.snaplen_bytes() as usize],
            control: [0; CONTROL_WORDS],
        })
    }

    /// Receives one packet and hands it on; false when there is none.
    fn receive(&mut self, take: &mut dyn FnMut(&Packet<'_>)) -> io::Result<bool> {
        let mut vector = libc::iovec {
            iov_base: self.buffer[TAG_BYTES..].as_mut_ptr().cast(),
            iov_len: self.buffer.len() - TAG_BYTES,
        };
        // SAFETY: plain data for which zeros are valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        // SAFETY: plain data for which zeros (null pointers, no lengths) are valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut address).cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        message.msg_iov = &mut vector;
        message.msg_iovlen = 1;
        message.msg_control = self.control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&self.control) as _;
        // SAFETY: the message points to an address, a vector, a buffer and control data that outlive the call.
        let received = unsafe {
            libc::recvmsg(
                self.socket.fd().as_raw_fd(),
                &mut message,
                libc::MSG_DONTWAIT,
            )
        };
        if received < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
                _ => Err(error),
            };
        }
        let mut captured_bytes = received as usize;
        // SAFETY: the kernel has just filled the message.
        let beside = unsafe { beside(&message) };
        let mut wire_bytes = beside.wire_bytes;
        let mut start = TAG_BYTES;
        if self.link_type == LINK_TYPE_ETHERNET
            && let Some(tag) = beside.tag
            && vlan::put_back(&mut self.buffer[..TAG_BYTES + captured_bytes], tag)
        {
            start = 0;
            captured_bytes = (captured_bytes + TAG_BYTES).min(self.buffer.len() - TAG_BYTES);
            wire_bytes += TAG_BYTES as u32;
        }
        take(&Packet {
            time_ns: beside.time_ns,
            direction: direction(address.sll_pkttype),
            wire_bytes,
            captured: &self.buffer[start..start + captured_bytes],
            ..Packet::default()
        });
        Ok(true)
    }
}

/// Reads the control data of a message.
///
/// # Safety
/// A call of `recvmsg` must have filled the message, and its control data must still be there.
unsafe fn beside(message: &libc::msghdr) -> Beside {
    let mut beside = Beside::default();
    // SAFETY: pointer and length of the control data are those that the kernel filled.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: not null, so it points to a whole, aligned control header.
        let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
        // SAFETY: as above; the data follow the header.
        let data = unsafe { libc::CMSG_DATA(header) };
        match (level, kind) {
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                // SAFETY: this kind of message has a timespec, maybe not aligned.
                let time = unsafe { data.cast::<libc::timespec>().read_unaligned() };
                beside.time_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
            }
            (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                // SAFETY: this kind of message has a tpacket_auxdata, maybe not aligned.
                let aux = unsafe { data.cast::<libc::tpacket_auxdata>().read_unaligned() };
                beside.wire_bytes = aux.tp_len;
                beside.tag = vlan::tag(aux.tp_status, aux.tp_vlan_tci, aux.tp_vlan_tpid);
            }
            _ => {}
        }
        // SAFETY: header is one of this message's.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    beside
}

impl Backend for Receive {
    fn link_type(&self) -> u16 {
        self.link_type
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
                    let waited = wait_readable(self.socket.fd(), timeout);
                    match waited.and_then(|()| self.receive(take)) {
                        Ok(true) => packets += 1,
                        result => break result.map(|_| ()),
                    }
                }
                result => break result.map(|_| ()),
            }
            if packets == BATCH {
                break Ok(());
            }
        };
        self.socket.delivered(packets);
        result.map_err(|source| self.socket.failed("receiving", source))?;
        Ok(packets)
    }

    fn stop(&mut self) -> Result<(), BackendError> {
        self.socket.stop()
    }

    fn counts(&mut self) -> Result<Counts, BackendError> {
        self.socket.counts()
    }
}
