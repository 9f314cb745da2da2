//! Reads the packets of a capture from its ring.

use std::collections::VecDeque;
use std::sync::Arc;

use libc::{c_int, c_uchar, timeval};
use parshall_core::abi::{CaptureRecord, DIRECTION_OUT as RECORD_OUT};
use parshall_kernel::capture::collector::Collector;
use parshall_kernel::capture::tagged::Retag;
use parshall_kernel::clock::{monotonic_ns, realtime_offset_ns};

use crate::abi::{DIRECTION_IN, DIRECTION_OUT, PacketHeader};
use crate::injected::Injected;
use crate::own_filter::{OwnFilter, Passage};

/// How often the two clocks are compared.
const CLOCK_INTERVAL_NS: u64 = 500_000_000;

/// An interrupted hook may write a packet this much later than its time.
const LATE_NS: u64 = 1_000_000_000;

/// What the reading thread changes. Others have it for moments: to count, or to set a filter.
pub struct Reader {
    collector: Collector,
    /// What was taken from the ring up to now.
    progress: Progress,
    /// Filters that run here, each on packets up to a time: those that were not read when it was set. The newest is last.
    programs: VecDeque<(OwnFilter, u64)>,
    /// A packet that was taken from the ring and not yet returned.
    ahead: Option<Kept>,
    /// Of the packet that was taken last.
    passage: Passage,
    /// Bytes of the last one of these that was returned.
    returned: Vec<u8>,
    /// The packet that `pcap_next` returned last.
    pub kept: Kept,
    retag: Retag,
    offset_ns: i64,
    offset_until_ns: u64,
    snaplen: usize,
    is_nano: bool,
    interface_number: u8,
    injected: Arc<Injected>,
}

/// How far a ring is read.
#[derive(Clone, Copy, Default)]
pub struct Progress {
    /// Packets of the interface that were taken from the ring.
    pub read: u64,
    /// Of these, frames that the capture sent itself.
    pub own: u64,
    /// Packets that were overwritten, also those of other subscribers.
    pub gaps: u64,
}

/// A packet that stays until the next one is read.
pub struct Kept {
    pub header: PacketHeader,
    pub bytes: Vec<u8>,
}

impl Reader {
    /// Reads packets of an interface, at most this many bytes of each, with times in nanoseconds or microseconds.
    pub fn new(
        collector: Collector,
        interface_number: u8,
        snaplen: c_int,
        is_nano: bool,
        injected: &Arc<Injected>,
    ) -> Self {
        Self {
            collector,
            progress: Progress::default(),
            programs: VecDeque::new(),
            ahead: None,
            passage: Passage::default(),
            returned: Vec::new(),
            kept: Kept {
                header: PacketHeader {
                    time: timeval {
                        tv_sec: 0,
                        tv_usec: 0,
                    },
                    captured_bytes: 0,
                    wire_bytes: 0,
                },
                bytes: Vec::new(),
            },
            retag: Retag::default(),
            offset_ns: realtime_offset_ns(),
            offset_until_ns: monotonic_ns() + CLOCK_INTERVAL_NS,
            snaplen: snaplen as usize,
            is_nano,
            interface_number,
            injected: Arc::clone(injected),
        }
    }

