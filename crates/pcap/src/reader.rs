//! Reads the packets of a capture from its ring.

use std::collections::VecDeque;
use std::sync::Arc;

use libc::{c_int, c_uchar, timeval};
use parshall_core::abi::{CAPTURE_SNAPLEN_MAX, CaptureRecord, DIRECTION_OUT as RECORD_OUT};
use parshall_kernel::capture::collector::Collector;
use parshall_kernel::capture::tagged::Retag;
use parshall_kernel::clock::{monotonic_ns, realtime_offset_ns};

use crate::abi::{DIRECTION_IN, DIRECTION_OUT, PacketHeader};
use crate::injected::Injected;
use crate::own_filter::{OwnFilter, Passage};

/// Interval at which `CLOCK_REALTIME` is compared with the clock of the records.
const CLOCK_INTERVAL_NS: u64 = 500_000_000;

/// Maximum time between a packet's time stamp and its write by an interrupted hook. Such a hook may
/// still run programs that were replaced meanwhile.
const LATE_NS: u64 = 1_000_000_000;

/// Minimum time in which a keeper loads new programs: the old programs judge packets that come
/// sooner.
const PROGRAMS_MIN_NS: u64 = 5_000_000;

/// Interval at which a thread that need not wait for packets checks whether the hooks have the newest filter.
const FILTER_CHECK_INTERVAL_NS: u64 = 2_000_000;

/// Maximum packets that are taken from the ring early, to count them.
const AHEAD_MAX: usize = 4096;

/// The state of reading a ring. The reading thread changes it; others lock it briefly, to count or to set a filter.
pub struct Reader {
    collector: Collector,
    /// Counts of packets taken from the ring.
    progress: Progress,
    /// Time of the newest packet that was taken.
    newest_ns: u64,
    /// Filters that run here. The newest is last.
    programs: VecDeque<Running>,
    /// When [`Reader::should_check_filter`] was last true.
    checked_ns: u64,
    /// Packets that were taken from the ring and not yet returned.
    ahead: VecDeque<(Kept, Passage)>,
    /// How the packet that was taken last passed its interface.
    passage: Passage,
    /// Bytes of the packet of `ahead` that was returned last.
    returned: Vec<u8>,
    /// The packet that `pcap_next` returned last.
    pub kept: Kept,
    retag: Retag,
    offset_ns: i64,
    offset_until_ns: u64,
    snaplen: usize,
    /// Packets are read beyond the snapshot length, for the filters here.
    is_reading_whole: bool,
    is_nano: bool,
    interface_number: u8,
    injected: Arc<Injected>,
}

/// A filter that runs here, on packets up to a time: when the hooks have the filter, or another
/// filter is set.
struct Running {
    filter: OwnFilter,
    /// When it was set: packets up to this time passed the filter before it.
    from_ns: u64,
    /// Until the hooks have the filter, they leave packets after this time whole. An interrupted
    /// hook may have truncated earlier packets, by the old programs.
    judged_from_ns: u64,
    /// Packets up to this time pass the filter here.
    until_ns: u64,
    /// Number of the change that gives the hooks the filter; 0 when they never get it.
    change: u64,
}

/// How far a ring is read.
#[derive(Clone, Copy, Default)]
pub struct Progress {
    /// Packets of the interface that were taken from the ring.
    pub read: u64,
    /// Of `read`, frames that the capture sent itself.
    pub own: u64,
    /// Of `read`, packets that a filter here rejected and that no earlier filter had accepted.
    pub rejected: u64,
    /// Packets that were overwritten, including those of other subscribers.
    pub gaps: u64,
    /// A filter here has yet to judge packets that wait.
    pub is_behind: bool,
}

impl Progress {
    /// Packets that the filter accepted, and how many of them were lost. The hooks' counts,
    /// `matched` and `dropped`, may be older than this progress.
    pub fn received_and_dropped(&self, matched: u64, dropped: u64) -> [u64; 2] {
        // Packets that were read since are not in the hooks' counts.
        let matched = matched.max(self.read + dropped);
        // Unread packets are in the ring or were overwritten: at most `gaps` were overwritten.
        let unread = matched - (self.read + dropped);
        let lost = unread.min(self.gaps);
        // Packets count as received only after the filter here accepted them.
        let unjudged = if self.is_behind { unread - lost } else { 0 };
        [
            (matched - unjudged).saturating_sub(self.own + self.rejected),
            dropped + lost,
        ]
    }
}

