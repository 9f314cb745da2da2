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
    /// The sources, each with the time until its next packet, ns; and the one that has sent the last.
    Superposed(Vec<(GapProcess, f64)>, usize),
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
            Shape::Superposed(sources) => {
                let started = sources.iter().map(|source| {
                    let until_ns = rng.unit() * source.mean_period_ns();
                    (source.start(rng), until_ns)
                });
                let mut sources: Vec<_> = started.collect();
                let (first, _) = advance(&mut sources);
                State::Superposed(sources, first)
            }
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
            State::Superposed(sources, last) => {
                let (source, until_ns) = &mut sources[*last];
                *until_ns = source.next_gap_ns(rng);
                let (next, gap) = advance(sources);
                *last = next;
                gap
            }
        };
        (gap * self.scale).max(0.0)
    }
}

/// Goes to the next packet of several sources; returns whose it is, and the time to it. Of packets at one time the first
/// source's comes first.
fn advance(sources: &mut [(GapProcess, f64)]) -> (usize, f64) {
    let untils = sources.iter().map(|(_, until_ns)| *until_ns).enumerate();
    let (next, gap_ns) = untils
        .min_by(|(_, one), (_, other)| one.total_cmp(other))
        .expect("there is a source");
    for (_, until_ns) in sources {
        *until_ns -= gap_ns;
    }
    (next, gap_ns)
}
