//! The planned packets from the thread that draws to a sender, and the send times back.

use super::GenerateError;
use crate::net::mapping::Mapping;
use parshall_core::abi::{GenerateState, PlannedPacket};
use parshall_core::workload::Packet;
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

const PAGE_BYTES: usize = 4096;
const PACKET_BYTES: usize = size_of::<PlannedPacket>();

/// What a ring is for: of n senders, number k has the plan's packets k, k + n, k + 2n and so on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Number of the sender, from 0.
    pub sender: u64,
    /// Senders in all.
    pub senders: u64,
    /// Capacity, packets: a power of two.
    pub capacity: u32,
    /// Whether packets are due at a time, and the times at which they were sent are kept.
    pub is_paced: bool,
}

impl Shape {
    /// The number in the plan of the sender's packet `number`.
    pub fn sequence(self, number: u64) -> u64 {
        self.sender + number * self.senders
    }

    /// How many of the plan's packets below `end` are the sender's.
    pub fn packets_below(self, end: u64) -> u64 {
        end / self.senders + u64::from(self.sender < end % self.senders)
    }
}

/// A sender's ring of planned packets and where it is, laid out as the kernel's program sees them; senders in user
/// space use the same.
pub(crate) struct PlanRing {
    plan: Mapping,
    state: Mapping,
    pub shape: Shape,
}

macro_rules! word {
    ($self:ident, $field:ident) => {
        $self
            .state
            .word(std::mem::offset_of!(GenerateState, $field))
    };
}

impl PlanRing {
    /// Over memory that the kernel's program has, too.
    pub fn of_maps(plan: impl AsFd, state: impl AsFd, shape: Shape) -> Result<Self, GenerateError> {
        let mapped = |map: &dyn AsFd, bytes: usize| {
            Mapping::of(map.as_fd(), bytes.next_multiple_of(PAGE_BYTES), 0, true)
        };
        Self::over(
            mapped(&plan, shape.capacity as usize * PACKET_BYTES),
            mapped(&state, size_of::<GenerateState>()),
            shape,
        )
    }

    /// Over memory of this process, for a sender in user space.
    pub fn anonymous(shape: Shape) -> Result<Self, GenerateError> {
        Self::over(
            Mapping::anonymous(shape.capacity as usize * PACKET_BYTES),
            Mapping::anonymous(size_of::<GenerateState>()),
            shape,
        )
    }

    fn over(
        plan: Result<Mapping, Errno>,
        state: Result<Mapping, Errno>,
        shape: Shape,
    ) -> Result<Self, GenerateError> {
        let failed = |errno: Errno| GenerateError::Kernel {
            what: "map the generator's memory",
            reason: errno.to_string(),
        };
        Ok(Self {
            plan: plan.map_err(failed)?,
            state: state.map_err(failed)?,
            shape,
        })
    }

    /// Capacity, packets.
    pub fn capacity(&self) -> u64 {
        u64::from(self.shape.capacity)
    }

    /// Writes packet `number` of the sender; it may be sent after [`PlanRing::set_drawn`].
    pub fn plan(&self, number: u64, packet: &Packet) {
        let place = self.offset(number);
        let mut rest = [0; 8];
        rest[..2].copy_from_slice(&(packet.flow as u16).to_ne_bytes());
        rest[2..4].copy_from_slice(&(packet.ip_bytes as u16).to_ne_bytes());
        rest[4..6].copy_from_slice(&packet.ip_checksum.to_be_bytes());
        rest[6..].copy_from_slice(&packet.transport_checksum.to_be_bytes());
        self.plan
            .word(place)
            .store(packet.due_ns, Ordering::Relaxed);
        self.plan
            .word(place + 8)
            .store(u64::from_ne_bytes(rest), Ordering::Relaxed);
    }

    fn offset(&self, number: u64) -> usize {
        (number & (self.capacity() - 1)) as usize * PACKET_BYTES
    }

    /// Reads packet `number` of the sender back after it was sent: when, if that was asked, and what.
    pub fn sent(&self, number: u64) -> (Option<u64>, Packet) {
        let place = self.offset(number);
        let time_ns = self.plan.word(place).load(Ordering::Relaxed);
        let rest = self
            .plan
            .word(place + 8)
            .load(Ordering::Relaxed)
            .to_ne_bytes();
        let packet = Packet {
            due_ns: time_ns,
            flow: u32::from(u16::from_ne_bytes([rest[0], rest[1]])),
            ip_bytes: u32::from(u16::from_ne_bytes([rest[2], rest[3]])),
            ip_checksum: u16::from_be_bytes([rest[4], rest[5]]),
            transport_checksum: u16::from_be_bytes([rest[6], rest[7]]),
        };
        (self.is_paced().then_some(time_ns), packet)
    }

