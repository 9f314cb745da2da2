//! The ledger: events seen, logged and lost at each hook, and the cost of measuring.
//!
//! It must balance: `seen = filtered + thinned + logged + lost`. The kernel counts `seen`,
//! `filtered`, `thinned`, `dropped` and `written`; the reader counts what it took from the ring and,
//! independently, the gaps in the lanes' sequence numbers. [`Ledger::imbalances`] compares them.

use serde::{Deserialize, Serialize};

/// The hooks that keep an account, in the order of `enum tcp_hook` of `bpf/abi.h`.
pub const TCP_HOOK_NAMES: [&str; crate::abi::TCP_HOOK_COUNT] = [
    "tcp_ingress",
    "tcp_egress",
    "tcp_retransmit",
    "tcp_congestion_state",
    "tcp_close",
    "tcp_flow",
];

/// Lost events by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)] // a count that an older log lacks is 0
pub struct Lost {
    /// Overwritten in the ring before this reader came (fast-reader preference).
    pub overwritten: u64,
    /// Dropped by the kernel side because the ring was full.
    pub dropped: u64,
    /// The kernel did not run the program because it was already running on this CPU.
    pub missed: u64,
    /// The kernel side had no memory for a flow, so its packets could not be followed.
    pub failed: u64,
    /// Read from the ring, but not written to the file (disk full).
    pub unwritten: u64,
}

impl Lost {
    /// Sum over all causes.
    pub fn total(&self) -> u64 {
        self.overwritten + self.dropped + self.missed + self.failed + self.unwritten
    }
}

/// The account of one hook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)] // a count that an older log lacks is 0
pub struct HookAccount {
    /// Name, one of [`TCP_HOOK_NAMES`].
    pub hook: String,
    /// Events of interest that reached the hook.
    pub seen: u64,
    /// Rejected by the filters.
    pub filtered: u64,
    /// Accepted, but thinned out (`--ppl`, `--on-change`).
    pub thinned: u64,
    /// In the log.
    pub logged: u64,
    /// Not in the log, by cause.
    pub lost: Lost,
    /// Packets without a socket that the log follows: outside `seen`.
    pub unowned: u64,
}

impl HookAccount {
    /// `seen - (filtered + thinned + logged + lost)`; 0 when the account balances.
    pub fn difference(&self) -> i128 {
        i128::from(self.seen)
            - i128::from(self.filtered)
            - i128::from(self.thinned)
            - i128::from(self.logged)
            - i128::from(self.lost.total())
    }
}

/// The cost of measuring.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)] // a count that an older log lacks is 0
pub struct Cost {
    /// Mean run time of each program, by the kernel's run-time statistics in sampled windows.
    pub programs: Vec<ProgramCost>,
    /// User and system CPU seconds of the reader.
    pub reader_cpu_s: f64,
    /// CPU seconds that the kernel charged the reader's thread with beyond these: softirqs that ran
    /// in its place, for the traffic. 0 where the kernel does not charge threads with softirqs.
    pub reader_softirq_s: f64,
    /// Wall seconds between attach and detach.
    pub wall_s: f64,
    /// Bytes written to the log.
    pub log_bytes: u64,
}

/// Run time of one eBPF program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)] // a count that an older log lacks is 0
pub struct ProgramCost {
    /// Name of the program in the kernel.
    pub program: String,
    /// Runs that were timed (sampled windows, not all runs).
    pub sampled_runs: u64,
    /// Mean nanoseconds of a run, the kernel's own overhead of timing included.
    pub ns_per_run: f64,
}

/// The whole account of a log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)] // a count that an older log lacks is 0
pub struct Ledger {
    /// One account a hook.
    pub hooks: Vec<HookAccount>,
    /// Gaps that the reader found in the lanes' sequence numbers: must equal the sum of
    /// `lost.overwritten`.
    pub sequence_gaps: u64,
    /// Cost of measuring.
    pub cost: Cost,
    /// False in snapshots taken while hooks were running, which need not balance.
    pub complete: bool,
}