/// A packet that stays until the next one is read.
pub struct Kept {
    pub header: PacketHeader,
    pub bytes: Vec<u8>,
}

impl Reader {
    /// Reads packets of an interface, at most `snaplen` bytes of each, with times in nanoseconds or
    /// microseconds.
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
            newest_ns: 0,
            programs: VecDeque::new(),
            checked_ns: 0,
            ahead: VecDeque::new(),
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
            is_reading_whole: false,
            is_nano,
            interface_number,
            injected: Arc::clone(injected),
        }
    }

    /// The next packet of a direction, if one is old enough; its bytes are valid until the next call.
    pub fn next(
        &mut self,
        horizon_ns: u64,
        direction: c_int,
    ) -> Option<(PacketHeader, *const c_uchar)> {
        if let Some((ahead, _)) = self.ahead.pop_front() {
            self.returned = ahead.bytes;
            return Some((ahead.header, self.returned.as_ptr()));
        }
        self.take(horizon_ns, direction)
    }

    /// The next packet from the ring.
    fn take(
        &mut self,
        horizon_ns: u64,
        direction: c_int,
    ) -> Option<(PacketHeader, *const c_uchar)> {
        if horizon_ns >= self.offset_until_ns {
            self.offset_ns = realtime_offset_ns();
            self.offset_until_ns = horizon_ns + CLOCK_INTERVAL_NS;
            self.programs.iter_mut().for_each(|one| one.filter.update());
        }
        if self.is_reading_whole && self.programs.is_empty() {
            self.is_reading_whole = false;
            self.collector.set_snaplen(self.snaplen as u32);
        }
        while let Some((record, bytes)) = self.collector.next(horizon_ns) {
            if record.interface != self.interface_number {
                continue;
            }
            self.progress.read += 1;
            self.newest_ns = self.newest_ns.max(record.time_ns);
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
            let is_truncated =
                record.captured_length_bytes < record.wire_length_bytes.min(CAPTURE_SNAPLEN_MAX);
            while let Some(oldest) = self.programs.front()
                && oldest.until_ns.saturating_add(LATE_NS) < record.time_ns
            {
                self.programs.pop_front();
            }
            let rejecting_from_ns = self.programs.iter_mut().find_map(|one| {
                // The hooks leave packets whole for a filter that runs here. A truncated one has passed that filter in
                // the hooks, and may lack here what the filter needs.
                let is_judged =
                    is_truncated && one.change > 0 && record.time_ns > one.judged_from_ns;
                let is_rejecting = record.time_ns <= one.until_ns
                    && !is_judged
                    && !one.filter.accepts(passage, wire_bytes, bytes);
                is_rejecting.then_some(one.from_ns)
            });
            if let Some(from_ns) = rejecting_from_ns {
                self.progress.rejected += u64::from(record.time_ns > from_ns);
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

    /// Keeps the packet that [`Reader::next`] returned last.
    ///
    /// # Safety
    /// Nothing was read after it.
    pub unsafe fn keep(&mut self, header: PacketHeader, bytes: *const c_uchar) {
        self.kept.header = header;
        self.kept.bytes.clear();
        // SAFETY: the caller vouches that the bytes are still there.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, header.captured_bytes as usize) };
        self.kept.bytes.extend_from_slice(bytes);
    }

    /// Filters the packets that were taken and not returned, and those that come until the hooks have the filter.
    /// `change` is the number of the keeper's change that gives the hooks the filter; 0: none does. Packets up to
    /// `from_ns` passed the filter before it, and count as received.
    pub fn set_filter(&mut self, mut filter: OwnFilter, from_ns: u64, change: u64) {
        self.ahead
            .retain(|(one, passage)| filter.accepts(*passage, one.header.wire_bytes, &one.bytes));
        self.is_reading_whole = true;
        self.collector.set_snaplen(CAPTURE_SNAPLEN_MAX);
        let now_ns = monotonic_ns();
        // Later packets need to pass only the new filter.
        for one in &mut self.programs {
            one.until_ns = now_ns.min(one.until_ns);
        }
        self.programs.push_back(Running {
            filter,
            from_ns,
            judged_from_ns: now_ns + PROGRAMS_MIN_NS,
            until_ns: u64::MAX,
            change,
        });
    }

    /// Whether it is time to check which filter the hooks have.
    pub fn should_check_filter(&mut self, now_ns: u64) -> bool {
        let newest = self.programs.back();
        let waits = newest.is_some_and(|one| one.change > 0 && one.until_ns == u64::MAX);
        let should = waits && now_ns >= self.checked_ns + FILTER_CHECK_INTERVAL_NS;
        if should {
            self.checked_ns = now_ns;
        }
        should
    }

    /// Notes that the hooks have the filter of this change. For packets of interrupted hooks, the
    /// filter runs here a while longer; filtering a packet twice changes nothing.
    pub fn note_merged(&mut self, change: u64) {
        if let Some(newest) = self.programs.back_mut()
            && newest.change == change
            && newest.until_ns == u64::MAX
        {
            newest.until_ns = monotonic_ns() + LATE_NS;
        }
    }

    /// Until when a filter runs here, nanoseconds of `CLOCK_MONOTONIC`; 0 when none does.
    pub fn filtered_until_ns(&self) -> u64 {
        self.programs.back().map_or(0, |newest| newest.until_ns)
    }

    /// Whether a packet of a direction waits. May overwrite the bytes of the last packet.
    pub fn has_next(&mut self, horizon_ns: u64, direction: c_int) -> bool {
        if !self.ahead.is_empty() {
            return true;
        }
        if self.injected.is_empty() && self.filtered_until_ns() < horizon_ns {
            return self.collector.has_next(horizon_ns);
        }
        // The next packet may be one to skip.
        self.take_ahead(horizon_ns, direction)
    }

    /// Time of the newest packet that was taken from the ring, nanoseconds of `CLOCK_MONOTONIC`.
    pub fn newest_ns(&self) -> u64 {
        self.newest_ns
    }

    /// Takes a packet that is returned later.
    fn take_ahead(&mut self, horizon_ns: u64, direction: c_int) -> bool {
        let Some((header, bytes)) = self.take(horizon_ns, direction) else {
            return false;
        };
        // SAFETY: the packet keeps its `captured_bytes` bytes until the next call of `take`.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, header.captured_bytes as usize) };
        let bytes = bytes.to_vec();
        self.ahead.push_back((Kept { header, bytes }, self.passage));
        true
    }

    /// How far the ring is read. While a filter runs here, waiting packets are taken first, because
    /// only that filter decides which of them count as received.
    pub fn progress(&mut self, direction: c_int) -> Progress {
        let now_ns = monotonic_ns();
        let is_filtered = self.filtered_until_ns() >= now_ns;
        while is_filtered && self.ahead.len() < AHEAD_MAX && self.take_ahead(now_ns, direction) {}
        Progress {
            gaps: self.collector.lanes().sequence_gaps(),
            is_behind: is_filtered && self.ahead.len() >= AHEAD_MAX,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_after_the_hooks_counts_are_not_subtracted_from_them() {
        let read = Progress {
            read: 105,
            rejected: 5,
            ..Progress::default()
        };
        // Since the hooks' counts came five packets, which a filter here rejects.
        assert_eq!(read.received_and_dropped(100, 0), [100, 0]);
        assert_eq!(read.received_and_dropped(110, 2), [105, 2]);
    }

    #[test]
    fn packets_that_a_filter_has_yet_to_judge_are_not_received_before() {
        let mut read = Progress {
            read: 50,
            own: 10,
            rejected: 20,
            is_behind: true,
            ..Progress::default()
        };
        assert_eq!(read.received_and_dropped(100, 0), [20, 0]);
        // Overwritten packets are lost, whether or not the filter would accept them.
        read.gaps = 5;
        assert_eq!(read.received_and_dropped(100, 0), [25, 5]);
        // All were judged, and half of them passed: nothing is taken back.
        let later = Progress {
            read: 95,
            rejected: 43,
            is_behind: false,
            ..read
        };
        assert_eq!(later.received_and_dropped(100, 0), [47, 5]);
    }

    #[test]
    fn only_what_was_overwritten_is_dropped() {
        let read = Progress {
            read: 50,
            own: 10,
            gaps: 20,
            ..Progress::default()
        };
        assert_eq!(read.received_and_dropped(60, 0), [50, 10]);
        assert_eq!(read.received_and_dropped(100, 5), [90, 25]);
    }
}
