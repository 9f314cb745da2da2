//! One direction of a running relay: from a socket, through the emulated link, to the other socket.

use super::channel::{Channel, Fate};
use super::discipline::{Bottleneck, Outcome, Waiting};
use super::ledger::{DirectionLedger, LatenessHistogram};
use super::store::Store;
use crate::clock::{monotonic_ns, realtime_ns};
use crate::net::packet_receive::{ADDRESSES_BYTES, BATCH, ReceiveBatch, Received};
use crate::net::packet_socket::PacketSocket;
use rustix::net::SendFlags;
use std::io;

/// One direction: the emulated link, the frames inside it, its account.
pub struct Direction {
    /// The queue before the channel, where it has a discipline.
    bottleneck: Option<Bottleneck>,
    channel: Channel,
    store: Store,
    /// Bytes of the frames that wait before the channel.
    waiting_bytes: u64,
    /// Bound of all bytes inside.
    memory_bytes: usize,
    ledger: DirectionLedger,
    lateness: LatenessHistogram,
    /// Frames that the kernel took for sending.
    sent: u64,
    /// Frames taken from the socket.
    read: u64,
    /// When the socket was last empty: later frames arrived after this time.
    empty_ns: u64,
    /// Room for what leaves the queue in one step.
    outcomes: Vec<Outcome>,
}

impl Direction {
    /// A direction that starts empty. `seed` is of the queue's random decisions.
    pub fn new(channel: Channel, memory_bytes: usize, seed: u64) -> Self {
        Self {
            bottleneck: Bottleneck::new(channel.shape(), seed),
            channel,
            memory_bytes,
            waiting_bytes: 0,
            store: Store::new(memory_bytes),
            ledger: DirectionLedger::default(),
            lateness: LatenessHistogram::default(),
            sent: 0,
            read: 0,
            empty_ns: monotonic_ns(),
            outcomes: Vec::new(),
        }
    }

    /// Reads one batch; true when the socket may hold more.
    pub fn receive(&mut self, socket: &PacketSocket, batch: &mut ReceiveBatch) -> io::Result<bool> {
        let before_ns = monotonic_ns();
        let count = match socket.receive_batch(batch) {
            Ok(count) => count,
            Err(error) => {
                // Of an interface that went down, for example: what waits goes on.
                self.empty_ns = before_ns;
                self.advance();
                return Err(error);
            }
        };
        let now_ns = monotonic_ns();
        let now_realtime_ns = realtime_ns();
        for position in 0..count {
            let frame = batch.frame(position);
            // The kernel stamps a frame when it comes, however late it is read. Stamps are on the
            // real-time clock, which may be set meanwhile: only an age that is possible counts.
            let arrival_ns = frame
                .control
                .arrival_realtime_ns
                .map_or(now_ns, |stamp_ns| {
                    let age_ns = now_realtime_ns.saturating_sub(stamp_ns);
                    now_ns.saturating_sub(age_ns).max(self.empty_ns)
                });
            self.accept(arrival_ns, &frame);
        }
        if count < BATCH {
            self.empty_ns = before_ns;
            self.advance();
        }
        Ok(count == BATCH)
    }

    fn accept(&mut self, arrival_ns: u64, frame: &Received<'_>) {
        self.read += 1;
        let tag: &[u8] = frame.control.vlan_tag.as_ref().map_or(&[], |tag| tag);
        let (addresses, rest) = frame.bytes.split_at(frame.bytes.len().min(ADDRESSES_BYTES));
        let length = frame.bytes.len() + tag.len();
        self.ledger.arrived_bytes += length as u64;
        self.ledger.unfinished_checksums += u64::from(frame.control.is_checksum_unfinished);
        if frame.is_truncated {
            self.ledger.own_lost.oversized += 1;
            return;
        }
        if let Some(bottleneck) = &mut self.bottleneck {
            let inside_bytes = self.waiting_bytes + self.store.inside_bytes();
            if inside_bytes + length as u64 > self.memory_bytes as u64 {
                self.ledger.own_lost.memory += 1;
                return;
            }
            self.waiting_bytes += length as u64;
            let waiting = Waiting {
                arrival_ns,
                size_bytes: length as u64 + u64::from(self.channel.shape().overhead_bytes),
                bytes: [addresses, tag, rest].concat(),
                is_marked: false,
            };
            let mut outcomes = std::mem::take(&mut self.outcomes);
            bottleneck.offer(waiting, |outcome| outcomes.push(outcome));
            self.carry(outcomes);
            return;
        }
        let fate = self.channel.offer(arrival_ns, length as u32);
        self.carry_on(fate, &[addresses, tag, rest]);
    }

