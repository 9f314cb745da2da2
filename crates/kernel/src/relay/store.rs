//! The frames inside the link: a ring of bytes with the times at which they leave.
//!
//! Frames of one direction leave in the order in which they came, so a ring is enough, its memory
//! is bounded, and short frames cost little.

use std::collections::VecDeque;

/// A frame that waits in the ring.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    departure_ns: u64,
    offset: usize,
    length: usize,
    /// Bytes of the ring that it occupies, those skipped at the ring's end included.
    taken: usize,
}

/// Bounded memory for the frames of one direction.
#[derive(Debug)]
pub struct Store {
    bytes: Vec<u8>,
    head: usize,
    used: usize,
    waiting: VecDeque<Waiting>,
    inside_bytes: u64,
}

impl Store {
    /// Room for `capacity_bytes` of frames. The memory is touched only when it is needed.
    pub fn new(capacity_bytes: usize) -> Self {
        Self {
            bytes: vec![0; capacity_bytes],
            head: 0,
            used: 0,
            waiting: VecDeque::new(),
            inside_bytes: 0,
        }
    }

    /// Frames inside.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Bytes of the frames inside.
    pub fn inside_bytes(&self) -> u64 {
        self.inside_bytes
    }

    /// Departure of the first frame.
    pub fn next_departure_ns(&self) -> Option<u64> {
        self.waiting.front().map(|frame| frame.departure_ns)
    }

    /// Takes a frame that is given in parts (a VLAN tag that the kernel took out goes between two);
    /// false when there is no room.
    pub fn push(&mut self, departure_ns: u64, parts: &[&[u8]]) -> bool {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let capacity = self.bytes.len();
        let to_end = capacity - self.head;
        // A frame lies in one piece: what is left at the end is skipped.
        let skipped = if length > to_end { to_end } else { 0 };
        if self.used + skipped + length > capacity {
            return false;
        }
        let offset = if skipped > 0 { 0 } else { self.head };
        let mut at = offset;
        for part in parts {
            self.bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let taken = skipped + length;
        self.used += taken;
        self.head = if at == capacity { 0 } else { at };
        self.inside_bytes += length as u64;
        self.waiting.push_back(Waiting {
            departure_ns,
            offset,
            length,
            taken,
        });
        true
    }

    /// Number of frames, at most `limit`, that are due at `now_ns`.
    pub fn due(&self, now_ns: u64, limit: usize) -> usize {
        self.waiting
            .iter()
            .take(limit)
            .take_while(|frame| frame.departure_ns <= now_ns)
            .count()
    }

    /// The frame at a position from the front: its departure and its bytes.
    pub fn frame(&self, position: usize) -> (u64, &[u8]) {
        let frame = self.waiting[position];
        let bytes = &self.bytes[frame.offset..frame.offset + frame.length];
        (frame.departure_ns, bytes)
    }

    /// Forgets the first frame, and gives its length.
    pub fn pop(&mut self) -> Option<usize> {
        let frame = self.waiting.pop_front()?;
        self.used -= frame.taken;
        self.inside_bytes -= frame.length as u64;
        if self.waiting.is_empty() {
            // From the beginning again: warm memory, and nothing to skip.
            self.head = 0;
            self.used = 0;
        }
        Some(frame.length)
    }
}

#[cfg(test)]
mod tests {
    use super::Store;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in(
            capacity in 1_usize..3_000,
            steps in prop::collection::vec((any::<bool>(), 1_usize..700), 1..300)
        ) {
            let mut store = Store::new(capacity);
            let mut expected: VecDeque<(u64, Vec<u8>)> = VecDeque::new();
            for (number, (push, length)) in steps.into_iter().enumerate() {
                if push {
                    let bytes: Vec<u8> = (0..length).map(|i| (i + number) as u8).collect();
                    let held: usize = expected.iter().map(|(_, bytes)| bytes.len()).sum();
                    let (left, right) = bytes.split_at(length / 2);
                    if store.push(number as u64, &[left, right]) {
                        prop_assert!(held + length <= capacity);
                        expected.push_back((number as u64, bytes));
                    } else {
                        prop_assert!(!expected.is_empty() || length > capacity);
                    }
                } else if let Some((departure_ns, bytes)) = expected.pop_front() {
                    prop_assert_eq!(store.frame(0), (departure_ns, bytes.as_slice()));
                    prop_assert_eq!(store.pop(), Some(bytes.len()));
                }
                prop_assert_eq!(store.len(), expected.len());
                let held: usize = expected.iter().map(|(_, bytes)| bytes.len()).sum();
                prop_assert_eq!(store.inside_bytes(), held as u64);
                for (position, (departure_ns, bytes)) in expected.iter().enumerate() {
                    prop_assert_eq!(store.frame(position), (*departure_ns, bytes.as_slice()));
                }
            }
        }
    }

    #[test]
    fn only_due_frames_are_counted() {
        let mut store = Store::new(1000);
        for departure_ns in [10, 10, 20, 30] {
            assert!(store.push(departure_ns, &[&[0; 60]]));
        }
        assert_eq!(store.due(9, 64), 0);
        assert_eq!(store.due(20, 64), 3);
        assert_eq!(store.due(20, 2), 2);
    }
}
