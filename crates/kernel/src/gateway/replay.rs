//! Which sequence numbers were seen: a window below the highest one (RFC 4303, 3.4.3).

/// Sequence numbers of the window.
const WINDOW: u64 = 1024;
const WORD_BITS: u64 = 64;

/// The sequence numbers of one direction.
#[derive(Debug, Default)]
pub(super) struct ReplayWindow {
    /// One more than the highest number; 0: none was seen.
    next: u64,
    seen: [u64; (WINDOW / WORD_BITS) as usize],
}

impl ReplayWindow {
    /// Takes a number of an authentic datagram; false when it was seen, is too old to know, or is the last of all.
    pub fn accept(&mut self, sequence: u64) -> bool {
        if sequence == u64::MAX {
            return false;
        }
        if sequence >= self.next {
            // So many numbers in a row have all places of the window.
            for number in (self.next..=sequence).take(WINDOW as usize) {
                *self.word(number) &= !Self::bit(number);
            }
            self.next = sequence + 1;
        } else if self.next - sequence > WINDOW || *self.word(sequence) & Self::bit(sequence) != 0 {
            return false;
        }
        *self.word(sequence) |= Self::bit(sequence);
        true
    }

    fn word(&mut self, sequence: u64) -> &mut u64 {
        &mut self.seen[(sequence % WINDOW / WORD_BITS) as usize]
    }

    fn bit(sequence: u64) -> u64 {
        1 << (sequence % WORD_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn every_number_is_accepted_once(numbers in prop::collection::vec(0_u64..5000, 0..400)) {
            let mut window = ReplayWindow::default();
            let mut seen = HashSet::new();
            let mut highest = 0;
            for number in numbers {
                let is_old = !seen.is_empty() && number + WINDOW < highest + 1;
                let expected = !is_old && !seen.contains(&number);
                prop_assert_eq!(window.accept(number), expected, "number {}", number);
                if expected {
                    seen.insert(number);
                    highest = highest.max(number);
                }
            }
        }
    }

    #[test]
    fn the_last_number_does_not_wrap() {
        let mut window = ReplayWindow::default();
        assert!(window.accept(0));
        assert!(window.accept(u64::MAX - 1));
        assert!(!window.accept(u64::MAX - 1));
        assert!(!window.accept(0));
        assert!(!window.accept(u64::MAX));
    }
}
