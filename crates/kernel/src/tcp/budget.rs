//! Keeps what a log costs below a share of one CPU: of each flow fewer packets are logged, and where even skipped packets
//! cost too much, packets are observed for a part of the time only.
//!
//! Here are the decisions, from counts and times alone; [`run`](super::run) measures, and carries them out.

use std::collections::VecDeque;
use std::time::Duration;

use parshall_core::abi::TCP_HOOK_COUNT;
use serde::Serialize;

use super::run::PACKET_HOOKS;

/// Time between two decisions: what a burst takes before it is thinned.
pub const STEP: Duration = Duration::from_millis(100);
/// The longest sleep of the reader: a log without a budget shows sooner what came.
pub const NAP_MAX: Duration = Duration::from_millis(25);
/// Every n-th packet at most: what is logged costs less than a hundredth of what is skipped then.
const PACKETS_PER_LOG_MAX: u32 = 1024;
/// Part of the budget that is planned with; the rest is for what changes within a step.
const PLANNED: f64 = 0.9;
/// What was not spent in this time may be spent later, and what was spent too much is saved again in that time.
const SAVED_S: f64 = 0.5;
const REPAID_S: f64 = 3.0;
/// Of what packets cost when nearly all are skipped, what they may cost in the times between pauses.
const LOGGED_BESIDE: f64 = 1.3;
/// Steps for which fewer packets would have to be thinned out until they are.
const STEPS_TO_RELAX: u32 = 10;
/// The longest time without observing.
const PAUSE_MAX_S: f64 = 5.0;
/// Of a new measurement in a mean.
const WEIGHT: f64 = 0.3;
/// With fewer runs or records a mean says little.
const RUNS_MIN: u64 = 50;
/// Steps of the longest time that the account looks at: ten seconds.
const STEPS_OF_ACCOUNT: usize = 100;

/// What was counted and spent since the log began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    /// Seconds since the log began.
    pub time_s: f64,
    /// Packets and events that reached each hook, be they of a connection that is followed or not.
    pub seen: [u64; TCP_HOOK_COUNT],
    /// Of the packets, those that were not thinned out.
    pub due: [u64; PACKET_HOOKS],
    /// CPU seconds of the reader.
    pub reader_cpu_s: f64,
}

/// A span of time in which the kernel timed the programs of a hook.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timed {
    /// Runs.
    pub runs: u64,
    /// Their time.
    pub run_ns: u64,
    /// As of [`Meter`], in this span.
    pub seen: u64,
    /// As of [`Meter`], in this span; of events all.
    pub due: u64,
}

/// How packets are thinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Every n-th packet of each flow is logged, a power of two.
    pub packets_per_log: u32,
    /// Whether packets are observed.
    pub observes: bool,
}

/// What a budget came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BudgetAccount {
    /// The share of one CPU that was not to be exceeded.
    pub share: f64,
    /// The share that the log took, of hooks and reader.
    pub cost_share: f64,
    /// The largest share in ten seconds.
    pub cost_share_max: f64,
    /// Time for which packets were observed, seconds.
    pub observed_s: f64,
    /// The most that was thinned: every n-th packet of each flow.
    pub packets_per_log_max: u32,
    /// Changes of the thinning, and pauses.
    pub changes: u64,
}

/// A mean in which new measurements weigh more. The first one takes the place of what was only expected: another host may
/// be three times as slow.
#[derive(Clone, Copy, Debug)]
struct Mean {
    value: f64,
    measurements: u32,
}

impl Mean {
    const fn expected(value: f64) -> Self {
        Self {
            value,
            measurements: 0,
        }
    }

    fn add(&mut self, measured: f64) {
        self.measurements = self.measurements.saturating_add(1);
        let weight = WEIGHT.max(1.0 / f64::from(self.measurements));
        self.value += weight * (measured - self.value);
    }
}

