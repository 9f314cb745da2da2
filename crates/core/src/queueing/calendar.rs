//! The event calendar.
//!
//! Every server, polling level and source has one event, identified by its number. An event is scheduled, rescheduled
//! or cancelled in place: nothing is allocated, and no stale event is left after a preemption. Events at the same time
//! occur in the order of their numbers.

/// The time of an event that is not scheduled.
pub const NEVER: u64 = u64::MAX;

pub trait Calendar {
    /// A calendar of this many events, none of them scheduled.
    fn new(events: usize) -> Self;
    /// Schedules an event, or cancels it with `NEVER`.
    fn schedule(&mut self, event: usize, time: u64);
    fn time(&self, event: usize) -> u64;
    /// The next event and its time.
    fn next(&self) -> (usize, u64);
}

/// Up to `N` events, all of which are compared.
pub struct Scan<const N: usize>([u64; N]);

impl<const N: usize> Calendar for Scan<N> {
    fn new(events: usize) -> Self {
        assert!(events <= N, "{events} events in a calendar of {N}");
        Self([NEVER; N])
    }

    #[inline]
    fn schedule(&mut self, event: usize, time: u64) {
        self.0[event] = time;
    }

    #[inline]
    fn time(&self, event: usize) -> u64 {
        self.0[event]
    }

    // The compiler unrolls this loop without branches. It ends with the servers, which have the smallest
    // numbers: their times have just been stored, and the other comparisons need not wait for these stores.
    #[inline(always)]
    fn next(&self) -> (usize, u64) {
        let (mut first, mut earliest) = (N - 1, self.0[N - 1]);
        for event in (0..N - 1).rev() {
            let time = self.0[event];
            (first, earliest) = if time <= earliest {
                (event, time)
            } else {
                (first, earliest)
            };
        }
        (first, earliest)
    }
}

/// A tournament tree (Knuth, The Art of Computer Programming 3, 5.4.1): logarithmic in the number of events.
pub struct Tournament {
    times: Vec<u64>,
    // winners[1] is the root; the children of node n are 2n and 2n + 1; leaves start at times.len()
    winners: Vec<u32>,
}

impl Tournament {
    #[inline]
    fn winner(&self, node: usize) -> u32 {
        if node >= self.times.len() {
            (node - self.times.len()) as u32
        } else {
            self.winners[node]
        }
    }
}

impl Calendar for Tournament {
    fn new(events: usize) -> Self {
        let leaves = events.next_power_of_two().max(2);
        let mut calendar = Self {
            times: vec![NEVER; leaves],
            winners: vec![0; leaves],
        };
        for node in (1..leaves).rev() {
            calendar.winners[node] = calendar.winner(2 * node);
        }
        calendar
    }

    fn schedule(&mut self, event: usize, time: u64) {
        self.times[event] = time;
        let mut node = (event + self.times.len()) / 2;
        while node > 0 {
            let (left, right) = (self.winner(2 * node), self.winner(2 * node + 1));
            // The left event has the smaller number.
            let left_wins = self.times[left as usize] <= self.times[right as usize];
            self.winners[node] = if left_wins { left } else { right };
            node /= 2;
        }
    }

    fn time(&self, event: usize) -> u64 {
        self.times[event]
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
        fn next_is_the_earliest_event_with_the_smallest_number(moves in prop::collection::vec((0usize..37, prop_oneof![0u64..20, Just(NEVER)]), 1..400)) {
            let (mut scan, mut tree) = (Scan::<37>::new(37), Tournament::new(37));
            let mut times = [NEVER; 37];
            for (event, time) in moves {
                scan.schedule(event, time);
                tree.schedule(event, time);
                times[event] = time;
                let earliest = times.iter().copied().enumerate().min_by_key(|&(_, time)| time);
                prop_assert_eq!(Some(scan.next()), earliest);
                prop_assert_eq!(Some(tree.next()), earliest);
            }
        }
    }
}
