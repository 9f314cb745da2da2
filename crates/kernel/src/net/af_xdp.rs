//! `AF_XDP`: frames in memory that is shared with the driver, or that the kernel copies for it.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions,
    XdpRingOffset, XdpStatistics, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, send, sockopt};

use super::mapping::Mapping;
use super::socket::{SocketError, failed};

/// Bytes of a frame: a page.
pub(crate) const FRAME_BYTES: usize = 4096;

/// A ring of one producer and one consumer, of which the kernel is one. It has an entry for each frame.
struct Ring<T> {
    mapping: Mapping,
    producer_at: usize,
    consumer_at: usize,
    entries_at: usize,
    /// Entries, a power of two, less one.
    mask: u32,
    entry: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn map(
        socket: &OwnedFd,
        offsets: &XdpRingOffset,
        entries: u32,
        page_offset: u64,
    ) -> Result<Self, SocketError> {
        let entries_at = offsets.desc as usize;
        let bytes = entries_at + entries as usize * size_of::<T>();
        Ok(Self {
            mapping: Mapping::of(socket, bytes, page_offset, true)
                .map_err(failed("mapping a ring"))?,
            producer_at: offsets.producer as usize,
            consumer_at: offsets.consumer as usize,
            entries_at,
            mask: entries - 1,
            entry: PhantomData,
        })
    }

    fn entry(&self, position: u32) -> *mut T {
        let number = (position & self.mask) as usize;
        self.mapping
            .pointer(self.entries_at + number * size_of::<T>())
    }

    /// Entries that the producer has filled and the consumer has not released. For the consumer: they can be read.
    fn filled(&self) -> u32 {
        let consumed = self.mapping.word32(self.consumer_at);
        let produced = self.mapping.word32(self.producer_at);
        produced
            .load(Ordering::Acquire)
            .wrapping_sub(consumed.load(Ordering::Acquire))
    }

    /// For the consumer: the filled entry that `number` others precede.
    fn peek(&self, number: u32) -> T {
        let consumed = self.mapping.word32(self.consumer_at);
        let position = consumed.load(Ordering::Relaxed).wrapping_add(number);
        // SAFETY: aligned and inside the mapping; a filled entry stays until it is released, and any bytes are a value.
        unsafe { self.entry(position).read() }
    }

    /// For the consumer: releases the first entries.
    fn release(&self, count: u32) {
        let consumed = self.mapping.word32(self.consumer_at);
        consumed.store(
            consumed.load(Ordering::Relaxed).wrapping_add(count),
            Ordering::Release,
        );
    }

    /// For the producer: fills the entry behind `number` others that are not submitted yet.
    fn put(&self, number: u32, value: T) {
        let produced = self.mapping.word32(self.producer_at);
        let position = produced.load(Ordering::Relaxed).wrapping_add(number);
        // SAFETY: aligned and inside the mapping; there is an entry for each frame, so this one is free.
        unsafe { self.entry(position).write(value) }
    }

    /// For the producer: hands entries over.
    fn submit(&self, count: u32) {
        let produced = self.mapping.word32(self.producer_at);
        produced.store(
            produced.load(Ordering::Relaxed).wrapping_add(count),
            Ordering::Release,
        );
    }
}

/// A socket with its frames and the two rings that every socket has.
struct Socket {
    fd: OwnedFd,
    frames: Mapping,
    /// Addresses of frames that the kernel may receive into.
    fill: Ring<u64>,
    /// Addresses of frames that were sent.
    completion: Ring<u64>,
    /// Packets that were received, or are to be sent.
    packets: Ring<XdpDesc>,
}

enum Side {
    Receive,
    Transmit,
}

