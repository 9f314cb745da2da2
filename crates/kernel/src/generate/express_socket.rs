//! `AF_XDP`: frames in memory that the driver sends from, or that the kernel copies for it.

use super::GenerateError;
use super::backend::{Backend, failed};
use super::pace::{Due, Pace};
use super::plan_ring::PlanRing;
use crate::capture::backend::express::bind;
use crate::capture::backend::frame_ring::Ring;
use crate::capture::backend::mapping::Mapping;
use crate::capture::backend::packet_socket::{option_of, set_option};
use parshall_core::workload::{Packets, Workload};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes of a chunk of the frames' memory: a page.
const CHUNK_BYTES: usize = 4096;
/// Chunks, and entries of each ring: a power of two.
const CHUNKS: u32 = 1024;
/// Packets of one system call when nobody waits for the time of each.
const BATCH: u32 = 64;
/// `XDP_USE_SG` and `XDP_PKT_CONTD` of linux/if_xdp.h: a packet in several chunks, from kernel 6.6 on.
const USE_SEVERAL_CHUNKS: u16 = 1 << 4;
const MORE_CHUNKS_FOLLOW: u32 = 1 << 0;
/// How long the driver may keep the last packets, and the kernel the queue of a socket before.
const DRAIN: Duration = Duration::from_secs(1);

pub(super) struct ExpressSocket {
    fd: OwnedFd,
    transmit: Ring,
    completion: Ring,
    /// The kernel wants this ring, too; it is for receiving.
    _fill: Ring,
    memory: Mapping,
    free: Vec<u64>,
    packets: Packets,
    is_stamped: bool,
    frame: Vec<u8>,
    chunks_per_packet: u32,
}

impl ExpressSocket {
    /// Opens a socket on a queue of an interface of the calling thread's network namespace.
    pub fn open(
        workload: &Workload,
        packets: &Packets,
        interface: (&str, u32),
        queue: u32,
    ) -> Result<Self, GenerateError> {
        // SAFETY: a plain system call without pointers.
        let raw = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if raw < 0 {
            return Err(failed("open an AF_XDP socket (CAP_NET_RAW)")(
                io::Error::last_os_error(),
            ));
        }
        // SAFETY: the descriptor was just opened and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let frame = packets.blank_frame(workload.largest_frame_bytes());
        let chunks_per_packet = frame.len().div_ceil(CHUNK_BYTES) as u32;
        let mut memory = Mapping::zeros(CHUNKS as usize * CHUNK_BYTES)
            .map_err(failed("give memory for frames"))?;
        // SAFETY: the kernel has no frames yet.
        let all = unsafe { memory.slice(0, memory.bytes()) }
            .ok_or_else(|| failed("give memory for frames")(io::ErrorKind::OutOfMemory.into()))?;
        for chunk in all.chunks_exact_mut(CHUNK_BYTES) {
            // Payload that every packet has, so that only headers are written later; longer packets are copied whole.
            let bytes = frame.len().min(CHUNK_BYTES);
            chunk[..bytes].copy_from_slice(&frame[..bytes]);
        }
        // SAFETY: plain data for which zeros are valid.
        let mut registration: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
        registration.addr = all.as_ptr() as u64;
        registration.len = all.len() as u64;
        registration.chunk_size = CHUNK_BYTES as u32;
        set_option(fd.as_fd(), libc::SOL_XDP, libc::XDP_UMEM_REG, &registration).map_err(
            failed("register frames (is it more memory than the process may lock?)"),
        )?;
        for (option, what) in [
            (libc::XDP_UMEM_FILL_RING, "make the fill ring"),
            (libc::XDP_UMEM_COMPLETION_RING, "make the completion ring"),
            (libc::XDP_TX_RING, "make the transmit ring"),
        ] {
            set_option(fd.as_fd(), libc::SOL_XDP, option, &CHUNKS).map_err(failed(what))?;
        }
        // SAFETY: integers only.
        let offsets: libc::xdp_mmap_offsets =
            unsafe { option_of(fd.as_fd(), libc::SOL_XDP, libc::XDP_MMAP_OFFSETS) }
                .map_err(failed("say where the rings are"))?;
        let mapped = failed("map a ring");
        let addresses = |offset, page_offset| {
            Ring::map::<u64>(fd.as_fd(), offset, CHUNKS, page_offset).map_err(&mapped)
        };
        let fill = addresses(&offsets.fr, libc::XDP_UMEM_PGOFF_FILL_RING)?;
        let completion = addresses(&offsets.cr, libc::XDP_UMEM_PGOFF_COMPLETION_RING)?;
        let transmit = Ring::map::<libc::xdp_desc>(
            fd.as_fd(),
            &offsets.tx,
            CHUNKS,
            libc::XDP_PGOFF_TX_RING as u64,
        )
        .map_err(&mapped)?;
        let flags = if chunks_per_packet > 1 {
            USE_SEVERAL_CHUNKS
        } else {
            0
        };
        let (name, index) = interface;
        bind_when_free(fd.as_fd(), index, queue, flags)
            .map_err(|error| not_bound(name, queue, flags, &error))?;
        Ok(Self {
            fd,
            transmit,
            completion,
            _fill: fill,
            memory,
            free: (0..u64::from(CHUNKS))
                .map(|chunk| chunk * CHUNK_BYTES as u64)
                .collect(),
            packets: packets.clone(),
            is_stamped: workload.is_stamped,
            frame,
            chunks_per_packet,
        })
    }

