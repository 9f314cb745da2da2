//! Keeps what a measurement of paths costs below a share of one CPU: for how long the programs are attached, and for how
//! long not.
//!
//! Here are the decisions, from times alone; [`run`](super::run) measures, and carries them out.

use std::collections::VecDeque;
use std::time::Duration;

use rand::{Rng, RngExt};
use serde::Serialize;

/// How often the reader looks whether a window is to end: waking up costs.
pub(super) const STEP: Duration = Duration::from_millis(25);
/// The longest time until the next decision, seconds.
const WINDOW_MAX_S: f64 = 0.5;
/// The shortest window, seconds: attaching takes tens of milliseconds.
const WINDOW_MIN_S: f64 = 0.05;
/// What one window is to cost: what may be spent in so many seconds; and what it must not.
const WINDOW_COST_S: f64 = 0.5;
const WINDOW_COST_MAX_S: f64 = 1.0;
/// Part of the budget that is planned with; the rest is for what is known too late.
const PLANNED: f64 = 0.9;
/// What was not spent in this time may be spent later.
const SAVED_S: f64 = 0.5;
/// The longest time that has one window, seconds.
const SPAN_MAX_S: f64 = 30.0;
/// Of a new measurement in a mean.
const WEIGHT: f64 = 0.3;
/// The time that the account looks at for the largest cost, and how often, seconds.
const LOOKED_AT_S: f64 = 10.0;
const LOOKS_S: f64 = 0.1;

/// What a budget came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BudgetAccount {
    /// The share of one CPU that was not to be exceeded.
    pub share: f64,
    /// The share that programs and reader took.
    pub cost_share: f64,
    /// The largest share in ten seconds.
    pub cost_share_max: f64,
}

/// The time until the next window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause {
    /// Seconds; 0: the programs stay attached.
    pub length_s: f64,
    /// Of the span of time in which the next window comes at random, what is no window.
    pub stands_for_s: f64,
}

/// Decides when the programs are attached.
#[derive(Debug)]
pub(super) struct Budget {
    account: BudgetAccount,
    now_s: f64,
    spent_s: f64,
    /// Spent too much (or, negative, saved), CPU seconds.
    debt_s: f64,
    /// What the next window is to cost, which is saved before it; and the part of attaching and detaching, when known.
    next_s: f64,
    switching_s: f64,
    /// How long a window is that begins, seconds, and what share of one CPU windows took.
    window_s: f64,
    window_share: f64,
    /// When the last decision was, and what had been spent by then; and when its span ends.
    decided: (f64, f64),
    span_ends_s: f64,
    /// What the reader takes without programs, as a share of one CPU.
    idle_share: f64,
    /// Times, and what had been spent by then.
    looks: VecDeque<(f64, f64)>,
}

impl Budget {
    /// A budget of a share of one CPU.
    pub fn new(share: f64) -> Self {
        Self {
            account: BudgetAccount {
                share,
                ..BudgetAccount::default()
            },
            now_s: 0.0,
            spent_s: 0.0,
            debt_s: 0.0,
            next_s: 0.0,
            switching_s: 0.0,
            window_s: WINDOW_MIN_S,
            window_share: 0.0,
            decided: (0.0, 0.0),
            span_ends_s: 0.0,
            idle_share: 0.0,
            looks: VecDeque::from([(0.0, 0.0)]),
        }
    }

    /// Takes in what it cost to attach the programs, CPU seconds: to detach them is taken to cost the same, until both
    /// were seen.
    pub fn attached(&mut self, cost_s: f64) {
        self.switching_s = 2.0 * cost_s;
    }

    /// What it came to so far.
    pub fn account(&self) -> BudgetAccount {
        self.account
    }

    /// Takes in what was spent until now, CPU seconds, both since the beginning.
    pub fn spend(&mut self, now_s: f64, spent_s: f64, is_attached: bool) {
        let (step_s, cost_s) = (now_s - self.now_s, spent_s - self.spent_s);
        if step_s <= 0.0 {
            return;
        }
        if !is_attached {
            self.idle_share += WEIGHT.min(step_s) * (cost_s / step_s - self.idle_share);
        }
        let share = self.account.share;
        let earned_s = self.planned() * step_s;
        let saved_s = SAVED_S * share + self.next_s;
        self.debt_s = (self.debt_s + cost_s - earned_s).max(-saved_s);
        (self.now_s, self.spent_s) = (now_s, spent_s);
        self.account.cost_share = spent_s / now_s;
        if now_s - self.looks.back().map_or(0.0, |look| look.0) < LOOKS_S {
            return;
        }
        self.looks.push_back((now_s, spent_s));
        while let Some(&(next_s, _)) = self.looks.get(1)
            && now_s - next_s >= LOOKED_AT_S
        {
            self.looks.pop_front();
        }
        let (from_s, before_s) = self.looks[0];
        if now_s - from_s >= LOOKED_AT_S {
            let most = &mut self.account.cost_share_max;
            *most = most.max((spent_s - before_s) / (now_s - from_s));
        }
    }

