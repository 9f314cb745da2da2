//! `AF_PACKET`: a socket on one interface, below IP.

use std::io::{self, IoSlice};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, MMsgHdr, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, sendmmsg,
    socket_with,
};

use super::socket::{SocketError, failed, set_option};

/// Class and mode of an instruction that ends with a constant: `BPF_RET | BPF_K`.
pub(crate) const RETURN_CONSTANT: u16 = 0x06;

/// A filter that takes no packet.
const REFUSE_ALL: libc::sock_filter = libc::sock_filter {
    code: RETURN_CONSTANT,
    jt: 0,
    jf: 0,
    k: 0,
};

/// A socket that is bound to an interface. It gets packets from [`PacketSocket::start`] on.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    interface_index: u32,
    counters: PacketCounters,
}

/// What the kernel counted at a socket since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PacketCounters {
    /// Packets that its filter took, with those that were dropped.
    pub packets: u64,
    /// Of those, packets that found its buffer full.
    pub drops: u64,
}

impl PacketSocket {
    /// Opens a socket on an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// When `CAP_NET_RAW` is missing, or there is no such interface.
    pub fn open(interface_index: u32) -> Result<Self, SocketError> {
        // Protocol 0 receives nothing until `start` names interface and protocol together: no packet of another
        // interface slips in, and none that the filter would not take.
        let fd = socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(failed("opening a packet socket (CAP_NET_RAW)"))?;
        let socket = Self {
            fd,
            interface_index,
            counters: PacketCounters::default(),
        };
        socket.bind(0)?;
        Ok(socket)
    }

    /// Starts to receive.
    pub fn start(&self) -> Result<(), SocketError> {
        self.bind(libc::ETH_P_ALL as u16)
    }

    /// Stops receiving and counting; packets in the buffer can still be read.
    pub fn stop(&self) -> Result<(), SocketError> {
        self.attach_filter(&[REFUSE_ALL])
    }

    /// Filters with a program of the classic machine. What it returns is how many bytes the kernel keeps.
    pub fn attach_filter(&self, instructions: &[libc::sock_filter]) -> Result<(), SocketError> {
        let program = libc::sock_fprog {
            len: instructions.len() as u16,
            filter: instructions.as_ptr().cast_mut(),
        };
        set_option(&self.fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
            .map_err(failed("attaching the filter"))
    }

    /// Keeps the interface promiscuous while the socket is open: it ends with the process, however that ends.
    pub fn hold_promiscuous(&self) -> Result<(), SocketError> {
        let membership = libc::packet_mreq {
            mr_ifindex: self.interface_index as libc::c_int,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(libc::PACKET_ADD_MEMBERSHIP, &membership, "promiscuous mode")
    }

    /// Leaves out what the interface sends (Linux 4.20).
    pub fn ignore_outgoing(&self) -> Result<(), SocketError> {
        self.set(
            libc::PACKET_IGNORE_OUTGOING,
            &1,
            "ignoring outgoing packets (Linux 4.20)",
        )
    }

    /// Lets length, VLAN tag and time of a packet come beside it.
    pub fn enable_control_data(&self) -> Result<(), SocketError> {
        self.set(libc::PACKET_AUXDATA, &1, "asking for lengths and VLAN tags")?;
        set_option(&self.fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1)
            .map_err(failed("asking for time stamps"))
    }

    /// Sends straight to the driver: a queue discipline would reorder, and drop without a count.
    pub fn bypass_qdisc(&self) -> Result<(), SocketError> {
        self.set(
            libc::PACKET_QDISC_BYPASS,
            &1,
            "passing by the queue discipline",
        )
    }

    /// Sets an option of packet sockets.
    pub fn set<T>(
        &self,
        option: libc::c_int,
        value: &T,
        action: &'static str,
    ) -> Result<(), SocketError> {
        set_option(&self.fd, libc::SOL_PACKET, option, value).map_err(failed(action))
    }

    /// Sends frames in one system call; returns how many of them the kernel took, at least one.
    pub fn send<'f>(
        &self,
        frames: impl Iterator<Item = &'f [u8]>,
        flags: SendFlags,
    ) -> io::Result<usize> {
        let parts: Vec<[IoSlice<'_>; 1]> = frames.map(|frame| [IoSlice::new(frame)]).collect();
        let mut control: Vec<SendAncillaryBuffer<'_, '_, '_>> = Vec::new();
        control.resize_with(parts.len(), SendAncillaryBuffer::default);
        let mut messages: Vec<MMsgHdr<'_>> = parts
            .iter()
            .zip(&mut control)
            .map(|(part, control)| MMsgHdr::new(part, control))
            .collect();
        Ok(sendmmsg(&self.fd, &mut messages, flags)?)
    }

    /// What the kernel counted so far. Its own counts start again whenever they are read.
    pub(crate) fn counters(&mut self) -> Result<PacketCounters, SocketError> {
        // SAFETY: three integers. Sockets without TPACKET_V3 fill the first two.
        let mut new: libc::tpacket_stats_v3 = unsafe { std::mem::zeroed() };
        let mut bytes = size_of::<libc::tpacket_stats_v3>() as libc::socklen_t;
        // SAFETY: both pointers are valid for the sizes given.
        let status = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut new).cast(),
                &mut bytes,
            )
        };
        if status < 0 {
            return Err(failed("reading the counters")(io::Error::last_os_error()));
        }
        self.counters.packets += u64::from(new.tp_packets);
        self.counters.drops += u64::from(new.tp_drops);
        Ok(self.counters)
    }

    fn bind(&self, protocol: u16) -> Result<(), SocketError> {
        // SAFETY: plain data for which zeros are valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = self.interface_index as libc::c_int;
        // SAFETY: the address is initialised, and its size is given.
        let status = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if status < 0 {
            return Err(failed("binding")(io::Error::last_os_error()));
        }
        Ok(())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