/// Times of a program, nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// For a packet that is thinned out.
    skip_ns: Mean,
    /// For one that is logged, or for an event.
    log_ns: Mean,
}

/// Before anything was timed: about a third more than the times of docs/tcp.md. What is dearer than expected is spent before it
/// is known; with twice the times, packets would not be observed for a second where skipping them fits.
const FIRST: Times = Times {
    skip_ns: Mean::expected(150.0),
    log_ns: Mean::expected(340.0),
};
const FIRST_EVENT_NS: f64 = 1000.0;
const FIRST_RECORD_NS: f64 = 280.0;
const FIRST_SWITCH_S: f64 = 1e-3;
/// Of what it costs to observe between two pauses, what switching may cost; and the most steps for that.
const SWITCHED: f64 = 0.25;
const STEPS_BETWEEN_PAUSES: f64 = 5.0;

/// Decides how packets are thinned.
#[derive(Debug)]
pub struct Budget {
    share: f64,
    setting: Setting,
    last: Meter,
    times: [Times; TCP_HOOK_COUNT],
    /// Time of the reader for each record, nanoseconds, and beside records, as a share of one CPU.
    record_ns: Mean,
    reader_share: Mean,
    /// Spent too much (or, negative, saved), CPU seconds.
    debt_s: f64,
    steps_to_relax: u32,
    pause_until_s: f64,
    observe_until_s: f64,
    /// What it costs to begin or end a pause, CPU seconds of the reader, and whether the last decision did.
    switch_s: Mean,
    has_switched: bool,
    /// Spent in each of the last steps, CPU seconds, and their lengths.
    steps: VecDeque<(f64, f64)>,
    spent_s: f64,
    spent_at_change_s: (f64, f64),
    account: BudgetAccount,
    /// Of the lengths of pauses, so that they meet no period of the traffic.
    random: u64,
}

impl Budget {
    /// A budget of a share of one CPU; all packets are logged at first.
    pub fn new(share: f64, seed: u64) -> Self {
        let mut times = [FIRST; TCP_HOOK_COUNT];
        for event in &mut times[PACKET_HOOKS..] {
            event.log_ns = Mean::expected(FIRST_EVENT_NS);
        }
        Self {
            share,
            setting: Setting {
                packets_per_log: 1,
                observes: true,
            },
            last: Meter::default(),
            times,
            record_ns: Mean::expected(FIRST_RECORD_NS),
            reader_share: Mean::expected(0.0),
            debt_s: 0.0,
            steps_to_relax: STEPS_TO_RELAX,
            pause_until_s: 0.0,
            observe_until_s: 0.0,
            switch_s: Mean::expected(FIRST_SWITCH_S),
            has_switched: false,
            steps: VecDeque::new(),
            spent_s: 0.0,
            spent_at_change_s: (0.0, 0.0),
            account: BudgetAccount {
                share,
                packets_per_log_max: 1,
                ..BudgetAccount::default()
            },
            random: seed | 1,
        }
    }

    /// The setting of now.
    pub fn setting(&self) -> Setting {
        self.setting
    }

    /// What the budget came to so far.
    pub fn account(&self) -> BudgetAccount {
        self.account
    }

    /// Takes in what was counted and spent since the last call, and decides. Returns the new setting if it changes, and
    /// what the log cost since the change before, as a share of one CPU.
    pub fn decide(&mut self, now: Meter) -> Option<(Setting, f64)> {
        let before = std::mem::replace(&mut self.last, now);
        let step_s = now.time_s - before.time_s;
        // What was spent until the first step is that of the start.
        if step_s <= 0.0 || before.time_s == 0.0 {
            return None;
        }
        self.learn(&before, &now, step_s);
        self.spend(&before, &now, step_s);
        let setting = self.decided(&before, &now, step_s);
        self.has_switched = setting.observes != self.setting.observes;
        if setting == self.setting {
            return None;
        }
        self.setting = setting;
        self.account.changes += 1;
        let most = self.account.packets_per_log_max;
        self.account.packets_per_log_max = most.max(setting.packets_per_log);
        let (at_s, spent_s) = self.spent_at_change_s;
        self.spent_at_change_s = (now.time_s, self.spent_s);
        Some((
            setting,
            (self.spent_s - spent_s) / (now.time_s - at_s).max(1e-9),
        ))
    }

