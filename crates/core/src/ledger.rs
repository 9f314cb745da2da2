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
    /// Events whose fate is known.
    fn accounted(&self) -> u64 {
        [self.filtered, self.thinned, self.logged, self.lost.total()]
            .iter()
            .fold(0, |sum, part| sum.saturating_add(*part))
    }

    fn since(&self, before: &Self) -> Self {
        let mut later = self.clone();
        for (count, earlier) in later.counts().into_iter().zip(before.clone().counts()) {
            *count = count.saturating_sub(*earlier);
        }
        later
    }

    fn add(&mut self, later: &Self) {
        for (count, more) in self.counts().into_iter().zip(later.clone().counts()) {
            *count = count.saturating_add(*more);
        }
    }

    fn counts(&mut self) -> [&mut u64; 10] {
        let Self {
            hook: _,
            seen,
            filtered,
            thinned,
            logged,
            lost:
                Lost {
                    overwritten,
                    dropped,
                    missed,
                    failed,
                    unwritten,
                },
            unowned,
        } = self;
        [
            seen,
            filtered,
            thinned,
            logged,
            overwritten,
            dropped,
            missed,
            failed,
            unwritten,
            unowned,
        ]
    }

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

impl Cost {
    fn since(&self, before: &Self) -> Self {
        let programs = self.programs.iter().map(|program| {
            let earlier = before
                .programs
                .iter()
                .find(|other| other.program == program.program);
            earlier.map_or_else(|| program.clone(), |earlier| program.since(earlier))
        });
        Self {
            programs: programs.collect(),
            reader_cpu_s: self.reader_cpu_s - before.reader_cpu_s,
            reader_softirq_s: self.reader_softirq_s - before.reader_softirq_s,
            wall_s: self.wall_s - before.wall_s,
            log_bytes: self.log_bytes.saturating_sub(before.log_bytes),
        }
    }

    fn joined(&self, later: &Self) -> Self {
        let mut programs = self.programs.clone();
        for program in &later.programs {
            match programs
                .iter_mut()
                .find(|other| other.program == program.program)
            {
                Some(sum) => *sum = sum.joined(program),
                None => programs.push(program.clone()),
            }
        }
        Self {
            programs,
            reader_cpu_s: self.reader_cpu_s + later.reader_cpu_s,
            reader_softirq_s: self.reader_softirq_s + later.reader_softirq_s,
            wall_s: self.wall_s + later.wall_s,
            log_bytes: self.log_bytes.saturating_add(later.log_bytes),
        }
    }
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

impl ProgramCost {
    fn sampled_ns(&self) -> f64 {
        self.sampled_runs as f64 * self.ns_per_run
    }

    fn of(program: &str, sampled_runs: u64, sampled_ns: f64) -> Self {
        Self {
            program: program.into(),
            sampled_runs,
            ns_per_run: match sampled_runs {
                0 => 0.0,
                runs => sampled_ns.max(0.0) / runs as f64,
            },
        }
    }

    fn since(&self, before: &Self) -> Self {
        let runs = self.sampled_runs.saturating_sub(before.sampled_runs);
        Self::of(&self.program, runs, self.sampled_ns() - before.sampled_ns())
    }

    fn joined(&self, later: &Self) -> Self {
        let runs = self.sampled_runs.saturating_add(later.sampled_runs);
        Self::of(&self.program, runs, self.sampled_ns() + later.sampled_ns())
    }
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
    /// When this account begins, `CLOCK_REALTIME`; 0 in logs before 1.5.
    pub from_time_ns: i64,
    /// When it was drawn up; 0 in logs before 1.5.
    pub until_time_ns: i64,
}

impl Ledger {
    /// The account of a file that began at `before`, a snapshot. In a file that is not the last one, events that wait
    /// in the ring are not seen yet: the next file has them. An imbalance of the whole stays one.
    pub fn since(&self, before: &Self) -> Self {
        let hooks = self.hooks.iter().map(|account| {
            let earlier = before.hooks.iter().find(|other| other.hook == account.hook);
            earlier.map_or_else(|| account.clone(), |earlier| account.since(earlier))
        });
        let mut since = Self {
            hooks: hooks.collect(),
            sequence_gaps: self.sequence_gaps.saturating_sub(before.sequence_gaps),
            cost: self.cost.since(&before.cost),
            from_time_ns: before.until_time_ns,
            ..self.clone()
        };
        // A snapshot knows the gaps, but not exactly of which hooks.
        if self.overwritten() == self.sequence_gaps {
            since.exclude_unread();
        }
        for (account, whole) in since.hooks.iter_mut().zip(&self.hooks) {
            let missing = if self.complete { whole.difference() } else { 0 };
            let seen = i128::from(account.accounted()).saturating_add(missing);
            account.seen = u64::try_from(seen.max(0)).unwrap_or(u64::MAX);
        }
        since
    }