impl Ledger {
    /// For a snapshot: unread records wait in the ring and are not lost. No more of them were overwritten than there
    /// are gaps in the sequence numbers; the hooks share these in proportion.
    pub fn exclude_unread(&mut self) {
        let unread = self.hooks.iter().map(|account| account.lost.overwritten);
        let all = unread.sum::<u64>();
        if all <= self.sequence_gaps {
            return;
        }
        let gaps = u128::from(self.sequence_gaps);
        let (mut unread, mut assigned) = (0, 0);
        for account in &mut self.hooks {
            unread += u128::from(account.lost.overwritten);
            let until_here = (unread * gaps / u128::from(all)) as u64;
            account.lost.overwritten = until_here - assigned;
            assigned = until_here;
        }
    }

    /// The imbalances of the ledger, a sentence each.
    pub fn imbalances(&self) -> Vec<String> {
        let mut found: Vec<String> = self
            .hooks
            .iter()
            .filter(|account| account.difference() != 0)
            .map(|account| {
                format!(
                    "{}: seen {} is not filtered {} + thinned {} + logged {} + lost {}",
                    account.hook,
                    account.seen,
                    account.filtered,
                    account.thinned,
                    account.logged,
                    account.lost.total()
                )
            })
            .collect();
        let overwritten: u64 = self
            .hooks
            .iter()
            .map(|account| account.lost.overwritten)
            .sum();
        if overwritten != self.sequence_gaps {
            found.push(format!(
                "overwritten {overwritten} is not the {} gaps in the sequence numbers",
                self.sequence_gaps
            ));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn snapshot(unread: &[u64], sequence_gaps: u64) -> Ledger {
        let account = |overwritten: &u64| HookAccount {
            lost: Lost {
                overwritten: *overwritten,
                ..Lost::default()
            },
            ..HookAccount::default()
        };
        Ledger {
            hooks: unread.iter().map(account).collect(),
            sequence_gaps,
            ..Ledger::default()
        }
    }

    #[test]
    fn each_cause_is_a_loss() {
        let causes = serde_json::to_value(Lost::default()).unwrap();
        for cause in causes.as_object().unwrap().keys() {
            let one: Lost = serde_json::from_str(&format!("{{\"{cause}\": 1}}")).unwrap();
            assert_eq!(one.total(), 1, "{cause}");
        }
    }

    #[test]
    fn unread_records_are_not_lost() {
        for (unread, gaps, expected) in [
            (vec![300, 0, 7], 0, vec![0, 0, 0]),
            (vec![300, 100, 0], 100, vec![75, 25, 0]),
            (vec![1, 1, 1], 2, vec![0, 1, 1]),
            (vec![5, 6], 11, vec![5, 6]),
            (vec![u64::MAX / 2, 1], 1 << 62, vec![(1 << 62) - 1, 1]),
        ] {
            let mut ledger = snapshot(&unread, gaps);
            ledger.exclude_unread();
            let found: Vec<u64> = ledger
                .hooks
                .iter()
                .map(|account| account.lost.overwritten)
                .collect();
            assert_eq!(found, expected);
            assert_eq!(found.iter().sum::<u64>(), gaps);
        }
    }

    proptest! {
        /// A reader of the log sees the numbers that the summary had, to the last bit.
        #[test]
        fn seconds_are_read_back_exactly(
            ns in any::<u64>(),
            wall_s in any::<f64>().prop_filter("JSON has finite numbers only", |s| s.is_finite()),
        ) {
            let ledger = Ledger {
                cost: Cost { reader_softirq_s: ns as f64 * 1e-9, wall_s, ..Cost::default() },
                ..Ledger::default()
            };
            let text = serde_json::to_string(&ledger).unwrap();
            prop_assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), ledger);
        }
    }
}