    /// The next packet of a direction, if one is old enough; its bytes stay until the next call.
    pub fn next(
        &mut self,
        horizon_ns: u64,
        direction: c_int,
    ) -> Option<(PacketHeader, *const c_uchar)> {
        if let Some(ahead) = self.ahead.take() {
            self.returned = ahead.bytes;
            return Some((ahead.header, self.returned.as_ptr()));
        }
        if horizon_ns >= self.offset_until_ns {
            self.offset_ns = realtime_offset_ns();
            self.offset_until_ns = horizon_ns + CLOCK_INTERVAL_NS;
            self.programs.iter_mut().for_each(|(own, _)| own.update());
        }
        while let Some((record, bytes)) = self.collector.next(horizon_ns) {
            if record.interface != self.interface_number {
                continue;
            }
            self.progress.read += 1;
            let time_ns = record.time_ns.saturating_add_signed(self.offset_ns);
            let (wire_bytes, bytes) = self.retag.whole(record, bytes);
            if record.direction == RECORD_OUT
                && self
                    .injected
                    .take(record.time_ns, wire_bytes as usize, bytes)
            {
                self.progress.own += 1;
                continue;
            }
            if !is_in_direction(record, direction) {
                continue;
            }
            let captured = bytes.len().min(self.snaplen);
            let passage = Passage::from(record);
            self.passage = passage;
            while let Some((_, until_ns)) = self.programs.front()
                && until_ns.saturating_add(LATE_NS) < record.time_ns
            {
                self.programs.pop_front();
            }
            let mut programs = self.programs.iter_mut();
            if programs.any(|(program, until_ns)| {
                record.time_ns <= *until_ns && !program.accepts(passage, wire_bytes, bytes)
            }) {
                continue;
            }
            let below_second_ns = (time_ns % 1_000_000_000) as i64;
            let header = PacketHeader {
                time: timeval {
                    tv_sec: (time_ns / 1_000_000_000) as i64,
                    tv_usec: if self.is_nano {
                        below_second_ns
                    } else {
                        below_second_ns / 1000
                    },
                },
                captured_bytes: captured as u32,
                wire_bytes,
            };
            return Some((header, bytes.as_ptr()));
        }
        None
    }

    /// Keeps a packet that [`Reader::next`] returned last.
    ///
    /// # Safety
    /// Nothing was read since.
    pub unsafe fn keep(&mut self, header: PacketHeader, bytes: *const c_uchar) {
        self.kept.header = header;
        self.kept.bytes.clear();
        // SAFETY: the caller vouches that the bytes are still there.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, header.captured_bytes as usize) };
        self.kept.bytes.extend_from_slice(bytes);
    }

    /// Filters packets that the hooks saw up to this time and that were not returned yet.
    pub fn filter(&mut self, mut program: OwnFilter, until_ns: u64) {
        self.ahead = self.ahead.take().filter(|ahead| {
            let wire_bytes = ahead.header.wire_bytes;
            program.accepts(self.passage, wire_bytes, &ahead.bytes)
        });
        // The hooks run none of them any more, so packets that come now pass the new filter alone.
        let now_ns = monotonic_ns();
        for (_, until_ns) in &mut self.programs {
            *until_ns = now_ns.min(*until_ns);
        }
        self.programs.push_back((program, until_ns));
    }

    /// Whether a packet of a direction waits. The bytes of the last packet may change.
    pub fn has_next(&mut self, horizon_ns: u64, direction: c_int) -> bool {
        if self.ahead.is_some() {
            return true;
        }
        let newest = self.programs.back();
        let is_filtered = newest.is_some_and(|(_, until_ns)| *until_ns >= horizon_ns);
        if self.injected.is_empty() && !is_filtered {
            return self.collector.has_next(horizon_ns);
        }
        // The next one may only be skipped.
        self.ahead = self.next(horizon_ns, direction).map(|(header, bytes)| {
            // SAFETY: the packet has so many bytes until the next call.
            let bytes =
                unsafe { std::slice::from_raw_parts(bytes, header.captured_bytes as usize) };
            Kept {
                header,
                bytes: bytes.to_vec(),
            }
        });
        self.ahead.is_some()
    }

    /// How far the ring is read.
    pub fn progress(&self) -> Progress {
        Progress {
            gaps: self.collector.lanes().sequence_gaps(),
            ..self.progress
        }
    }
}

fn is_in_direction(record: &CaptureRecord, direction: c_int) -> bool {
    let is_out = record.direction == RECORD_OUT;
    match direction {
        DIRECTION_IN => !is_out,
        DIRECTION_OUT => is_out,
        _ => true,
    }
}
