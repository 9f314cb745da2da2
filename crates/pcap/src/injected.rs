//! Frames that a capture sent itself: the kernel does not return them to the packet socket that sent them, but a ring
//! has them.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use parshall_kernel::clock::monotonic_ns;

/// Frames that are remembered until the ring is read up to them.
const FRAMES_MAX: usize = 16_384;
/// Bytes of each that are compared, besides its length and time.
const COMPARED_BYTES: usize = 64;

/// Sent frames that were not read yet. One thread may send while another one reads.
#[derive(Default)]
pub struct Injected {
    frames: Mutex<VecDeque<Frame>>,
    /// Their number, readable without the lock.
    count: AtomicUsize,
}

struct Frame {
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
        self.change(|frames| {
            if frames.len() == FRAMES_MAX {
                frames.pop_front();
            }
            frames.push_back(Frame {
                from_ns,
                until_ns: u64::MAX,
                wire_bytes: frame.len(),
                start: frame[..frame.len().min(COMPARED_BYTES)].to_vec(),
            });
        });
        let sent = send();
        let until_ns = monotonic_ns();
        self.change(|frames| {
            let mut frames = frames.iter_mut().rev();
            if let Some(one) = frames.find(|one| one.from_ns == from_ns) {
                one.until_ns = until_ns;
            }
        });
        sent
    }

    /// Whether a packet that the interface sent is one of these.
    pub fn contains(&self, time_ns: u64, wire_bytes: usize, bytes: &[u8]) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.change(|frames| find(frames, time_ns, wire_bytes, bytes).is_some())
    }

    /// The same, for the thread that reads: forgets the frame, and those that were sent earlier.
    pub fn take(&self, time_ns: u64, wire_bytes: usize, bytes: &[u8]) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.change(|frames| {
                let found = find(frames, time_ns, wire_bytes, bytes);
                if let Some(number) = found {
                    frames.remove(number);
                }
                frames.retain(|one| one.until_ns >= time_ns);
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

fn find(frames: &VecDeque<Frame>, time_ns: u64, wire_bytes: usize, bytes: &[u8]) -> Option<usize> {
    frames.iter().position(|one| {
        let compared = bytes.len().min(one.start.len());
        (one.from_ns..=one.until_ns).contains(&time_ns)
            && one.wire_bytes == wire_bytes
            && one.start[..compared] == bytes[..compared]
    })
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
    fn frames_that_the_ring_lost_are_forgotten() {
        let injected = Injected::default();
        for _ in 0..FRAMES_MAX + 1 {
            sent(&injected, &[1; 60]);
        }
        assert_eq!(injected.count.load(Ordering::Relaxed), FRAMES_MAX);
        assert!(!injected.take(monotonic_ns() + 1_000_000, 60, &[2; 60]));
        assert!(injected.is_empty());
    }
}