impl Socket {
    /// Opens a socket with so many frames, a power of two.
    fn open(frames: u32, side: Side) -> Result<Self, SocketError> {
        let (fd, memory) = open_with_memory(frames as usize * FRAME_BYTES)?;
        sockopt::set_xdp_umem_fill_ring_size(&fd, frames)
            .map_err(failed("making the fill ring"))?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, frames)
            .map_err(failed("making the completion ring"))?;
        match side {
            Side::Receive => sockopt::set_xdp_rx_ring_size(&fd, frames),
            Side::Transmit => sockopt::set_xdp_tx_ring_size(&fd, frames),
        }
        .map_err(failed("making the ring of packets"))?;
        let offsets =
            sockopt::xdp_mmap_offsets(&fd).map_err(failed("asking where the rings are"))?;
        let (packets, page_offset) = match side {
            Side::Receive => (&offsets.rx, XDP_PGOFF_RX_RING),
            Side::Transmit => (&offsets.tx, XDP_PGOFF_TX_RING),
        };
        Ok(Self {
            fill: Ring::map(&fd, &offsets.fr, frames, XDP_UMEM_PGOFF_FILL_RING)?,
            completion: Ring::map(&fd, &offsets.cr, frames, XDP_UMEM_PGOFF_COMPLETION_RING)?,
            packets: Ring::map(&fd, packets, frames, page_offset)?,
            frames: memory,
            fd,
        })
    }

    fn bind(&self, index: u32, queue: u32, flags: SocketAddrXdpFlags) -> Result<(), SocketError> {
        bind(&self.fd, &SocketAddrXdp::new(flags, index, queue))
            .map_err(failed("binding to the queue"))
    }
}

/// Opens a socket and registers memory for its frames.
///
/// # Errors
/// When the kernel has no `AF_XDP`, `CAP_NET_RAW` is missing, or the process may not lock so much memory.
pub(crate) fn open_with_memory(bytes: usize) -> Result<(OwnedFd, Mapping), SocketError> {
    let fd = rustix::net::socket_with(
        AddressFamily::XDP,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(failed("opening an AF_XDP socket (CAP_NET_RAW)"))?;
    let memory = Mapping::anonymous(bytes).map_err(failed("getting memory for frames"))?;
    let registration = XdpUmemReg {
        addr: memory.pointer::<u8>(0) as u64,
        len: bytes as u64,
        chunk_size: FRAME_BYTES as u32,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(&fd, registration).map_err(failed(
        "registering frames (is it more memory than the process may lock?)",
    ))?;
    Ok((fd, memory))
}

/// Receives from a queue of an interface what an XDP program redirects to the socket.
pub(crate) struct XdpReceiver {
    socket: Socket,
    /// Packets that were received and not given back, when that was asked last.
    received: u32,
}

impl XdpReceiver {
    /// Opens a socket with so many frames, a power of two.
    ///
    /// # Errors
    /// When the interface has no such queue, or another socket has it.
    pub fn open(index: u32, queue: u32, frames: u32) -> Result<Self, SocketError> {
        let socket = Socket::open(frames, Side::Receive)?;
        for frame in 0..frames {
            socket
                .fill
                .put(frame, u64::from(frame) * FRAME_BYTES as u64);
        }
        socket.fill.submit(frames);
        socket.bind(index, queue, SocketAddrXdpFlags::empty())?;
        Ok(Self {
            socket,
            received: 0,
        })
    }

    /// Packets that were received and not given back.
    pub fn received(&mut self) -> u32 {
        self.received = self.socket.packets.filled();
        self.received
    }

    /// The received packet that `number` others precede.
    ///
    /// # Panics
    /// When `number` is not below what [`XdpReceiver::received`] returned.
    pub fn packet(&mut self, number: u32) -> &[u8] {
        assert!(number < self.received);
        let packet = self.socket.packets.peek(number);
        // SAFETY: the frame is ours until its address is in the fill ring again.
        let bytes = unsafe {
            self.socket
                .frames
                .bytes_mut(packet.addr as usize, packet.len as usize)
        };
        bytes.expect("the kernel puts packets inside the frames")
    }

    /// Gives the frames of the first packets back to the kernel.
    ///
    /// # Panics
    /// When `count` is above what [`XdpReceiver::received`] returned.
    pub fn give_back(&mut self, count: u32) {
        assert!(count <= self.received);
        let Socket { packets, fill, .. } = &self.socket;
        for number in 0..count {
            fill.put(number, packets.peek(number).addr);
        }
        packets.release(count);
        fill.submit(count);
        self.received -= count;
    }

    /// What the kernel has dropped, and why.
    pub fn statistics(&self) -> Result<XdpStatistics, SocketError> {
        sockopt::xdp_statistics(&self.socket.fd).map_err(failed("reading the counters"))
    }
}

impl AsFd for XdpReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.fd.as_fd()
    }
}

