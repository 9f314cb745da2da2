//! `AF_XDP`: an XDP program hands packets to a socket, before the stack sees them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use parshall_core::trace::{Direction, LINK_TYPE_ETHERNET, Packet};

use super::error::BackendError;
use super::frame_ring::Ring;
use super::mapping::Mapping;
use super::packet_socket::{interface_index, option_of, set_option, wait_readable};
use super::redirect::{QUEUE, Redirect};
use super::{Backend, Counts, Settings};

/// Bytes of a frame: a page. The driver's headroom goes off it, so packets of up to 3,840 bytes fit;
/// longer ones are dropped, and counted.
const FRAME_BYTES: usize = 4096;
/// The rings need a power of two.
const FRAMES_MIN: usize = 64;
/// Packets that are handed on before their frames go back to the kernel.
const BATCH: u32 = 64;

/// See [`super::Kind::Express`].
pub(super) struct Express {
    /// Before everything else, so that no packet is redirected any more when the socket closes.
    redirect: Redirect,
    received: Ring,
    fill: Ring,
    /// The kernel wants this ring, too; it is for sending.
    _completion: Ring,
    frames: Mapping,
    fd: OwnedFd,
    interface: String,
    snaplen_bytes: usize,
    delivered: u64,
}

impl Express {
    pub(super) fn open(settings: &Settings<'_>) -> Result<Self, BackendError> {
        let index = interface_index(settings.interface)?;
        let failed =
            |action| move |source| BackendError::socket(settings.interface, action, source);
        let frames = (settings.buffer_bytes / FRAME_BYTES).max(FRAMES_MIN);
        let frames = 1u32 << frames.ilog2();

        // SAFETY: a plain system call without pointers.
        let raw = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if raw < 0 {
            return Err(failed("opening an AF_XDP socket")(
                io::Error::last_os_error(),
            ));
        }
        // SAFETY: the descriptor was just opened and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let mut memory = Mapping::zeros(frames as usize * FRAME_BYTES)
            .map_err(failed("getting memory for frames"))?;
        // SAFETY: plain data for which zeros are valid.
        let mut registration: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel has no frames yet.
        let start = unsafe { memory.slice(0, memory.bytes()) };
        registration.addr = start.map_or(0, |bytes| bytes.as_ptr() as u64);
        registration.len = memory.bytes() as u64;
        registration.chunk_size = FRAME_BYTES as u32;
        let set = |option, value: &u32, action| {
            set_option(fd.as_fd(), libc::SOL_XDP, option, value).map_err(failed(action))
        };
        set_option(fd.as_fd(), libc::SOL_XDP, libc::XDP_UMEM_REG, &registration).map_err(
            failed("registering frames (is it more memory than the process may lock?)"),
        )?;
        set(libc::XDP_UMEM_FILL_RING, &frames, "making the fill ring")?;
        set(
            libc::XDP_UMEM_COMPLETION_RING,
            &frames,
            "making the completion ring",
        )?;
        set(libc::XDP_RX_RING, &frames, "making the receive ring")?;
        // SAFETY: integers only.
        let offsets: libc::xdp_mmap_offsets =
            unsafe { option_of(fd.as_fd(), libc::SOL_XDP, libc::XDP_MMAP_OFFSETS) }
                .map_err(failed("asking where the rings are"))?;
        let mapped = failed("mapping a ring");
        let received = Ring::map::<libc::xdp_desc>(
            fd.as_fd(),
            &offsets.rx,
            frames,
            libc::XDP_PGOFF_RX_RING as u64,
        )
        .map_err(&mapped)?;
        let fill = Ring::map::<u64>(
            fd.as_fd(),
            &offsets.fr,
            frames,
            libc::XDP_UMEM_PGOFF_FILL_RING,
        )
        .map_err(&mapped)?;
        let completion = Ring::map::<u64>(
            fd.as_fd(),
            &offsets.cr,
            frames,
            libc::XDP_UMEM_PGOFF_COMPLETION_RING,
        )
        .map_err(&mapped)?;
        for frame in 0..frames {
            // SAFETY: an entry of the ring, which the kernel does not read before the producer is moved.
            unsafe {
                fill.entry::<u64>(frame)
                    .write(u64::from(frame) * FRAME_BYTES as u64)
            };
        }
        fill.producer().store(frames, Ordering::Release);
        bind(fd.as_fd(), index as u32, QUEUE, 0).map_err(failed("binding to queue 0"))?;

        let redirect = Redirect::attach(index, fd.as_fd(), settings)?;
        Ok(Self {
            redirect,
            received,
            fill,
            _completion: completion,
            frames: memory,
            fd,
            interface: settings.interface.to_owned(),
            snaplen_bytes: settings.snaplen_bytes() as usize,
            delivered: 0,
        })
    }

