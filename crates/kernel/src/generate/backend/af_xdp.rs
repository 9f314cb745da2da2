//! `AF_XDP`: frames in memory that the driver sends from, or that the kernel copies for it.

use super::Backend;
use super::pace::{Due, Pace};
use crate::generate::GenerateError;
use crate::generate::error::failed;
use crate::generate::plan_ring::PlanRing;
use crate::net::af_xdp::{FRAME_BYTES, XdpSender};
use crate::net::interface::InterfaceError;
use crate::net::socket::SocketError;
use parshall_core::workload::{Packets, Workload};
use std::time::{Duration, Instant};

/// Frames in the memory, a power of two.
const FRAMES: u32 = 1024;
/// Packets of one system call when packets are not paced.
const BATCH: u32 = 64;
/// How long the driver may keep the last packets.
const DRAIN: Duration = Duration::from_secs(1);
/// How long the kernel may keep the queue of an earlier socket: a busy machine frees it seconds later.
const RELEASE: Duration = Duration::from_secs(5);

pub(crate) struct AfXdp {
    socket: XdpSender,
    packets: Packets,
    is_stamped: bool,
    /// Where packets of several frames are written.
    packet: Vec<u8>,
    frames_per_packet: usize,
}

impl AfXdp {
    /// Opens a socket on a queue of an interface of the calling thread's network namespace.
    pub fn open(
        workload: &Workload,
        packets: &Packets,
        interface: (&str, u32),
        queue: u32,
    ) -> Result<Self, GenerateError> {
        // Payload that every packet has, so that only headers are written later; longer packets are copied whole.
        let packet = packets.blank_frame(workload.largest_frame_bytes());
        let socket = XdpSender::open(FRAMES, &packet)?;
        let frames_per_packet = packet.len().div_ceil(FRAME_BYTES);
        let (name, index) = interface;
        let is_multi_frame = frames_per_packet > 1;
        bind_when_free(&socket, index, queue, is_multi_frame)
            .map_err(|error| not_bound(name, queue, is_multi_frame, &error))?;
        Ok(Self {
            socket,
            packets: packets.clone(),
            is_stamped: workload.is_stamped,
            packet,
            frames_per_packet,
        })
    }

    /// Whether there are too few free frames for a packet.
    fn is_short(&self) -> bool {
        self.socket.free_frames() < self.frames_per_packet
    }

    /// Puts a packet into the ring.
    fn put(&mut self, due: &Due) {
        let packets = &self.packets;
        let write = |frame: &mut [u8]| packets.write(&due.packet, due.sequence, due.now_ns, frame);
        if self.frames_per_packet == 1 {
            self.socket.put(false, write);
            return;
        }
        let bytes = write(&mut self.packet);
        let mut parts = self.packet[..bytes].chunks(FRAME_BYTES).peekable();
        while let Some(part) = parts.next() {
            self.socket.put(parts.peek().is_some(), |frame| {
                frame[..part.len()].copy_from_slice(part);
                part.len()
            });
        }
    }

    /// Lets the kernel take what was submitted; true when it has taken all.
    fn kick(&mut self) -> Result<bool, GenerateError> {
        self.socket
            .kick()
            .map_err(failed("send from the AF_XDP socket"))?;
        Ok(self.socket.waiting() == 0)
    }

    /// Packets that the kernel has not taken: they end with the socket.
    fn unsent(&self) -> u64 {
        u64::from(self.socket.waiting()).div_ceil(self.frames_per_packet as u64)
    }

    /// Waits until the driver has given every frame back, so that the interface's counters are those of the end.
    fn drain(&mut self) -> Result<(), GenerateError> {
        let deadline = Instant::now() + DRAIN;
        while self.socket.free_frames() < FRAMES as usize && Instant::now() < deadline {
            self.kick()?;
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// The kernel frees the queue a moment after an earlier socket was closed.
fn bind_when_free(
    socket: &XdpSender,
    index: u32,
    queue: u32,
    is_multi_frame: bool,
) -> Result<(), SocketError> {
    let deadline = Instant::now() + RELEASE;
    loop {
        match socket.bind(index, queue, is_multi_frame) {
            Err(error)
                if error.source.raw_os_error() == Some(libc::EBUSY)
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

fn not_bound(
    interface: &str,
    queue: u32,
    is_multi_frame: bool,
    SocketError { source, .. }: &SocketError,
) -> GenerateError {
    let reason = match source.raw_os_error() {
        Some(libc::EINVAL) if queue > 0 => format!(
            "it has no queue {queue} that an AF_XDP socket can be bound to; `ethtool -l {interface}` shows how many there \
             are, and each CPU of --cpu needs one, from 0 on or those of --queue"
        ),
        Some(libc::EBUSY) => {
            format!("queue {queue} has an AF_XDP socket already; choose another by --queue")
        }
        _ if is_multi_frame => format!(
            "no AF_XDP socket can be bound to queue {queue} for packets longer than a page (kernel 6.6 or later): {source}"
        ),
        _ => format!("no AF_XDP socket can be bound to queue {queue}: {source}"),
    };
    InterfaceError::new(interface, reason).into()
}

impl Backend for AfXdp {
    fn run(&mut self, ring: &PlanRing) -> Result<(), GenerateError> {
        let mut pace = Pace::new(ring, self.is_stamped);
        let batch = if ring.is_paced() { 1 } else { BATCH };
        loop {
            let mut taken = 0;
            while taken < batch && !self.is_short() && (taken == 0 || pace.is_ready()) {
                let Some(due) = pace.next() else { break };
                self.put(&due);
                taken += 1;
            }
            self.socket.submit();
            if taken == 0 && !self.is_short() {
                return self.drain();
            }
            while !self.kick().inspect_err(|_| pace.report(self.unsent()))? {
                std::thread::yield_now();
            }
            pace.report(0);
        }
    }
}
