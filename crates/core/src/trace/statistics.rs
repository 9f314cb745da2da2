//! The account of an interface, as in a capture file.

use crate::ledger::Lost;

/// The packets seen and lost at an interface since the capture started, as counted by the reader of the ring.
/// The writer adds the packets in the files and the packets that it could not write. Then `seen = filtered +
/// logged + lost`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Start of the capture, nanoseconds since 1970-01-01 UTC.
    pub start_ns: u64,
    /// When these numbers were taken, on the same clock.
    pub end_ns: u64,
    /// Packets that reached the hook.
    pub seen: u64,
    /// Packets that the filter of this file rejected.
    pub filtered: u64,
    /// Packets that the filter accepted but that did not reach the writer, by cause. The writer adds its own
    /// count to `unwritten`.
    pub lost: Lost,
    /// Packets that the interface or its driver dropped since the capture started, when it counts them.
    /// They are outside `seen`.
    pub dropped_by_interface: Option<u64>,
    /// No hook is running any more, so the account must balance.
    pub complete: bool,
}

/// The writer's counts of an interface's packets, since the writer was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Packets handed to the writer.
    pub handed: u64,
    /// Of these, packets that could not be written.
    pub unwritten: u64,
    /// Packets handed over for the current file.
    pub in_file: u64,
}

impl Written {
    /// Packets that are in the files, or wait for the next flush.
    pub fn logged(&self) -> u64 {
        self.handed - self.unwritten
    }
}

/// The whole account of an interface: [`Statistics`] and [`Written`] of the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// From the reader of the ring.
    pub statistics: Statistics,
    /// From the writer.
    pub written: Written,
}

impl Account {
    /// All losses, with the unwritten packets.
    pub fn lost(&self) -> Lost {
        Lost {
            unwritten: self.statistics.lost.unwritten + self.written.unwritten,
            ..self.statistics.lost
        }
    }

    /// `seen - (filtered + logged + lost)`; 0 when the account balances.
    pub fn difference(&self) -> i128 {
        i128::from(self.statistics.seen)
            - i128::from(self.statistics.filtered)
            - i128::from(self.written.logged())
            - i128::from(self.lost().total())
    }

    /// The account in one line, for humans. Before the end its numbers are of different moments, and give no sum.
    pub fn sentence(&self) -> String {
        let lost = self.lost();
        let [first, next] = if self.statistics.complete {
            [" =", " +"]
        } else {
            [",", ","]
        };
        format!(
            "seen {}{first} filtered {}{next} logged {}{next} lost {} (overwritten {}, dropped {}, missed {}, failed {}, unwritten {}){}",
            self.statistics.seen,
            self.statistics.filtered,
            self.written.logged(),
            lost.total(),
            lost.overwritten,
            lost.dropped,
            lost.missed,
            lost.failed,
            lost.unwritten,
            if self.statistics.complete {
                ""
            } else {
                " so far"
            }
        )
    }

    /// The account as a JSON object, for machines: `docs/formats/capture-files.md` documents its keys.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "parshall_ledger": {
                "seen": self.statistics.seen,
                "filtered": self.statistics.filtered,
                "logged": self.written.logged(),
                "lost": self.lost(),
                "dropped_by_interface": self.statistics.dropped_by_interface,
                "packets_in_file": self.written.in_file,
                "complete": self.statistics.complete,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_different_moments_are_no_sum() {
        let mut account = Account::default();
        account.written.handed = 50;
        let before = account.sentence();
        assert!(before.starts_with("seen 0, filtered 0, logged 50, lost 0 ("));
        assert!(before.ends_with(") so far"));
        (account.statistics.seen, account.statistics.complete) = (50, true);
        let at_end = account.sentence();
        assert!(at_end.starts_with("seen 50 = filtered 0 + logged 50 + lost 0 ("));
        assert!(at_end.ends_with(')'));
    }
}