    fn failed(&self, action: &'static str, source: io::Error) -> BackendError {
        BackendError::socket(&self.interface, action, source)
    }

    /// Hands on what is in the ring, at most a batch; gives its number.
    fn receive(&mut self, take: &mut dyn FnMut(&Packet<'_>)) -> u32 {
        let consumed = self.received.consumer().load(Ordering::Relaxed);
        let produced = self.received.producer().load(Ordering::Acquire);
        let packets = produced.wrapping_sub(consumed).min(BATCH);
        if packets == 0 {
            return 0;
        }
        let time_ns = realtime_ns();
        let filled = self.fill.producer().load(Ordering::Relaxed);
        for number in 0..packets {
            let entry = self
                .received
                .entry::<libc::xdp_desc>(consumed.wrapping_add(number));
            // SAFETY: an entry that the kernel has produced and that we have not given back.
            let (address, bytes) = unsafe { ((*entry).addr, (*entry).len) };
            // SAFETY: the frame is ours until its address is in the fill ring again.
            let frame = unsafe { self.frames.slice(address as usize, bytes as usize) };
            let frame = frame.expect("the kernel puts packets inside the frames");
            take(&Packet {
                time_ns,
                direction: Direction::In,
                wire_bytes: bytes,
                captured: &frame[..frame.len().min(self.snaplen_bytes)],
                ..Packet::default()
            });
            let empty = self.fill.entry::<u64>(filled.wrapping_add(number));
            // SAFETY: the ring has an entry for each frame, so this one is free.
            unsafe { empty.write(address) };
        }
        self.received
            .consumer()
            .store(consumed.wrapping_add(packets), Ordering::Release);
        self.fill
            .producer()
            .store(filled.wrapping_add(packets), Ordering::Release);
        self.delivered += u64::from(packets);
        packets
    }
}

/// Binds to the queue: without a copy where the driver can, else with one.
pub(crate) fn bind(fd: BorrowedFd<'_>, index: u32, queue: u32, flags: u16) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    // SAFETY: the address is initialised, and its size is given.
    let result = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_xdp>() as libc::socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn realtime_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Backend for Express {
    fn link_type(&self) -> u16 {
        LINK_TYPE_ETHERNET
    }

    fn next_batch(
        &mut self,
        timeout: Duration,
        take: &mut dyn FnMut(&Packet<'_>),
    ) -> Result<usize, BackendError> {
        let mut packets = self.receive(take);
        if packets == 0 && !timeout.is_zero() {
            wait_readable(self.fd.as_fd(), timeout)
                .map_err(|source| self.failed("waiting", source))?;
            packets = self.receive(take);
        }
        Ok(packets as usize)
    }

    fn stop(&mut self) -> Result<(), BackendError> {
        self.redirect.detach();
        Ok(())
    }

    fn counts(&mut self) -> Result<Counts, BackendError> {
        // SAFETY: integers only.
        let statistics: libc::xdp_statistics =
            unsafe { option_of(self.fd.as_fd(), libc::SOL_XDP, libc::XDP_STATISTICS) }
                .map_err(|source| self.failed("reading the counters", source))?;
        let handed = self
            .redirect
            .handed()
            .map_err(|source| self.failed("reading the counter", source))?;
        Ok(Counts {
            seen: handed,
            // What found no frame or did not fit, and what found no entry in the ring. The count of empty
            // fill rings is about the same packets as the first.
            dropped: statistics.rx_dropped + statistics.rx_ring_full,
            delivered: self.delivered,
        })
    }
}