    /// Leaves out the time since the last call: the log was switched off.
    pub fn skip(&mut self, now: Meter) {
        self.last = now;
    }

    /// Learns what runs of the programs cost.
    pub fn time(&mut self, timed: &[Timed; TCP_HOOK_COUNT]) {
        for (hook, one) in timed.iter().enumerate() {
            if one.runs < RUNS_MIN || one.seen == 0 {
                continue;
            }
            let mean_ns = one.run_ns as f64 / one.runs as f64;
            let logged = (one.due as f64 / one.seen as f64).min(1.0);
            // Of two unknown times, the one that has more of the mean.
            let times = &mut self.times[hook];
            if logged >= 0.5 {
                let log_ns = (mean_ns - times.skip_ns.value * (1.0 - logged)) / logged;
                times.log_ns.add(log_ns.max(1.0));
            } else {
                let skip_ns = (mean_ns - times.log_ns.value * logged) / (1.0 - logged);
                times.skip_ns.add(skip_ns.max(1.0));
            }
        }
    }

    /// Learns what the reader costs.
    fn learn(&mut self, before: &Meter, now: &Meter, step_s: f64) {
        let cpu_s = now.reader_cpu_s - before.reader_cpu_s;
        let records = records(before, now);
        let fixed_s = self.reader_share.value * step_s;
        if self.has_switched {
            let switch_s = cpu_s - fixed_s - 1e-9 * self.record_ns.value * records as f64;
            self.switch_s.add(switch_s.max(0.0));
        } else if records >= 20 * RUNS_MIN && cpu_s > fixed_s {
            self.record_ns.add(1e9 * (cpu_s - fixed_s) / records as f64);
        } else if records < RUNS_MIN {
            let beside_s = cpu_s - 1e-9 * self.record_ns.value * records as f64;
            self.reader_share.add(beside_s.max(0.0) / step_s);
        }
    }

    fn spend(&mut self, before: &Meter, now: &Meter, step_s: f64) {
        let mut spent_s = now.reader_cpu_s - before.reader_cpu_s;
        for hook in 0..TCP_HOOK_COUNT {
            let seen = now.seen[hook].saturating_sub(before.seen[hook]) as f64;
            let times = self.times[hook];
            spent_s += 1e-9
                * if hook < PACKET_HOOKS {
                    let due = now.due[hook].saturating_sub(before.due[hook]) as f64;
                    (seen - due).max(0.0) * times.skip_ns.value + due * times.log_ns.value
                } else {
                    seen * times.log_ns.value
                };
        }
        self.spent_s += spent_s;
        self.debt_s = (self.debt_s + spent_s - self.share * step_s).max(-SAVED_S * self.share);
        self.steps.push_back((spent_s, step_s));
        if self.steps.len() > STEPS_OF_ACCOUNT {
            self.steps.pop_front();
        }
        let sum = |of: fn(&(f64, f64)) -> f64| self.steps.iter().map(of).sum::<f64>();
        let (spent, lasted) = (sum(|step| step.0), sum(|step| step.1));
        self.account.cost_share = self.spent_s / now.time_s;
        if self.steps.len() == STEPS_OF_ACCOUNT {
            self.account.cost_share_max = self.account.cost_share_max.max(spent / lasted);
        }
        if self.setting.observes {
            self.account.observed_s += step_s;
        }
    }

