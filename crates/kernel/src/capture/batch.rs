//! Packets as columns, for analysis while they come.

use std::sync::mpsc::SyncSender;

use parshall_core::trace::{Direction, Packet, Written};

/// A batch is handed on when its packets have this many bytes, or there are no more for now.
const BATCH_BYTES: usize = 4 << 20;
const BATCH_PACKETS: usize = 65_536;

/// Packets, column by column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketBatch {
    /// Nanoseconds since 1970-01-01 UTC.
    pub time_ns: Vec<i64>,
    /// Number of the interface in the ring.
    pub interface: Vec<u8>,
    /// 0 in, 1 out.
    pub direction: Vec<u8>,
    /// Bytes on the wire.
    pub wire_bytes: Vec<u32>,
    /// Where each packet ends in `bytes`; the first begins at 0.
    pub ends: Vec<i32>,
    /// The bytes of all packets, one behind the other.
    pub bytes: Vec<u8>,
}

impl PacketBatch {
    /// Packets in it.
    pub fn len(&self) -> usize {
        self.time_ns.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.time_ns.is_empty()
    }

    fn push(&mut self, packet: &Packet<'_>) {
        self.time_ns.push(packet.time_ns as i64);
        self.interface.push(packet.interface as u8);
        self.direction
            .push(u8::from(packet.direction == Direction::Out));
        self.wire_bytes.push(packet.wire_bytes);
        self.bytes.extend_from_slice(packet.captured);
        self.ends.push(self.bytes.len() as i32);
    }
}

/// Fills batches and hands them to another thread.
#[derive(Debug)]
pub struct BatchBuilder {
    sender: SyncSender<PacketBatch>,
    batch: PacketBatch,
    written: Vec<Written>,
    is_over: bool,
}

impl BatchBuilder {
    /// A builder for packets of so many interfaces.
    pub fn new(sender: SyncSender<PacketBatch>, interfaces: usize) -> Self {
        Self {
            sender,
            batch: PacketBatch::default(),
            written: vec![Written::default(); interfaces],
            is_over: false,
        }
    }

    /// Takes a packet.
    pub fn push(&mut self, packet: &Packet<'_>) {
        let Some(written) = self.written.get_mut(packet.interface as usize) else {
            return;
        };
        written.handed += 1;
        if self.is_over {
            written.unwritten += 1;
            return;
        }
        self.batch.push(packet);
        if self.batch.bytes.len() >= BATCH_BYTES || self.batch.len() >= BATCH_PACKETS {
            self.send();
        }
    }

    /// Hands on what there is; waits while the channel is full.
    pub fn send(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let batch = std::mem::take(&mut self.batch);
        if let Err(refused) = self.sender.send(batch) {
            self.is_over = true;
            for interface in &refused.0.interface {
                self.written[usize::from(*interface)].unwritten += 1;
            }
        }
    }

    /// What became of the packets of each interface.
    pub fn written(&self) -> &[Written] {
        &self.written
    }

    /// Whether the other thread has ended.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}
