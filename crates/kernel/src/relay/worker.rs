//! The relay's thread: one loop for both directions.

use super::direction::Direction;
use super::error::RelayError;
use super::ledger::Statistics;
use crate::clock::{monotonic_ns, thread_cpu_s};
use crate::net::interface;
use crate::net::packet_receive::{BATCH, ReceiveBatch};
use crate::net::packet_socket::PacketSocket;
use crate::net::socket::{SocketError, set_receive_buffer};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::fs;
use std::os::fd::OwnedFd;

/// Frames that one direction may send before the other has its turn: a frame that is due waits
/// behind at most this many.
const EMIT_BATCH: usize = 16;

/// A thread that sleeps through arrivals wakes this much before a frame could be due, so that a
/// late wake-up does no harm.
const WAKE_MARGIN_NS: u64 = 200_000;

/// Longest sleep through arrivals: bounds what gathers in the sockets' buffers.
const LONGEST_SLEEP_NS: u64 = 2_000_000;

/// Longest time that an account may spend on reading what has come.
const LONGEST_READ_NS: u64 = 50_000_000;

/// What can wake the thread before its time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watch {
    /// Requests alone.
    OnlyRequests,
    /// Requests and arriving frames.
    Sockets,
}

/// What the loop works on; it lives in the thread.
pub struct Worker {
    interfaces: [String; 2],
    /// `sockets[i]` is on `interfaces[i]`; `directions[i]` reads it and sends to the other.
    sockets: [PacketSocket; 2],
    directions: [Direction; 2],
    batch: ReceiveBatch,
    /// Drops of the interfaces before the relay began.
    drops_before: [u64; 2],
    started_ns: u64,
    /// What stays the same: scheduling, CPU, seed.
    template: Statistics,
}

impl Worker {
    /// Opens the sockets; from then on frames are taken.
    pub fn new(
        interfaces: [String; 2],
        directions: [Direction; 2],
        frame_bytes: usize,
        receive_buffer_bytes: usize,
        template: Statistics,
    ) -> Result<Self, RelayError> {
        let sockets = [
            open(&interfaces[0], receive_buffer_bytes)?,
            open(&interfaces[1], receive_buffer_bytes)?,
        ];
        let drops_before = interface_drops(&interfaces);
        Ok(Self {
            interfaces,
            sockets,
            directions,
            batch: ReceiveBatch::new(frame_bytes),
            drops_before,
            started_ns: monotonic_ns(),
            template,
        })
    }

    /// How long the sockets may stay unread: frames that arrive meanwhile are not due before its end. Reading
    /// in batches spares the hosts the cost of waking this thread for every frame.
    fn sleep_through_ns(&self) -> u64 {
        let [forth, back] = [0, 1].map(|side| self.directions[side].least_delay_ns());
        forth
            .min(back)
            .saturating_sub(WAKE_MARGIN_NS)
            .min(LONGEST_SLEEP_NS)
    }

    /// Moves frames until `attend` returns false. It is called whenever `wake` has become readable.
    pub fn run(&mut self, wake: &OwnedFd, mut attend: impl FnMut(&mut Self) -> bool) {
        let sleep_through_ns = self.sleep_through_ns();
        loop {
            let polled_ns = monotonic_ns();
            let more = self.receive();
            self.emit();
            // While frames leave and no arriving frame can be due, the sockets are not polled. When
            // the link is empty, the first arriving frame must wake the thread.
            loop {
                let wait_ns = self.wait_ns();
                let rest_ns = (polled_ns + sleep_through_ns).saturating_sub(monotonic_ns());
                if more || wait_ns == u64::MAX || rest_ns == 0 {
                    break;
                }
                if self.wait(wake, wait_ns.min(rest_ns), Watch::OnlyRequests) && !attend(self) {
                    return;
                }
                self.emit();
            }
            // With work at hand the descriptors are polled, without waiting, in every round: a request
            // must not starve on a busy link.
            let wait_ns = if more { 0 } else { self.wait_ns() };
            if self.wait(wake, wait_ns, Watch::Sockets) && !attend(self) {
                return;
            }
        }
    }

    /// Reads a batch of each socket; true when one may hold more.
    fn receive(&mut self) -> bool {
        let mut more = false;
        for side in 0..2 {
            // A socket whose interface is down returns one error and then nothing.
            more |= self.directions[side]
                .receive(&self.sockets[side], &mut self.batch)
                .unwrap_or(false);
        }
        more
    }