    fn decided(&mut self, before: &Meter, now: &Meter, step_s: f64) -> Setting {
        // What is owed is paid back, what is saved is a reserve.
        let target = PLANNED * self.share - self.debt_s.max(0.0) / REPAID_S;
        if !self.setting.observes {
            return Setting {
                observes: now.time_s >= self.pause_until_s,
                ..self.setting
            };
        }
        if now.time_s < self.observe_until_s {
            return self.setting;
        }
        let cost = |packets_per_log: u32| self.cost_share(before, now, step_s, packets_per_log);
        let mut needed = 1;
        while needed < PACKETS_PER_LOG_MAX && cost(needed) > target {
            needed *= 2;
        }
        let skipped = cost(needed);
        if skipped > target {
            // While packets are observed, what is logged may take a part of what they cost anyway.
            let mut enough = 1;
            while enough < PACKETS_PER_LOG_MAX && cost(enough) > LOGGED_BESIDE * skipped {
                enough *= 2;
            }
            // Switching on and off costs, too: so long is observed at a time, but for no more than a second's budget.
            let step_cost_s = (cost(enough) - self.reader_share.value).max(1e-9) * step_s;
            let switches_s = 2.0 * self.switch_s.value;
            let steps = (switches_s / SWITCHED / step_cost_s).min(self.share / step_cost_s);
            let steps = steps.round().clamp(1.0, STEPS_BETWEEN_PAUSES);
            // So that the share of the time that is left costs what may be spent.
            let rest = (target - self.reader_share.value).max(0.02 * self.share);
            let pause_s = (steps * step_cost_s + switches_s) / rest - steps * step_s;
            let pause_s = pause_s.max(step_s) * self.exponential();
            self.pause_until_s = now.time_s + pause_s.min(PAUSE_MAX_S);
            self.observe_until_s = self.pause_until_s + (steps - 0.5) * step_s;
            return Setting {
                packets_per_log: enough,
                observes: false,
            };
        }
        let current = self.setting.packets_per_log;
        if needed >= current {
            self.steps_to_relax = STEPS_TO_RELAX;
            return Setting {
                packets_per_log: needed,
                observes: true,
            };
        }
        // Fewer are thinned out only when that has been possible for a while.
        self.steps_to_relax -= 1;
        if self.steps_to_relax > 0 {
            return self.setting;
        }
        self.steps_to_relax = STEPS_TO_RELAX;
        Setting {
            packets_per_log: current / 2,
            observes: true,
        }
    }

    /// What a step would have cost with another thinning, as a share of one CPU.
    fn cost_share(&self, before: &Meter, now: &Meter, step_s: f64, packets_per_log: u32) -> f64 {
        let mut spent_ns = 0.0;
        for hook in 0..TCP_HOOK_COUNT {
            let seen = now.seen[hook].saturating_sub(before.seen[hook]) as f64;
            let Times { skip_ns, log_ns } = self.times[hook];
            let logged = match hook < PACKET_HOOKS {
                true => 1.0 / f64::from(packets_per_log),
                false => 1.0,
            };
            let logged_ns = log_ns.value + self.record_ns.value;
            let mean_ns = skip_ns.value + (logged_ns - skip_ns.value) * logged;
            spent_ns += seen * mean_ns;
        }
        1e-9 * spent_ns / step_s + self.reader_share.value
    }

    /// A random number of an exponential distribution with mean 1 (xorshift64 by Marsaglia, 2003).
    fn exponential(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let uniform = (self.random >> 11) as f64 / (1_u64 << 53) as f64;
        -(1.0 - uniform).ln()
    }
}

/// Records that the reader got between two times.
fn records(before: &Meter, now: &Meter) -> u64 {
    let packets: u64 = (0..PACKET_HOOKS)
        .map(|hook| now.due[hook].saturating_sub(before.due[hook]))
        .sum();
    let events: u64 = (PACKET_HOOKS..TCP_HOOK_COUNT)
        .map(|hook| now.seen[hook].saturating_sub(before.seen[hook]))
        .sum();
    packets + events
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
