//! Frames that a capture sent itself: the kernel does not return them to the packet socket that sent them, but a ring
//! has them.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parshall_kernel::clock::monotonic_ns;

/// Frames that are remembered until the ring is read up to them.
const FRAMES_MAX: usize = 16_384;
/// Packets of two CPUs may be read in another order than they were sent: a frame that was not read within this time was
/// lost.
const LATE_NS: u64 = 1_000_000_000;
/// Bytes of each that are compared, besides its length and time.
const COMPARED_BYTES: usize = 64;

/// Sent frames that were not read yet. Threads may send while another one reads.
#[derive(Default)]
pub struct Injected {
    frames: Mutex<VecDeque<Frame>>,
    /// Their number, readable without the lock.
    count: AtomicUsize,
    /// Frames up to now.
    numbers: AtomicU64,
}

struct Frame {
    /// Two threads may send at the same time.
    number: u64,
    /// The hook runs between these two: in the call that sends.
    from_ns: u64,
    until_ns: u64,
    wire_bytes: usize,
    start: Vec<u8>,
}

impl Injected {
    /// Sends a frame by `send`, and remembers it: also when that fails, since the hook may have seen it.
    pub fn send<T>(&self, frame: &[u8], send: impl FnOnce() -> T) -> T {
        // Before it is sent: the thread that reads may be faster than this one.
        let from_ns = monotonic_ns();
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.change(|frames| {
            if frames.len() == FRAMES_MAX {
                frames.pop_front();
            }
            frames.push_back(Frame {
                number,
                from_ns,
                until_ns: u64::MAX,
                wire_bytes: frame.len(),
                start: frame[..frame.len().min(COMPARED_BYTES)].to_vec(),
            });
        });
        let sent = send();
        let until_ns = monotonic_ns();
        self.change(|frames| {
            // When another thread sends an equal frame, the reader may have taken this one for it: then that one stands
            // for both.
            let place = frames
                .iter()
                .rposition(|one| one.number == number)
                .or_else(|| {
                    frames
                        .iter()
                        .position(|one| one.is_equal(frame.len(), frame))
                });
            if let Some(one) = place.and_then(|place| frames.get_mut(place)) {
                one.until_ns = match one.number == number {
                    true => until_ns,
                    false => one.until_ns.max(until_ns),
                };
            }
        });
        sent
    }

    /// Whether a packet that the interface sent is one of these.
    pub fn contains(&self, time_ns: u64, wire_bytes: usize, bytes: &[u8]) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.change(|frames| find(frames, time_ns, wire_bytes, bytes).is_some())
    }

    /// The same, for the thread that reads: forgets the frame, and those that the ring lost.
    pub fn take(&self, time_ns: u64, wire_bytes: usize, bytes: &[u8]) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.change(|frames| {
                let found = find(frames, time_ns, wire_bytes, bytes);
                if let Some(number) = found {
                    frames.remove(number);
                }
                frames.retain(|one| one.until_ns.saturating_add(LATE_NS) >= time_ns);
                found.is_some()
            })
    }

    /// Whether none is remembered.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn change<T>(&self, change: impl FnOnce(&mut VecDeque<Frame>) -> T) -> T {
        let mut frames = match self.frames.lock() {
            Ok(frames) => frames,
            Err(poisoned) => poisoned.into_inner(),
        };
        let result = change(&mut frames);
        self.count.store(frames.len(), Ordering::Release);
        result
    }
}

impl Frame {
    /// Whether a packet, of which these bytes were captured, has the same content.
    fn is_equal(&self, wire_bytes: usize, bytes: &[u8]) -> bool {
        let compared = bytes.len().min(self.start.len());
        self.wire_bytes == wire_bytes && self.start[..compared] == bytes[..compared]
    }
}

/// The frame that a packet is. Of several that fit, the one whose call ended first: the later packets fit the others.
fn find(frames: &VecDeque<Frame>, time_ns: u64, wire_bytes: usize, bytes: &[u8]) -> Option<usize> {
    let fitting = frames.iter().enumerate().filter(|(_, one)| {
        (one.from_ns..=one.until_ns).contains(&time_ns) && one.is_equal(wire_bytes, bytes)
    });
    let first = fitting.min_by_key(|(_, one)| one.until_ns);
    first.map(|(place, _)| place)
}

#[cfg(test)]
mod tests {
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
        for _ in 0..FRAMES_MAX + 1 {
            sent(&injected, &[1; 60]);
        }
        assert_eq!(injected.count.load(Ordering::Relaxed), FRAMES_MAX);
        assert!(!injected.take(monotonic_ns() + LATE_NS + 1, 60, &[2; 60]));
        assert!(injected.is_empty());
    }
}
