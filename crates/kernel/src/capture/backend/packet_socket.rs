//! What the two back ends on `AF_PACKET` share: a socket with a filter on one interface.

use std::ffi::CString;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use parshall_core::filter::classic::ClassicInstruction;
use parshall_core::trace::{Direction, LINK_TYPE_ETHERNET, LINK_TYPE_RAW};

use super::error::BackendError;
use super::{Counts, Settings};

/// Class and mode of an instruction that ends with a constant: `BPF_RET | BPF_K`.
const RETURN_CONSTANT: u16 = 0x06;

/// A socket that is not bound yet: it gets no packets.
pub(super) struct PacketSocket {
    fd: OwnedFd,
    interface: String,
    index: i32,
    hardware_type: u16,
    counts: Counts,
}

/// Number of an interface.
pub(super) fn interface_index(interface: &str) -> Result<i32, BackendError> {
    let failed = |source| BackendError::Interface {
        interface: interface.to_owned(),
        source,
    };
    let name = CString::new(interface).map_err(|error| failed(error.into()))?;
    // SAFETY: a string that ends in a zero byte and outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(failed(io::Error::last_os_error())),
        index => Ok(index as i32),
    }
}

/// Sets an option of a socket.
pub(crate) fn set_option<T>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: value points to size_of::<T>() initialised bytes, which the kernel only reads.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Reads an option of a socket whose value is plain data for which zeros are valid.
///
/// # Safety
/// `T` must be such data.
pub(crate) unsafe fn option_of<T>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
) -> io::Result<T> {
    // SAFETY: zeros are valid, as the caller promises.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: value has room for the bytes that are told.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &mut bytes,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value)
}

