//! Frames that a capture sent itself: the kernel does not return them to the packet socket that sent them, but a ring
//! has them.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parshall_kernel::clock::monotonic_ns;

/// Runs of frames that are remembered until the ring is read up to them.
const RUNS_MAX: usize = 16_384;
/// Packets of two CPUs may be read in another order than they were sent: a frame that was not read within this time was
/// lost.
const LATE_NS: u64 = 1_000_000_000;
/// Bytes of each that are compared, besides its length and time.
const COMPARED_BYTES: usize = 64;

/// Sent frames that were not read yet. Threads may send while another one reads.
#[derive(Default)]
pub struct Injected {
    runs: Mutex<VecDeque<Run>>,
    /// Their number, readable without the lock.
    count: AtomicUsize,
    /// Runs up to now.
    numbers: AtomicU64,
}

/// Equal frames that threads sent at the same time. The hook sees each in the call that sends it, but which packet is of
/// which call is not known: a run has as many packets as calls. Of a run that goes on, frames that the ring lost are not
/// known: as many equal frames of others, sent at that time, are taken for them.
struct Run {
    number: u64,
    /// From the begin of the first call to the end of the last.
    from_ns: u64,
    until_ns: u64,
    calls: u64,
    /// Calls that have not ended.
    open_calls: u64,
    /// Packets that were read.
    taken: u64,
    wire_bytes: usize,
    start: Vec<u8>,
}

impl Injected {
    /// Sends a frame by `send`, and remembers it: also when that fails, since the hook may have seen it.
    pub fn send<T>(&self, frame: &[u8], send: impl FnOnce() -> T) -> T {
        // Before it is sent: the thread that reads may be faster than this one.
        let number = self.begin(monotonic_ns(), frame);
        let sent = send();
        self.end(number, monotonic_ns());
        sent
    }

    /// Notes that a call begins; returns the number of its run.
    fn begin(&self, from_ns: u64, frame: &[u8]) -> u64 {
        self.change(|runs| {
            let same = runs.iter_mut().rev().find(|run| {
                run.open_calls > 0
                    && run.start.len() == frame.len().min(COMPARED_BYTES)
                    && run.is_equal(frame.len(), frame)
            });
            if let Some(run) = same {
                run.from_ns = run.from_ns.min(from_ns);
                run.calls += 1;
                run.open_calls += 1;
                return run.number;
            }
            if runs.len() == RUNS_MAX {
                runs.pop_front();
            }
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            runs.push_back(Run {
                number,
                from_ns,
                until_ns: from_ns,
                calls: 1,
                open_calls: 1,
                taken: 0,
                wire_bytes: frame.len(),
                start: frame[..frame.len().min(COMPARED_BYTES)].to_vec(),
            });
            number
        })
    }

    fn end(&self, number: u64, until_ns: u64) {
        self.change(|runs| {
            if let Some(place) = runs.iter().rposition(|run| run.number == number) {
                let run = &mut runs[place];
                run.until_ns = run.until_ns.max(until_ns);
                run.open_calls -= 1;
                if run.is_over() {
                    runs.remove(place);
                }
            }
        });
    }

    /// Whether a packet that the interface sent is one of these.
    pub fn contains(&self, time_ns: u64, wire_bytes: usize, bytes: &[u8]) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.change(|runs| {
                runs.iter()
                    .any(|run| run.has(time_ns) && run.is_equal(wire_bytes, bytes))
            })
    }

    /// The same, for the thread that reads: forgets the frame, and those that the ring lost.
    pub fn take(&self, time_ns: u64, wire_bytes: usize, bytes: &[u8]) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.change(|runs| {
                let found = runs
                    .iter()
                    .position(|run| run.has(time_ns) && run.is_equal(wire_bytes, bytes));
                if let Some(place) = found {
                    runs[place].taken += 1;
                }
                runs.retain(|run| {
                    !run.is_over()
                        && (run.open_calls > 0 || run.until_ns.saturating_add(LATE_NS) >= time_ns)
                });
                found.is_some()
            })
    }

    /// Whether none is remembered.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn change<T>(&self, change: impl FnOnce(&mut VecDeque<Run>) -> T) -> T {
        let mut runs = match self.runs.lock() {
            Ok(runs) => runs,
            Err(poisoned) => poisoned.into_inner(),
        };
        let result = change(&mut runs);
        self.count.store(runs.len(), Ordering::Release);
        result
    }
}

impl Run {
    /// Whether a packet, of which these bytes were captured, has the same content.
    fn is_equal(&self, wire_bytes: usize, bytes: &[u8]) -> bool {
        let compared = bytes.len().min(self.start.len());
        self.wire_bytes == wire_bytes && self.start[..compared] == bytes[..compared]
    }

    /// Whether a packet of this time may be one that was not read yet.
    fn has(&self, time_ns: u64) -> bool {
        let is_within =
            self.from_ns <= time_ns && (self.open_calls > 0 || time_ns <= self.until_ns);
        is_within && self.taken < self.calls
    }