    /// Goes through what happens in the queue up to the time before which all frames are known.
    fn advance(&mut self) {
        if let Some(bottleneck) = &mut self.bottleneck {
            let mut outcomes = std::mem::take(&mut self.outcomes);
            bottleneck.advance(self.empty_ns, |outcome| outcomes.push(outcome));
            self.carry(outcomes);
        }
    }

    /// Gives to the link what left the queue.
    fn carry(&mut self, mut outcomes: Vec<Outcome>) {
        for outcome in outcomes.drain(..) {
            match outcome {
                Outcome::Full { bytes } => {
                    self.waiting_bytes -= bytes;
                    self.ledger.queue_dropped += 1;
                }
                Outcome::Early { bytes } => {
                    self.waiting_bytes -= bytes;
                    self.ledger.queue_dropped += 1;
                    self.ledger.early_dropped += 1;
                }
                Outcome::Serialised {
                    bytes,
                    at_ns,
                    is_marked,
                } => {
                    self.waiting_bytes -= bytes.len() as u64;
                    self.ledger.marked += u64::from(is_marked);
                    let fate = self.channel.pass(at_ns);
                    self.carry_on(fate, &[&bytes]);
                }
            }
        }
        self.outcomes = outcomes;
    }

    fn carry_on(&mut self, fate: Fate, parts: &[&[u8]]) {
        match fate {
            Fate::QueueDropped => self.ledger.queue_dropped += 1,
            Fate::LossDropped => self.ledger.loss_dropped += 1,
            Fate::Departs { at_ns } => {
                if !self.store.push(at_ns, parts) {
                    self.ledger.own_lost.memory += 1;
                }
            }
        }
    }

    /// Nanoseconds that every frame spends in the link at least.
    pub fn least_delay_ns(&self) -> u64 {
        self.channel.shape().least_delay_ns()
    }

    /// When the first frame is due, or could be that the queue gives to the serialiser next.
    pub fn next_departure_ns(&self) -> Option<u64> {
        let next_ns = self.bottleneck.as_ref().and_then(Bottleneck::next_ns);
        let next_ns = next_ns.map(|next_ns| next_ns + self.least_delay_ns());
        let due_ns = self.store.next_departure_ns();
        due_ns.into_iter().chain(next_ns).min()
    }

    /// Sends what is due, at most `limit` frames.
    pub fn emit(&mut self, socket: &PacketSocket, limit: usize) {
        let now_ns = monotonic_ns();
        let due = self.store.due(now_ns, limit.min(BATCH));
        if due == 0 {
            return;
        }
        let frames = (0..due).map(|position| self.store.frame(position).1);
        let (taken, lost) = match socket.send(frames, SendFlags::DONTWAIT) {
            Ok(count) => (count, 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (0, 0),
            // The first frame is the one that the kernel refused; the others get their own try.
            Err(_) => (0, 1),
        };
        for _ in 0..taken {
            let (departure_ns, bytes) = self.store.frame(0);
            self.lateness.record(now_ns - departure_ns);
            self.ledger.forwarded_bytes += bytes.len() as u64;
            self.store.pop();
        }
        self.sent += taken as u64;
        for _ in 0..lost {
            self.store.pop();
            self.ledger.own_lost.send += 1;
        }
    }

    /// The account now. `socket_drops` is of the socket that this direction reads,
    /// `interface_drops` of the interface to which it sends.
    pub fn account(&mut self, socket_drops: u64, interface_drops: u64) -> DirectionLedger {
        let interface_drops = interface_drops.min(self.sent);
        self.ledger.own_lost.socket = socket_drops;
        self.ledger.own_lost.interface = interface_drops;
        self.ledger.arrived = self.read + socket_drops;
        self.ledger.forwarded = self.sent - interface_drops;
        let waiting = self.bottleneck.as_ref().map_or(0, Bottleneck::packets);
        let peak = self.bottleneck.as_ref().map_or(0, Bottleneck::peak_packets);
        self.ledger.inside = (self.store.len() + waiting) as u64;
        self.ledger.inside_bytes = self.store.inside_bytes() + self.waiting_bytes;
        self.ledger.queue_peak_packets = self.channel.queue_peak_packets().max(peak) as u64;
        self.ledger.lateness = self.lateness.summary();
        self.ledger.clone()
    }
}