    /// The share that is planned with. Ten seconds may have a window more at each end than the mean, so few expensive
    /// windows leave more room than many; and where the programs stay attached, windows may be necessary at any time.
    fn planned(&self) -> f64 {
        let share = self.account.share;
        let next_s = self.next_s.max(WINDOW_COST_S * share + self.switching_s);
        let window = next_s / (share * LOOKED_AT_S);
        share * (1.05 - 2.0 * window).clamp(0.5, PLANNED)
    }

    /// The earliest time at which the next window may begin, so that ten seconds at its end are expected to cost no more than
    /// the budget: what comes otherwise than expected has the rest.
    fn earliest_s(&self) -> f64 {
        let most_s = self.account.share * LOOKED_AT_S - self.next_s;
        let idle_s = |until_s: f64| self.idle_share * (until_s - self.now_s).max(0.0);
        let leaves_room =
            |look: &&(f64, f64)| self.spent_s - look.1 + idle_s(look.0 + LOOKED_AT_S) <= most_s;
        if self.looks.front().is_some_and(|look| leaves_room(&look)) {
            return self.now_s;
        }
        let from_s = self
            .looks
            .iter()
            .find(leaves_room)
            .map_or(self.now_s, |look| look.0);
        (from_s + LOOKED_AT_S - self.window_s).max(self.now_s)
    }

    /// Whether a window ends: it is as long as was decided before it, or costs far more than it may.
    pub fn ends(&self, window_s: f64, cost_s: f64) -> bool {
        window_s >= self.window_s
            || (window_s >= WINDOW_MIN_S && cost_s >= WINDOW_COST_MAX_S * self.account.share)
    }

    /// Decides after a window of so many seconds, which took so many CPU seconds, when the next one comes.
    ///
    /// Time is divided into spans of decided lengths, and each has one window at a random time: so windows meet no period
    /// of the host, and no ten seconds have many more than others.
    pub fn decide(&mut self, window_s: f64, cost_s: f64, rng: &mut impl Rng) -> Pause {
        let share = self.account.share;
        let planned = self.planned();
        let window_share = cost_s / window_s.max(1e-9);
        self.window_share += WEIGHT * (window_share - self.window_share);
        // What was just seen is a better guess when it is more.
        let expected = self.window_share.max(window_share).max(1e-9);
        self.window_s = (WINDOW_COST_S * share / expected).clamp(WINDOW_MIN_S, WINDOW_MAX_S);
        let (then_s, before_s) = std::mem::replace(&mut self.decided, (self.now_s, self.spent_s));
        let left_s = (self.span_ends_s - self.now_s).max(0.0);
        let is_affordable = window_share <= planned && self.debt_s <= WINDOW_COST_S * share;
        if self.debt_s <= 0.0 || is_affordable {
            // The rest of the span has its window already: what is seen of it as well would count twice.
            self.span_ends_s = self.now_s + left_s;
            self.next_s = 0.0;
            return Pause {
                length_s: left_s,
                stands_for_s: 0.0,
            };
        }
        // With what it costs to attach and detach.
        let idle_s = (self.now_s - then_s - window_s).max(0.0);
        // Times of the reader are not exact.
        if idle_s > STEP.as_secs_f64() {
            self.switching_s =
                (self.spent_s - before_s - cost_s - self.idle_share * idle_s).max(0.0);
        }
        self.next_s = (self.window_s + STEP.as_secs_f64()) * expected + self.switching_s;
        // At the end of its span, the next window is to have been earned.
        let planned = self.planned();
        let earned = (planned - self.idle_share).max(0.05 * planned);
        let owed_s = (self.debt_s - earned * left_s).max(0.0) + self.next_s;
        let span_s = (owed_s / earned).clamp(self.window_s, SPAN_MAX_S);
        self.span_ends_s = self.now_s + left_s + span_s;
        let random: f64 = rng.random();
        let idle_s = span_s - self.window_s;
        let drawn_s = left_s + idle_s * random;
        // No longer a random time, but it depends on cost of before only.
        let late_s = (self.earliest_s() - self.now_s - drawn_s).max(0.0);
        self.span_ends_s += late_s;
        Pause {
            length_s: drawn_s + late_s,
            stands_for_s: idle_s + late_s,
        }
    }
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
