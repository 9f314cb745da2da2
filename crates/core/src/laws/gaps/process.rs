//! A gap law at work.

use super::geometric_on_off::GeometricSources;
use super::pareto_on_off::ParetoSources;
use super::{GapLaw, Shape};
use crate::laws::{Distribution, Generator, Law};
use std::sync::Arc;

/// A sequence of gaps: the law and where it is.
#[derive(Debug, Clone)]
pub struct GapProcess {
    state: State,
    scale: f64,
}

#[derive(Debug, Clone)]
enum State {
    None,
    Renewal(Law),
    Bursts {
        size: u32,
        inside_ns: f64,
        pause: Law,
        // Packets of this burst that are still to come.
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
    pub(super) fn new(law: &GapLaw, generator: &mut Generator) -> Self {
        let state = match &law.shape {
            Shape::None => State::None,
            Shape::Renewal(law) => State::Renewal(law.clone()),
            Shape::Bursts {
                size,
                inside_ns,
                pause,
            } => State::Bursts {
                size: *size,
                inside_ns: *inside_ns,
                pause: pause.clone(),
                left: size - 1,
            },
            Shape::GeometricOnOff(sources) => State::Geometric(sources.start(generator)),
            Shape::ParetoOnOff(sources) => State::Pareto(sources.start(generator)),
            Shape::Recorded(gaps) => State::Recorded {
                gaps: Arc::clone(gaps),
                next: 0,
            },
        };
        Self {
            state,
            scale: law.scale,
        }
    }

    /// The gap from this packet to the next, ns, not below 0.
    pub fn next_gap_ns(&mut self, generator: &mut Generator) -> f64 {
        let gap = match &mut self.state {
            State::None => 0.0,
            State::Renewal(law) => law.sample(generator),
            State::Bursts {
                size,
                inside_ns,
                pause,
                left,
            } => {
                if *left > 0 {
                    *left -= 1;
                    *inside_ns
                } else {
                    *left = *size - 1;
                    pause.sample(generator)
                }
            }
            State::Geometric(sources) => sources.next_gap_ns(generator),
            State::Pareto(sources) => sources.next_gap_ns(generator),
            State::Recorded { gaps, next } => {
                let gap = gaps[*next];
                *next = (*next + 1) % gaps.len();
                gap
            }
        };
        (gap * self.scale).max(0.0)
    }
}
