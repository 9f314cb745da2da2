//! Draws successive gaps.

use super::on_off::{GeometricSources, ParetoSources};
use super::{Bursts, GapDistribution, Shape};
use crate::distributions::{AnyDistribution, Distribution, Rng};
use std::sync::Arc;

/// A running sequence of gaps: the distribution and its current state.
#[derive(Debug, Clone)]
pub struct GapProcess {
    state: State,
    scale: f64,
}

#[derive(Debug, Clone)]
enum State {
    None,
    Renewal(AnyDistribution),
    Bursts {
        bursts: Bursts,
        // Packets of this burst that are not sent yet.
        left: u32,
    },
    Geometric(GeometricSources),
    Pareto(ParetoSources),
    Recorded {
        gaps: Arc<[f64]>,
        next: usize,
    },
}

impl GapProcess {
    pub(super) fn new(distribution: &GapDistribution, rng: &mut Rng) -> Self {
        let state = match &distribution.shape {
            Shape::None => State::None,
            Shape::Renewal(distribution) => State::Renewal(distribution.clone()),
            Shape::Bursts(bursts) => State::Bursts {
                bursts: bursts.clone(),
                left: bursts.size - 1,
            },
            Shape::GeometricOnOff(sources) => State::Geometric(sources.start(rng)),
            Shape::ParetoOnOff(sources) => State::Pareto(sources.start(rng)),
            Shape::Recorded(gaps) => State::Recorded {
                gaps: Arc::clone(gaps),
                next: 0,
            },
        };
        Self {
            state,
            scale: distribution.scale,
        }
    }

    /// The gap from this packet to the next, ns, not below 0.
    pub fn next_gap_ns(&mut self, rng: &mut Rng) -> f64 {
        let gap = match &mut self.state {
            State::None => 0.0,
            State::Renewal(distribution) => distribution.sample(rng),
            State::Bursts { bursts, left } => {
                if *left > 0 {
                    *left -= 1;
                    bursts.inside_ns
                } else {
                    *left = bursts.size - 1;
                    bursts.pause.sample(rng)
                }
            }
            State::Geometric(sources) => sources.next_gap_ns(rng),
            State::Pareto(sources) => sources.next_gap_ns(rng),
            State::Recorded { gaps, next } => {
                let gap = gaps[*next];
                *next = (*next + 1) % gaps.len();
                gap
            }
        };
        (gap * self.scale).max(0.0)
    }
}