/// Waits until a socket can be read, or until the time is over.
pub(super) fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
    let mut polled = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one initialised structure that outlives the call.
    if unsafe { libc::poll(&mut polled, 1, timeout_ms) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

impl PacketSocket {
    /// Opens a socket with filter and options, and ties it to its interface. It gets packets from
    /// [`PacketSocket::start`] on.
    pub(super) fn open(settings: &Settings<'_>) -> Result<Self, BackendError> {
        let index = interface_index(settings.interface)?;
        // Protocol 0 gets nothing until bind names interface and protocol together: no packet of
        // another interface, and none that the filter would not take, slips in.
        // SAFETY: a plain system call without pointers.
        let raw = unsafe {
            libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            )
        };
        if raw < 0 {
            return Err(BackendError::socket(
                settings.interface,
                "opening a packet socket",
                io::Error::last_os_error(),
            ));
        }
        let mut socket = Self {
            // SAFETY: the descriptor was just opened and nobody else owns it.
            fd: unsafe { OwnedFd::from_raw_fd(raw) },
            interface: settings.interface.to_owned(),
            index,
            hardware_type: 0,
            counts: Counts::default(),
        };
        socket.bind(0)?;
        socket.hardware_type = socket.bound_hardware_type()?;
        socket.link_type()?;
        if socket.hardware_type == libc::ARPHRD_LOOPBACK {
            // Each packet passes twice there, once out and once in.
            socket.set(libc::PACKET_IGNORE_OUTGOING, &1, "leaving out what is sent")?;
        }
        if settings.promiscuous {
            let membership = libc::packet_mreq {
                mr_ifindex: index,
                mr_type: libc::PACKET_MR_PROMISC as u16,
                mr_alen: 0,
                mr_address: [0; 8],
            };
            socket.set(libc::PACKET_ADD_MEMBERSHIP, &membership, "promiscuous mode")?;
        }
        socket.attach(&filter(settings))?;
        Ok(socket)
    }

    /// Lets packets in.
    pub(super) fn start(&self) -> Result<(), BackendError> {
        self.bind(libc::ETH_P_ALL as u16)
    }

    /// Lets no more packets in: a filter that takes none. They are not counted as seen either.
    pub(super) fn stop(&self) -> Result<(), BackendError> {
        self.attach(&[libc::sock_filter {
            code: RETURN_CONSTANT,
            jt: 0,
            jf: 0,
            k: 0,
        }])
    }

    /// Sets an option of packet sockets.
    pub(super) fn set<T>(
        &self,
        option: libc::c_int,
        value: &T,
        action: &'static str,
    ) -> Result<(), BackendError> {
        set_option(self.fd.as_fd(), libc::SOL_PACKET, option, value)
            .map_err(|source| self.failed(action, source))
    }

    pub(super) fn failed(&self, action: &'static str, source: io::Error) -> BackendError {
        BackendError::socket(&self.interface, action, source)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What packets start with.
    pub(super) fn link_type(&self) -> Result<u16, BackendError> {
        match self.hardware_type {
            libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Ok(LINK_TYPE_ETHERNET),
            libc::ARPHRD_NONE => Ok(LINK_TYPE_RAW),
            hardware_type => Err(BackendError::HardwareType {
                interface: self.interface.clone(),
                hardware_type,
            }),
        }
    }

    /// Counts packets that were handed on.
    pub(super) fn delivered(&mut self, packets: usize) {
        self.counts.delivered += packets as u64;
    }

    /// The account so far. The kernel's counts start anew whenever they are read, and wrap after 2^32.
    pub(super) fn counts(&mut self) -> Result<Counts, BackendError> {
        // SAFETY: three integers. Sockets without TPACKET_V3 fill the first two.
        let read = unsafe {
            option_of::<libc::tpacket_stats_v3>(
                self.fd.as_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
            )
        };
        let new = read.map_err(|source| self.failed("reading the counters", source))?;
        // The first count has the second in it.
        self.counts.seen += u64::from(new.tp_packets);
        self.counts.dropped += u64::from(new.tp_drops);
        Ok(self.counts)
    }

    fn bind(&self, protocol: u16) -> Result<(), BackendError> {
        // SAFETY: plain data for which zeros are valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = self.index;
        // SAFETY: the address is initialised, and its size is given.
        let result = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if result < 0 {
            return Err(self.failed("binding", io::Error::last_os_error()));
        }
        Ok(())
    }

    fn bound_hardware_type(&self) -> Result<u16, BackendError> {
        // SAFETY: plain data for which zeros are valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: address has room for the bytes that are told.
        let result = unsafe {
            libc::getsockname(self.fd.as_raw_fd(), (&raw mut address).cast(), &mut bytes)
        };
        if result < 0 {
            return Err(self.failed("asking for the interface", io::Error::last_os_error()));
        }
        Ok(address.sll_hatype)
    }

    fn attach(&self, instructions: &[libc::sock_filter]) -> Result<(), BackendError> {
        let program = libc::sock_fprog {
            len: instructions.len() as u16,
            filter: instructions.as_ptr().cast_mut(),
        };
        set_option(
            self.fd.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            &program,
        )
        .map_err(|source| BackendError::Socket {
            interface: self.interface.clone(),
            action: "attaching the filter",
            source,
            remedy: "a filter has at most 4096 instructions, all of the classic machine",
        })
    }
}

/// The filter with the limit of captured bytes in it: what it returns is how much the kernel keeps.
fn filter(settings: &Settings<'_>) -> Vec<libc::sock_filter> {
    let snaplen_bytes = settings.snaplen_bytes();
    let all = [ClassicInstruction {
        code: RETURN_CONSTANT,
        jt: 0,
        jf: 0,
        k: snaplen_bytes,
    }];
    settings
        .filter
        .unwrap_or(&all)
        .iter()
        .map(
            |&ClassicInstruction { code, jt, jf, k }| libc::sock_filter {
                code,
                jt,
                jf,
                k: match code {
                    RETURN_CONSTANT => k.min(snaplen_bytes),
                    _ => k,
                },
            },
        )
        .collect()
}

/// Which way a packet went, from the type that the kernel gives it.
pub(super) fn direction(packet_type: u8) -> Direction {
    match packet_type {
        libc::PACKET_OUTGOING => Direction::Out,
        _ => Direction::In,
    }
}
