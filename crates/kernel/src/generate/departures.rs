//! The times at which several senders let packets go, put into one order.

use std::collections::VecDeque;

/// Times of each sender, in its order, until it is known that none before them is still to come.
pub(super) struct Departures {
    waiting: Vec<VecDeque<u64>>,
}

impl Departures {
    pub fn new(senders: usize) -> Self {
        Self {
            waiting: vec![VecDeque::new(); senders],
        }
    }

    /// A sender let its next packet go.
    pub fn add(&mut self, sender: usize, sent_ns: u64) {
        self.waiting[sender].push_back(sent_ns);
    }

    /// The earliest time, once every sender has a later one; None before. Of the rest, when no more is to come, the earliest.
    pub fn next(&mut self, is_rest: bool) -> Option<u64> {
        if !is_rest && self.waiting.iter().any(VecDeque::is_empty) {
            return None;
        }
        self.waiting
            .iter_mut()
            .filter(|times| !times.is_empty())
            .min_by_key(|times| times[0])?
            .pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_senders_come_in_order() {
        let mut departures = Departures::new(2);
        departures.add(0, 1);
        assert_eq!(departures.next(false), None);
        departures.add(0, 5);
        departures.add(1, 3);
        departures.add(1, 4);
        let settled: Vec<u64> = std::iter::from_fn(|| departures.next(false)).collect();
        assert_eq!(settled, [1, 3, 4]);
        departures.add(1, 9);
        let rest: Vec<u64> = std::iter::from_fn(|| departures.next(true)).collect();
        assert_eq!(rest, [5, 9]);
    }
}
