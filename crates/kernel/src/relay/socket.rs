//! A raw packet socket on one interface, read and written in batches.

use super::batch::{ReceiveBatch, SendBatch};
use super::error::RelayError;
use std::ffi::CString;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A packet socket that sees what arrives at its interface, for whomever it is meant, and never
/// what leaves it.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    packets: u64,
    drops: u64,
}

impl PacketSocket {
    /// Opens the socket in the network namespace of the calling thread.
    pub fn open(interface: &str, receive_buffer_bytes: usize) -> Result<Self, RelayError> {
        let index = interface_index(interface)?;
        let failed = |action| {
            move |source| RelayError::Socket {
                action,
                interface: interface.to_string(),
                source,
            }
        };
        // Protocol 0 receives nothing until bind names interface and protocol together: no frame of
        // another interface slips in.
        // SAFETY: a plain system call without pointers.
        let raw = unsafe {
            libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            )
        };
        if raw < 0 {
            return Err(failed("opening a packet socket")(io::Error::last_os_error()));
        }
        // SAFETY: the descriptor was just opened and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let socket = Self {
            fd,
            packets: 0,
            drops: 0,
        };

        let one: libc::c_int = 1;
        let bytes = libc::c_int::try_from(receive_buffer_bytes).unwrap_or(libc::c_int::MAX);
        let promiscuous = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        socket
            .set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &one)
            .map_err(failed("ignoring outgoing frames (Linux 4.20)"))?;
        socket
            .set(libc::SOL_PACKET, libc::PACKET_AUXDATA, &one)
            .map_err(failed("asking for VLAN tags"))?;
        socket
            .set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &one)
            .map_err(failed("passing by the queueing discipline"))?;
        socket
            .set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &promiscuous)
            .map_err(failed("promiscuous mode"))?;
        socket
            .set(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &one)
            .map_err(failed("asking for time stamps"))?;
        // Beyond net.core.rmem_max with CAP_NET_ADMIN, up to it without.
        socket
            .set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes)
            .or_else(|_| socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes))
            .map_err(failed("setting the receive buffer"))?;

        // SAFETY: sockaddr_ll is plain data for which zeros are valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
        // SAFETY: the address is initialised, and its size is given.
        let bound = unsafe {
            libc::bind(
                socket.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if bound < 0 {
            return Err(failed("binding")(io::Error::last_os_error()));
        }
        Ok(socket)
    }

    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        // SAFETY: value points to size_of::<T>() initialised bytes, which the kernel only reads.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                std::ptr::from_ref(value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// The descriptor, for polling.
    pub fn raw(&self) -> libc::c_int {
        self.fd.as_raw_fd()
    }

    /// Reads what is there, at most one batch; 0 when nothing is.
    pub fn receive(&self, batch: &mut ReceiveBatch) -> io::Result<usize> {
        let headers = batch.prepare();
        // SAFETY: the headers point into buffers that the batch owns and that outlive the call.
        let count = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                headers.as_mut_ptr(),
                headers.len() as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        if count >= 0 {
            return Ok(count as usize);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
            _ => Err(error),
        }
    }

    /// Sends the frames of the batch; gives how many the kernel took, at least one, or why it did
    /// not take the first.
    pub fn send(&self, batch: &mut SendBatch<'_>) -> io::Result<usize> {
        let headers = batch.prepare();
        // SAFETY: the headers point to frames that the batch borrows, and the kernel only reads.
        let count = unsafe {
            libc::sendmmsg(
                self.fd.as_raw_fd(),
                headers.as_mut_ptr(),
                headers.len() as libc::c_uint,
                libc::MSG_DONTWAIT as _,
            )
        };
        if count < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(count as usize)
        }
    }

    /// Frames that came to the socket since it was opened, and those of them that found its buffer
    /// full.
    pub fn counters(&mut self) -> io::Result<(u64, u64)> {
        // SAFETY: tpacket_stats is plain data for which zeros are valid.
        let mut since_last: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: both pointers are valid for the sizes given.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut since_last).cast(),
                &raw mut length,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        // The kernel sets its counters to 0 when they are read.
        self.packets += u64::from(since_last.tp_packets);
        self.drops += u64::from(since_last.tp_drops);
        Ok((self.packets, self.drops))
    }

    /// Refuses every further frame; what is in the buffer can still be read.
    pub fn shut(&self) -> io::Result<()> {
        let mut refuse_all = libc::sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: 0,
        };
        let program = libc::sock_fprog {
            len: 1,
            filter: &raw mut refuse_all,
        };
        self.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }
}

fn interface_index(interface: &str) -> Result<libc::c_int, RelayError> {
    let absent = |source| RelayError::Interface {
        interface: interface.to_string(),
        source,
    };
    let name = CString::new(interface).map_err(|error| absent(error.into()))?;
    // SAFETY: the name ends with a NUL byte.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(absent(io::Error::last_os_error()));
    }
    Ok(index as libc::c_int)
}