    /// Packets below this number may be sent.
    pub fn set_drawn(&self, drawn: u64) {
        word!(self, drawn).store(drawn, Ordering::Release);
    }

    /// Packets in all.
    pub fn set_end(&self, end: u64) {
        word!(self, end).store(end, Ordering::Release);
    }

    /// Packets in all.
    pub fn end(&self) -> u64 {
        word!(self, end).load(Ordering::Acquire)
    }

    /// The trace's frame that is sent first lies at this position.
    pub fn set_replayed(&self, position: u64) {
        word!(self, replayed).store(position, Ordering::Release);
    }

    /// Stops the sender, or lets it resume.
    pub fn set_stopped(&self, is_stopped: bool) {
        word!(self, stop).store(u64::from(is_stopped), Ordering::Release);
    }

    /// `CLOCK_MONOTONIC` from which packets are due.
    pub fn set_start_ns(&self, start_ns: u64) {
        word!(self, start_ns).store(start_ns, Ordering::Release);
    }

    /// `CLOCK_MONOTONIC` from which packets are due; None until it is set. A sender that reads it is ready.
    pub fn start_ns(&self) -> Option<u64> {
        match word!(self, start_ns).load(Ordering::Acquire) {
            0 => {
                word!(self, waited).fetch_add(1, Ordering::Release);
                None
            }
            start_ns => Some(start_ns),
        }
    }

    /// Notes that an unpaced sender in user space has its first packet.
    pub fn begin(&self, now_ns: u64) {
        if self.begun_ns().is_none() {
            self.set_start_ns(now_ns);
        }
    }

    /// `CLOCK_MONOTONIC` of the first packet; None before it.
    pub fn begun_ns(&self) -> Option<u64> {
        Some(word!(self, start_ns).load(Ordering::Acquire)).filter(|start_ns| *start_ns != 0)
    }

    /// Whether the sender was once ready before anything was due.
    pub fn has_waited(&self) -> bool {
        word!(self, waited).load(Ordering::Acquire) != 0
    }

    /// Whether it is to stop.
    pub fn is_stopped(&self) -> bool {
        word!(self, stop).load(Ordering::Acquire) != 0
    }

    /// Packets that were sent, as far as the program has reported.
    pub fn taken(&self) -> u64 {
        word!(self, taken).load(Ordering::Acquire)
    }

    /// Packets that were sent, exactly: for when the program does not run.
    pub fn next(&self) -> u64 {
        word!(self, next).load(Ordering::Acquire)
    }

    /// A sender in user space has sent the packets below this number.
    pub fn set_sent(&self, sent: u64) {
        word!(self, next).store(sent, Ordering::Release);
        word!(self, taken).store(sent, Ordering::Release);
    }

    /// A sender in user space sent this packet so long after the start.
    pub fn set_sent_ns(&self, number: u64, sent_ns: u64) {
        self.plan
            .word(self.offset(number))
            .store(sent_ns, Ordering::Relaxed);
    }

    /// Packets below this number are drawn.
    pub fn drawn(&self) -> u64 {
        word!(self, drawn).load(Ordering::Acquire)
    }

    /// Counts that a sender in user space found no drawn packet.
    pub fn starved(&self) {
        word!(self, starved).fetch_add(1, Ordering::Relaxed);
    }

    /// Runs that found nothing due, nothing drawn.
    pub fn idle(&self) -> (u64, u64) {
        (
            word!(self, waited).load(Ordering::Acquire),
            word!(self, starved).load(Ordering::Acquire),
        )
    }

    /// Why the program failed, one of `GENERATE_FAILURE_*`; 0: it did not.
    pub fn failure(&self) -> u64 {
        word!(self, failure).load(Ordering::Acquire)
    }

    /// Whether the times of packets are kept.
    pub fn is_paced(&self) -> bool {
        self.shape.is_paced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_end_has_senders_without_end() {
        let packets = |sender| {
            let shape = Shape {
                sender,
                senders: 3,
                capacity: 1,
                is_paced: false,
            };
            shape.packets_below(u64::MAX)
        };
        assert_eq!(packets(0) + packets(1) + packets(2), u64::MAX);
    }
}