    /// Takes back the chunks of packets that have left.
    fn reap(&mut self) {
        let consumed = self.completion.consumer().load(Ordering::Relaxed);
        let produced = self.completion.producer().load(Ordering::Acquire);
        for position in 0..produced.wrapping_sub(consumed) {
            let entry = self
                .completion
                .entry::<u64>(consumed.wrapping_add(position));
            // SAFETY: an entry that the kernel has produced and that we have not given back.
            self.free.push(unsafe { entry.read() });
        }
        self.completion
            .consumer()
            .store(produced, Ordering::Release);
    }

    /// Whether there are too few free chunks for a packet.
    fn is_short(&self) -> bool {
        self.free.len() < self.chunks_per_packet as usize
    }

    fn describe(&self, place: u32, address: u64, bytes: usize, options: u32) {
        let entry = self.transmit.entry::<libc::xdp_desc>(place);
        let descriptor = libc::xdp_desc {
            addr: address,
            len: bytes as u32,
            options,
        };
        // SAFETY: the ring has an entry for each chunk, so this one is free.
        unsafe { entry.write(descriptor) };
    }

    /// Puts a packet at this place of the transmit ring; gives the place behind it.
    fn put(&mut self, place: u32, due: &Due) -> u32 {
        if self.chunks_per_packet == 1 {
            let (address, chunk) = chunk(&mut self.free, &mut self.memory);
            let bytes = self
                .packets
                .write(&due.packet, due.sequence, due.now_ns, chunk);
            self.describe(place, address, bytes, 0);
            return place.wrapping_add(1);
        }
        let mut frame = std::mem::take(&mut self.frame);
        let bytes = self
            .packets
            .write(&due.packet, due.sequence, due.now_ns, &mut frame);
        let mut parts = frame[..bytes].chunks(CHUNK_BYTES).peekable();
        let mut behind = place;
        while let Some(part) = parts.next() {
            let (address, chunk) = chunk(&mut self.free, &mut self.memory);
            chunk[..part.len()].copy_from_slice(part);
            let options = if parts.peek().is_some() {
                MORE_CHUNKS_FOLLOW
            } else {
                0
            };
            self.describe(behind, address, part.len(), options);
            behind = behind.wrapping_add(1);
        }
        self.frame = frame;
        behind
    }