    fn overwritten(&self) -> u64 {
        (self.hooks.iter()).fold(0, |sum, account| {
            sum.saturating_add(account.lost.overwritten)
        })
    }

    /// The account of this time and a later one.
    pub fn joined(&self, later: &Self) -> Self {
        let mut hooks = self.hooks.clone();
        for account in &later.hooks {
            match hooks.iter_mut().find(|other| other.hook == account.hook) {
                Some(sum) => sum.add(account),
                None => hooks.push(account.clone()),
            }
        }
        Self {
            hooks,
            sequence_gaps: self.sequence_gaps.saturating_add(later.sequence_gaps),
            cost: self.cost.joined(&later.cost),
            complete: later.complete,
            from_time_ns: self.from_time_ns,
            until_time_ns: later.until_time_ns,
        }
    }

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
        let overwritten = self.overwritten();
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
        let account = |(at, overwritten): (usize, &u64)| HookAccount {
            hook: at.to_string(),
            lost: Lost {
                overwritten: *overwritten,
                ..Lost::default()
            },
            ..HookAccount::default()
        };
        Ledger {
            hooks: unread.iter().enumerate().map(account).collect(),
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

    /// Counts of one hook that grow from border to border of the files.
    fn growing() -> impl Strategy<Value = Vec<Ledger>> {
        prop::collection::vec(prop::array::uniform9(0u64..1000), 1..6).prop_map(|steps| {
            let last = steps.len() - 1;
            let mut total = [0; 9];
            let ledger_of = |(at, step): (usize, [u64; 9])| {
                for (sum, more) in total.iter_mut().zip(step) {
                    *sum += more;
                }
                let mut account = HookAccount {
                    hook: "tcp_ingress".into(),
                    ..HookAccount::default()
                };
                for (count, sum) in account.counts().into_iter().skip(1).zip(total) {
                    *count = sum;
                }
                // Before the last one, some wait in the ring.
                account.seen = account.accounted() + if at < last { step[0] } else { 0 };
                Ledger {
                    sequence_gaps: account.lost.overwritten,
                    hooks: vec![account],
                    complete: at == last,
                    until_time_ns: at as i64 + 1,
                    ..Ledger::default()
                }
            };
            steps.into_iter().enumerate().map(ledger_of).collect()
        })
    }

    proptest! {
        #[test]
        fn accounts_of_files_balance_and_their_sum_is_that_of_the_log(snapshots in growing()) {
            let mut before = Ledger::default();
            let mut sum: Option<Ledger> = None;
            for snapshot in &snapshots {
                let of_file = snapshot.since(&before);
                prop_assert_eq!(of_file.imbalances(), Vec::<String>::new());
                prop_assert_eq!(of_file.from_time_ns, before.until_time_ns);
                sum = Some(sum.map_or(of_file.clone(), |sum| sum.joined(&of_file)));
                before = snapshot.clone();
            }
            let last = &snapshots[snapshots.len() - 1];
            prop_assert_eq!(&sum.unwrap().hooks, &last.hooks);
        }

        /// The hooks share what was overwritten in another way from one snapshot to the next.
        #[test]
        fn what_was_overwritten_balances_in_each_file(
            unread in prop::array::uniform3(0u64..1000), more in prop::array::uniform3(0u64..1000), gaps in 0u64..500,
        ) {
            let mut first = snapshot(&unread, gaps);
            first.exclude_unread();
            let gaps = first.hooks.iter().map(|account| account.lost.overwritten).sum();
            first.sequence_gaps = gaps;
            let later: u64 = more.iter().sum();
            let mut second = snapshot(&more, later);
            second.complete = true;
            for account in &mut second.hooks {
                account.seen = account.accounted();
            }
            prop_assume!(later >= gaps);
            prop_assert_eq!(second.since(&first).imbalances(), Vec::<String>::new());
        }

        /// An imbalance of the whole is one of the last file.
        #[test]
        fn what_is_missing_at_the_end_stays_missing(missing in 1u64..100, logged in 0u64..100) {
            let mut whole = snapshot(&[0], 0);
            whole.complete = true;
            whole.hooks[0].logged = logged;
            whole.hooks[0].seen = logged + missing;
            let last = whole.since(&snapshot(&[0], 0));
            prop_assert_eq!(last.hooks[0].difference(), i128::from(missing));
        }
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
