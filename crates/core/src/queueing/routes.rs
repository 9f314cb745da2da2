//! Where packets go from a source or after service.

use super::error::ModelError;
use super::model::Transition;
use super::names::Names;

/// The routes of a class from a queue or source.
#[derive(Clone, Debug)]
pub(super) struct Routes {
    /// The only route, if it has no choice and no change of class.
    pub direct: Option<DirectRoute>,
    /// Queues in which packets need room before their service starts, if this queue blocks before service.
    pub blocking: Box<[u32]>,
    /// The route of the packet, then one for each clone.
    pub all: Box<[Route]>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct DirectRoute {
    pub place: u32,
    /// Whether packets have a reserved place there.
    pub blocks: bool,
}

impl From<Vec<Route>> for Routes {
    fn from(all: Vec<Route>) -> Self {
        let direct = match &all[..] {
            [route] if route.choices.is_empty() && route.becomes.is_none() => Some(DirectRoute {
                place: route.place,
                blocks: route.blocks,
            }),
            _ => None,
        };
        let blocking = all.iter().filter(|route| route.blocks);
        Self {
            direct,
            blocking: blocking.map(|route| route.place).collect(),
            all: all.into(),
        }
    }
}

/// The route of one copy of a packet.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// The only place, or the first choice.
    pub place: u32,
    /// Cumulative probabilities and their places; empty if there is one place.
    pub choices: Vec<(f64, u32)>,
    pub becomes: Option<u16>,
    pub blocks: bool,
}

impl Route {
    /// Resolves a transition of `origin`, which errors name.
    pub fn new(transition: &Transition, names: &Names, origin: &str) -> Result<Self, ModelError> {
        let mut choices = Vec::new();
        let mut cumulative = 0.0;
        for choice in &transition.to {
            cumulative += choice.probability;
            choices.push((cumulative, names.place(&choice.place, origin)? as u32));
        }
        let place = choices[0].1;
        if choices.len() == 1 {
            choices.clear();
        }
        // A sink is never full. Of several places, one may be a queue.
        let blocks = transition.blocks && (!choices.is_empty() || names.is_queue(place));
        Ok(Self {
            place,
            choices,
            becomes: match &transition.becomes {
                Some(class) => Some(names.class(class, origin)? as u16),
                None => None,
            },
            blocks,
        })
    }

    /// The classes and places that packets of a class go to.
    pub fn destinations(&self, class: usize) -> impl Iterator<Item = (usize, usize)> {
        let class = self.becomes.map_or(class, usize::from);
        let choices = self.choices.iter().map(|choice| choice.1);
        let single = self.choices.is_empty().then_some(self.place);
        choices
            .chain(single)
            .map(move |place| (class, place as usize))
    }

    /// The place for a uniform random number in [0, 1), which is drawn only if there is a choice.
    #[inline]
    pub fn choose(&self, uniform: impl FnOnce() -> f64) -> u32 {
        let Some(last) = self.choices.last() else {
            return self.place;
        };
        let uniform = uniform();
        let choice = self.choices.iter().find(|choice| uniform < choice.0);
        // Rounding may leave the sum of the probabilities a little below 1.
        choice.unwrap_or(last).1
    }
}