    /// Refuses further frames, reads what the sockets hold, and gives the final account.
    pub fn finish(&mut self) -> Statistics {
        for side in 0..2 {
            // If this fails, the account is still right, but of a slightly later moment.
            let _ = self.sockets[side].stop();
        }
        let mut statistics = self.statistics();
        statistics.running = false;
        statistics
    }

    /// The account now, of all frames that have come.
    pub fn statistics(&mut self) -> Statistics {
        // Bounded, so that a link which is busier than the relay cannot hold it here.
        let deadline_ns = monotonic_ns() + LONGEST_READ_NS;
        while self.receive() && monotonic_ns() < deadline_ns {}
        let drops_now = interface_drops(&self.interfaces);
        let mut ledgers = [0, 1].map(|side| {
            let other = 1 - side;
            let socket_drops = self.sockets[side]
                .counters()
                .map_or(0, |counters| counters.drops);
            let interface_drops = drops_now[other].saturating_sub(self.drops_before[other]);
            self.directions[side].account(socket_drops, interface_drops)
        });
        Statistics {
            a_to_b: std::mem::take(&mut ledgers[0]),
            b_to_a: std::mem::take(&mut ledgers[1]),
            running: true,
            cpu_s: thread_cpu_s(),
            wall_s: (monotonic_ns() - self.started_ns) as f64 / 1e9,
            ..self.template.clone()
        }
    }

    fn emit(&mut self) {
        // Alternate while both directions have something due, so that a burst of one does not
        // delay the other.
        for _ in 0..BATCH / EMIT_BATCH {
            for side in 0..2 {
                self.directions[side].emit(&self.sockets[1 - side], EMIT_BATCH);
            }
            if self.wait_ns() > 0 {
                return;
            }
        }
    }

    /// Nanoseconds until a frame is due; `u64::MAX` when none is inside.
    fn wait_ns(&self) -> u64 {
        self.directions
            .iter()
            .filter_map(Direction::next_departure_ns)
            .min()
            .map_or(u64::MAX, |due_ns| due_ns.saturating_sub(monotonic_ns()))
    }

    /// Waits for frames, the time, or a request; true when it is a request.
    fn wait(&self, wake: &OwnedFd, wait_ns: u64, watch: Watch) -> bool {
        let mut descriptors = [
            PollFd::new(wake, PollFlags::IN),
            PollFd::new(&self.sockets[0], PollFlags::IN),
            PollFd::new(&self.sockets[1], PollFlags::IN),
        ];
        let watched = match watch {
            Watch::OnlyRequests => 1,
            Watch::Sockets => descriptors.len(),
        };
        // The kernel converts a relative time into an absolute one at once, so it is late only by
        // the time since the clock was read, tens of nanoseconds.
        let timeout = (wait_ns < u64::MAX).then_some(Timespec {
            tv_sec: (wait_ns / 1_000_000_000) as i64,
            tv_nsec: (wait_ns % 1_000_000_000) as _,
        });
        // An error needs no handling: the loop reads and waits again.
        let _ = poll(&mut descriptors[..watched], timeout.as_ref());
        !descriptors[0].revents().is_empty()
    }
}

/// Opens a promiscuous socket that gets what arrives at its interface, and not what leaves it.
fn open(interface: &str, receive_buffer_bytes: usize) -> Result<PacketSocket, RelayError> {
    let index = interface::index(interface).map_err(|source| RelayError::Interface {
        interface: interface.to_string(),
        source,
    })?;
    let open = || {
        let socket = PacketSocket::open(index)?;
        socket.ignore_outgoing()?;
        socket.enable_control_data()?;
        socket.bypass_qdisc()?;
        socket.hold_promiscuous()?;
        set_receive_buffer(&socket, receive_buffer_bytes)?;
        socket.start()?;
        Ok::<_, SocketError>(socket)
    };
    open().map_err(|error| RelayError::Socket {
        action: error.action,
        interface: interface.to_string(),
        source: error.source,
    })
}

/// Frames that the interfaces of the calling thread's namespace dropped instead of sending; 0 for
/// an interface that was removed.
fn interface_drops(interfaces: &[String; 2]) -> [u64; 2] {
    let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    [0, 1].map(|side| {
        let drops = table.lines().find_map(|line| {
            let (name, numbers) = line.split_once(':')?;
            // Eight columns of receiving, then bytes, packets, errors, drops of sending.
            (name.trim() == interfaces[side])
                .then(|| numbers.split_whitespace().nth(11)?.parse().ok())
                .flatten()
        });
        drops.unwrap_or(0)
    })
}
