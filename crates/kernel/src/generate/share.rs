//! What part of the plan a sender has: of n senders, number k has the packets k, k + n, k + 2n and so on.

/// A sender's share of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    /// Number of the sender, from 0.
    pub index: u64,
    /// Senders in all.
    pub of: u64,
}

impl Share {
    /// The place in the plan of the share's packet `number`.
    pub fn sequence(self, number: u64) -> u64 {
        self.index + number * self.of
    }

    /// How many of the plan's packets below `end` are in the share.
    pub fn packets_below(self, end: u64) -> u64 {
        end / self.of + u64::from(self.index < end % self.of)
    }
}

/// Whose turn it is while the plan is dealt: a sender, and the number that its next packet has there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    pub sender: usize,
    pub number: u64,
    senders: usize,
}

impl Turn {
    /// That of the plan's first packet.
    pub fn first(senders: usize) -> Self {
        Self {
            sender: 0,
            number: 0,
            senders,
        }
    }

    /// That of the plan's next packet.
    pub fn advance(&mut self) {
        self.sender += 1;
        if self.sender == self.senders {
            self.sender = 0;
            self.number += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_is_in_one_share() {
        for of in 1..5 {
            let shares: Vec<Share> = (0..of).map(|index| Share { index, of }).collect();
            let mut turn = Turn::first(of as usize);
            for end in 0..40 {
                let below: Vec<u64> = shares
                    .iter()
                    .map(|share| share.packets_below(end))
                    .collect();
                assert_eq!(below.iter().sum::<u64>(), end);
                // The packet behind them is the next of the one whose turn it is.
                assert_eq!(turn.number, below[turn.sender]);
                assert_eq!(shares[turn.sender].sequence(turn.number), end);
                turn.advance();
            }
        }
    }

    #[test]
    fn a_run_without_end_has_shares_without_end() {
        let packets = |index| Share { index, of: 3 }.packets_below(u64::MAX);
        assert_eq!(packets(0) + packets(1) + packets(2), u64::MAX);
    }
}
