//! PIE, after RFC 8033: an arriving frame is dropped with a probability that a proportional-integral controller sets by
//! the waiting time, at regular intervals.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::congestion_mark;

/// Reference of the waiting time, as RFC 8033 recommends; so are the numbers below.
const REFERENCE_NS: u64 = 15_000_000;
/// Interval of the controller.
const UPDATE_NS: u64 = 15_000_000;
/// Time in which a burst passes unharmed.
const BURST_NS: u64 = 150_000_000;
/// Weights of the deviation and of its change, 1/s.
const ALPHA: f64 = 0.125;
const BETA: f64 = 1.25;
/// A queue of so few bytes is not shortened: two packets of the mean size.
const SPARED_BYTES: u64 = 2 * 1024;
/// Above this probability, frames are dropped though they could be marked (section 5.1).
const MARKED_MOST: f64 = 0.1;
/// Sums of probabilities between which a frame may be dropped, so that drops are spread (section 5.4).
const ACCUMULATED: [f64; 2] = [0.85, 8.5];

/// What becomes of a frame that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It waits.
    Take,
    /// It waits, marked.
    Mark,
    /// It is dropped.
    Drop,
}

/// The controller.
#[derive(Clone, Debug)]
pub struct Pie {
    reference_s: f64,
    is_ecn: bool,
    probability: f64,
    accumulated: f64,
    waited_s: f64,
    waited_before_s: f64,
    burst_ns: u64,
    /// When the controller acts next; 0 before the first frame.
    update_ns: u64,
    random: Pcg64,
}

impl Pie {
    /// A controller without drops, with the reference of RFC 8033 where none is given.
    pub fn new(reference_ns: Option<u64>, is_ecn: bool, seed: u64) -> Self {
        Self {
            reference_s: reference_ns.unwrap_or(REFERENCE_NS) as f64 / 1e9,
            is_ecn,
            probability: 0.0,
            accumulated: 0.0,
            waited_s: 0.0,
            waited_before_s: 0.0,
            burst_ns: BURST_NS,
            update_ns: 0,
            random: Pcg64::seed_from_u64(seed),
        }
    }

    /// Decides about a frame that finds so many bytes waiting.
    pub fn admit(&mut self, waiting_bytes: u64, frame: &[u8]) -> Admission {
        if self.burst_ns > 0
            || (self.waited_s < self.reference_s / 2.0 && self.probability < 0.2)
            || waiting_bytes <= SPARED_BYTES
        {
            return Admission::Take;
        }
        if self.probability == 0.0 {
            self.accumulated = 0.0;
        }
        self.accumulated += self.probability;
        let [least, most] = ACCUMULATED;
        if self.accumulated < least
            || (self.accumulated < most && self.random.random::<f64>() >= self.probability)
        {
            return Admission::Take;
        }
        self.accumulated = 0.0;
        let is_marked =
            self.is_ecn && self.probability < MARKED_MOST && congestion_mark::can_be_marked(frame);
        if is_marked {
            Admission::Mark
        } else {
            Admission::Drop
        }
    }

    /// Acts at all its times up to this one, at which a frame would wait so long.
    pub fn update_until(&mut self, now_ns: u64, waiting_ns: u64) {
        if self.update_ns == 0 {
            self.update_ns = now_ns + UPDATE_NS;
        }
        while self.update_ns <= now_ns {
            self.update(waiting_ns as f64 / 1e9);
            self.update_ns += UPDATE_NS;
            if self.is_at_rest() && self.update_ns <= now_ns {
                // Nothing changes until a frame waits.
                let missed = (now_ns - self.update_ns) / UPDATE_NS;
                self.update_ns += missed * UPDATE_NS;
            }
        }
    }

    fn is_at_rest(&self) -> bool {
        self.probability == 0.0
            && self.waited_s == 0.0
            && self.waited_before_s == 0.0
            && self.burst_ns == BURST_NS
    }

    fn update(&mut self, waited_s: f64) {
        let change = ALPHA * (waited_s - self.reference_s) + BETA * (waited_s - self.waited_s);
        // Small probabilities change in small steps.
        let scale = match self.probability {
            p if p < 1e-6 => 2048.0,
            p if p < 1e-5 => 512.0,
            p if p < 1e-4 => 128.0,
            p if p < 1e-3 => 32.0,
            p if p < 1e-2 => 8.0,
            p if p < 1e-1 => 2.0,
            _ => 1.0,
        };
        let change = change / scale;
        // Large ones change by two percent at most (section 5.5).
        let change = if self.probability >= 0.1 {
            change.min(0.02)
        } else {
            change
        };
        self.probability += change;
        if waited_s == 0.0 && self.waited_s == 0.0 {
            self.probability *= 0.98;
        }
        self.probability = self.probability.clamp(0.0, 1.0);
        self.waited_before_s = self.waited_s;
        self.waited_s = waited_s;
        self.burst_ns = self.burst_ns.saturating_sub(UPDATE_NS);
        let half_s = self.reference_s / 2.0;
        if self.probability == 0.0 && self.waited_s < half_s && self.waited_before_s < half_s {
            self.burst_ns = BURST_NS;
        }
    }
}