/// Sends by a queue of an interface.
pub(crate) struct XdpSender {
    socket: Socket,
    free: Vec<u64>,
    /// Entries of the ring that are not submitted yet.
    pending: u32,
}

impl XdpSender {
    /// Opens a socket with so many frames, a power of two, each of which begins as `content`. It can send when it
    /// is bound.
    pub fn open(frames: u32, content: &[u8]) -> Result<Self, SocketError> {
        let mut socket = Socket::open(frames, Side::Transmit)?;
        let length_bytes = socket.frames.length_bytes();
        // SAFETY: the kernel has no frames yet.
        let memory = unsafe { socket.frames.bytes_mut(0, length_bytes) };
        for frame in memory
            .into_iter()
            .flat_map(|bytes| bytes.chunks_exact_mut(FRAME_BYTES))
        {
            let bytes = content.len().min(FRAME_BYTES);
            frame[..bytes].copy_from_slice(&content[..bytes]);
        }
        Ok(Self {
            socket,
            free: (0..u64::from(frames))
                .map(|frame| frame * FRAME_BYTES as u64)
                .collect(),
            pending: 0,
        })
    }

    /// Binds to a queue of an interface; with `is_multi_frame` (Linux 6.6) for packets of several frames.
    ///
    /// # Errors
    /// When the interface has no such queue, or another socket has it.
    pub fn bind(&self, index: u32, queue: u32, is_multi_frame: bool) -> Result<(), SocketError> {
        let mut flags = SocketAddrXdpFlags::empty();
        flags.set(SocketAddrXdpFlags::XDP_USE_SG, is_multi_frame);
        self.socket.bind(index, queue, flags)
    }

    /// Frames that can be filled.
    pub fn free_frames(&self) -> usize {
        self.free.len()
    }

    /// Lets `write` fill a free frame, with what it was filled with before; it returns the length, bytes. The frame
    /// becomes a packet, or with `is_continued` a part of one whose next part follows.
    ///
    /// # Panics
    /// When there is no free frame.
    pub fn put(&mut self, is_continued: bool, write: impl FnOnce(&mut [u8]) -> usize) {
        let address = self.free.pop().expect("the caller left a free frame");
        // SAFETY: the frame is ours: it came back by the completion ring, or was never given away.
        let frame = unsafe { self.socket.frames.bytes_mut(address as usize, FRAME_BYTES) };
        let bytes = write(frame.expect("frames lie inside the memory"));
        let mut options = XdpDescOptions::empty();
        options.set(XdpDescOptions::XDP_PKT_CONTD, is_continued);
        let packet = XdpDesc {
            addr: address,
            len: bytes as u32,
            options,
        };
        self.socket.packets.put(self.pending, packet);
        self.pending += 1;
    }

    /// Hands the frames that were put over to the kernel.
    pub fn submit(&mut self) {
        self.socket.packets.submit(self.pending);
        self.pending = 0;
    }

    /// Submitted frames that the kernel has not taken.
    pub fn waiting(&self) -> u32 {
        self.socket.packets.filled()
    }

    /// Lets the kernel take submitted frames, and takes back those that were sent.
    pub fn kick(&mut self) -> io::Result<()> {
        match send(&self.socket.fd, &[], SendFlags::DONTWAIT) {
            // It takes a few at a time, and pauses when the driver's queue is full.
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let sent = self.socket.completion.filled();
        for number in 0..sent {
            self.free.push(self.socket.completion.peek(number));
        }
        self.socket.completion.release(sent);
        Ok(())
    }
}
