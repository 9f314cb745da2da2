//! Which clock rings next.
//!
//! An event is no object: every server, timer and source has one clock, which is set, moved or
//! stopped. There is never more than one event per clock, nothing to allocate, nothing stale after a
//! preemption; and clocks that ring at the same time ring in the order of their numbers, whenever
//! they were set.

/// A clock that does not run.
pub const NEVER: u64 = u64::MAX;

/// Clocks, and which of them rings next.
pub trait Calendar {
    /// So many clocks, none of which runs.
    fn new(clocks: usize) -> Self;
    /// Sets a clock to a time, or to `NEVER`.
    fn set(&mut self, clock: usize, time: u64);
    /// When a clock rings.
    fn time(&self, clock: usize) -> u64;
    /// The clock that rings next and its time; of several with the same time that of the smallest number.
    fn next(&self) -> (usize, u64);
}

/// Up to `N` clocks, all of which are looked at: the fastest way up to some twenty.
pub struct Scan<const N: usize>([u64; N]);

impl<const N: usize> Calendar for Scan<N> {
    fn new(clocks: usize) -> Self {
        assert!(clocks <= N, "{clocks} clocks in a calendar of {N}");
        Self([NEVER; N])
    }

    #[inline]
    fn set(&mut self, clock: usize, time: u64) {
        self.0[clock] = time;
    }

    #[inline]
    fn time(&self, clock: usize) -> u64 {
        self.0[clock]
    }

    // As a loop over numbers it is unrolled without a jump. It ends with the servers, whose numbers are the smallest:
    // the clock that the last event has set is one of theirs mostly, and comparisons before its turn need not wait for it.
    #[inline(always)]
    fn next(&self) -> (usize, u64) {
        let (mut first, mut soonest) = (N - 1, self.0[N - 1]);
        for clock in (0..N - 1).rev() {
            let time = self.0[clock];
            (first, soonest) = if time <= soonest {
                (clock, time)
            } else {
                (first, soonest)
            };
        }
        (first, soonest)
    }
}

/// A tree of winners (Knuth, The Art of Computer Programming 3, 5.4.1): logarithmic in the clocks.
pub struct Tournament {
    times: Vec<u64>,
    // winners[1] is the root; the players of node n are at 2n and 2n + 1, leaves from times.len().
    winners: Vec<u32>,
}

impl Tournament {
    fn player(&self, node: usize) -> u32 {
        if node >= self.times.len() {
            (node - self.times.len()) as u32
        } else {
            self.winners[node]
        }
    }
}

impl Calendar for Tournament {
    fn new(clocks: usize) -> Self {
        let leaves = clocks.next_power_of_two().max(2);
        let mut tree = Self {
            times: vec![NEVER; leaves],
            winners: vec![0; leaves],
        };
        for node in (1..leaves).rev() {
            tree.winners[node] = tree.player(2 * node);
        }
        tree
    }

    fn set(&mut self, clock: usize, time: u64) {
        self.times[clock] = time;
        let mut node = (clock + self.times.len()) / 2;
        while node > 0 {
            let (left, right) = (self.player(2 * node), self.player(2 * node + 1));
            // The left one has the smaller number, so it wins at equal times.
            self.winners[node] = if self.times[left as usize] <= self.times[right as usize] {
                left
            } else {
                right
            };
            node /= 2;
        }
    }

    fn time(&self, clock: usize) -> u64 {
        self.times[clock]
    }

    fn next(&self) -> (usize, u64) {
        let first = self.winners[1] as usize;
        (first, self.times[first])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_calendars_ring_alike(moves in prop::collection::vec((0usize..37, prop_oneof![0u64..20, Just(NEVER)]), 1..400)) {
            let (mut scan, mut tree) = (Scan::<37>::new(37), Tournament::new(37));
            for (clock, time) in moves {
                scan.set(clock, time);
                tree.set(clock, time);
                prop_assert_eq!(scan.next().1, tree.next().1);
                if scan.next().1 != NEVER {
                    prop_assert_eq!(scan.next().0, tree.next().0);
                }
            }
        }
    }
}