    /// Entries of the transmit ring that the kernel has not taken.
    fn waiting(&self) -> u32 {
        let produced = self.transmit.producer().load(Ordering::Relaxed);
        produced.wrapping_sub(self.transmit.consumer().load(Ordering::Acquire))
    }

    /// Lets the kernel take what is in the transmit ring; true when it has taken all.
    fn kick(&mut self) -> Result<bool, GenerateError> {
        // SAFETY: nothing but the socket is named.
        let status = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                std::ptr::null(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null(),
                0,
            )
        };
        if status < 0 {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // It takes a few at a time, and pauses when the driver's queue is full.
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => {}
                _ => return Err(failed("send from the AF_XDP socket")(error)),
            }
        }
        self.reap();
        Ok(self.waiting() == 0)
    }
}

/// The kernel gives the queue free a moment after the socket before was closed.
fn bind_when_free(fd: BorrowedFd<'_>, index: u32, queue: u32, flags: u16) -> io::Result<()> {
    let deadline = Instant::now() + DRAIN;
    loop {
        match bind(fd, index, queue, flags) {
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline =>
            {
                std::thread::yield_now();
            }
            result => return result,
        }
    }
}

fn not_bound(interface: &str, queue: u32, flags: u16, error: &io::Error) -> GenerateError {
    let reason = match error.raw_os_error() {
        Some(libc::EINVAL) if queue > 0 => format!(
            "it has no queue {queue} that an AF_XDP socket can be bound to; `ethtool -l {interface}` tells how many there \
             are, and each CPU of --cpu needs one, from 0 on or those of --queue"
        ),
        Some(libc::EBUSY) => {
            format!("queue {queue} has an AF_XDP socket already; choose another by --queue")
        }
        _ if flags & USE_SEVERAL_CHUNKS != 0 => format!(
            "no AF_XDP socket can be bound to queue {queue} for packets longer than a page (kernel 6.6 or later): {error}"
        ),
        _ => format!("no AF_XDP socket can be bound to queue {queue}: {error}"),
    };
    GenerateError::Interface {
        interface: interface.into(),
        reason,
    }
}

/// A free chunk and where it lies.
fn chunk<'a>(free: &mut Vec<u64>, memory: &'a mut Mapping) -> (u64, &'a mut [u8]) {
    let address = free.pop().expect("the caller left chunks for a packet");
    // SAFETY: the chunk is ours: it came back by the completion ring, or was never given away.
    let chunk = unsafe { memory.slice(address as usize, CHUNK_BYTES) };
    (address, chunk.expect("chunks lie inside the memory"))
}

impl Backend for ExpressSocket {
    fn run(&mut self, ring: &PlanRing) -> Result<(), GenerateError> {
        let mut pace = Pace::new(ring, self.is_stamped);
        let batch = if ring.is_paced() { 1 } else { BATCH };
        let mut place = self.transmit.producer().load(Ordering::Relaxed);
        loop {
            let mut taken = 0;
            while taken < batch && !self.is_short() && (taken == 0 || pace.is_ready()) {
                let Some(due) = pace.next() else { break };
                place = self.put(place, &due);
                taken += 1;
            }
            self.transmit.producer().store(place, Ordering::Release);
            if taken == 0 && !self.is_short() {
                return self.drain();
            }
            while !self.kick().inspect_err(|_| pace.tell(self.unsent()))? {
                std::thread::yield_now();
            }
            pace.tell(0);
        }
    }
}

impl ExpressSocket {
    /// Packets that the kernel has not taken: they end with the socket.
    fn unsent(&self) -> u64 {
        u64::from(self.waiting().div_ceil(self.chunks_per_packet))
    }

    /// Waits until the driver has given every chunk back, so that the interface's counters are those of the end.
    fn drain(&mut self) -> Result<(), GenerateError> {
        let deadline = Instant::now() + DRAIN;
        while self.free.len() < CHUNKS as usize && Instant::now() < deadline {
            self.kick()?;
            std::thread::yield_now();
        }
        Ok(())
    }
}