    /// Whether nothing more is to come of it.
    fn is_over(&self) -> bool {
        self.open_calls == 0 && self.taken == self.calls
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sent(injected: &Injected, frame: &[u8]) -> u64 {
        injected.send(frame, monotonic_ns)
    }

    #[test]
    fn a_frame_is_taken_once() {
        let injected = Injected::default();
        let frame = [7; 100];
        let time_ns = sent(&injected, &frame);
        assert!(injected.contains(time_ns, 100, &frame));
        // With a shorter snapshot length.
        assert!(injected.take(time_ns, 100, &frame[..20]));
        assert!(!injected.take(time_ns, 100, &frame));
        assert!(injected.is_empty());
    }

    #[test]
    fn equal_packets_of_others_are_not_taken() {
        let injected = Injected::default();
        let frame = [7; 100];
        let before_ns = monotonic_ns() - 1;
        let time_ns = sent(&injected, &frame);
        assert!(!injected.take(before_ns, 100, &frame));
        assert!(!injected.take(time_ns, 101, &frame));
        assert!(!injected.take(time_ns, 100, &[8; 100]));
        assert!(injected.take(time_ns, 100, &frame));
    }

    #[test]
    fn equal_frames_of_two_threads_are_each_taken_once() {
        let frame = [7; 100];
        // The second call lies within the first, which hands its frame over last.
        for is_read_early in [false, true] {
            let injected = Injected::default();
            let mut inner_ns = 0;
            let outer_ns = injected.send(&frame, || {
                inner_ns = sent(&injected, &frame);
                if is_read_early {
                    assert!(injected.take(inner_ns, 100, &frame));
                }
                monotonic_ns()
            });
            // A packet is read once.
            assert!(is_read_early || injected.take(inner_ns, 100, &frame));
            assert!(injected.take(outer_ns, 100, &frame));
            assert!(!injected.take(outer_ns, 100, &frame));
        }
    }

    #[test]
    fn equal_frames_that_are_sent_at_once_are_each_taken_once_however_they_are_read() {
        // Begins, packets and ends of two calls, and which packet is read first, while which calls run.
        let frame = [7; 60];
        let injected = Injected::default();
        let early = injected.begin(0, &frame);
        let late = injected.begin(2, &frame);
        assert!(injected.take(3, 60, &frame));
        assert!(injected.take(1, 60, &frame));
        assert!(!injected.take(3, 60, &frame));
        injected.end(early, 1);
        injected.end(late, 4);
        assert!(injected.is_empty());

        let early = injected.begin(10, &frame);
        let late = injected.begin(12, &frame);
        assert!(injected.take(13, 60, &frame));
        injected.end(early, 14);
        assert!(injected.take(15, 60, &frame));
        assert!(!injected.take(15, 60, &frame));
        injected.end(late, 16);
        assert!(injected.is_empty());
    }

    proptest! {
        /// A witness that knows which packet is of which call: three threads send one call after the other, and packets
        /// are read in any order, some as soon as they are sent, others later.
        #[test]
        fn each_packet_of_ours_is_taken_and_nothing_stays(
            calls in prop::collection::vec((0..3usize, 1..9u64, 0..9u64, 0..9u64, 0..30u64), 1..40),
        ) {
            #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
            enum Event { Begin, Read, End }
            let (mut clock, mut events) = ([0u64; 3], Vec::new());
            for (call, &(thread, gap, before, after, delay)) in calls.iter().enumerate() {
                let from = clock[thread] + gap;
                let (packet, until) = (from + before, from + before + after);
                clock[thread] = until;
                events.push((from, Event::Begin, call, 0));
                events.push((packet + delay, Event::Read, call, packet));
                events.push((until, Event::End, call, 0));
            }
            events.sort_unstable();
            let (injected, mut numbers) = (Injected::default(), vec![0; calls.len()]);
            for (time, event, call, packet) in events {
                match event {
                    Event::Begin => numbers[call] = injected.begin(time, &[7; 60]),
                    Event::Read => prop_assert!(injected.take(packet, 60, &[7; 60])),
                    Event::End => injected.end(numbers[call], time),
                }
            }
            prop_assert!(injected.is_empty());
        }
    }

    #[test]
    fn frames_are_taken_in_any_order() {
        let injected = Injected::default();
        let (first, second) = ([1; 60], [2; 60]);
        let first_ns = sent(&injected, &first);
        let second_ns = sent(&injected, &second);
        // Another CPU had the second one, and the reader looked there first.
        assert!(injected.take(second_ns, 60, &second));
        assert!(injected.take(first_ns, 60, &first));
        assert!(injected.is_empty());
    }

    #[test]
    fn frames_that_the_ring_lost_are_forgotten() {
        let injected = Injected::default();
        for _ in 0..RUNS_MAX + 1 {
            sent(&injected, &[1; 60]);
        }
        assert_eq!(injected.count.load(Ordering::Relaxed), RUNS_MAX);
        assert!(!injected.take(monotonic_ns() + LATE_NS + 1, 60, &[2; 60]));
        assert!(injected.is_empty());
    }
}
