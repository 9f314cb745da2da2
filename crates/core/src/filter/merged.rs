//! The filters of all subscribers as one.

use std::collections::HashSet;

use crate::abi::{CAPTURE_SNAPLEN_MAX, CAPTURE_SUBSCRIBERS_MAX};

use super::build::build;
use super::classic::{ClassicProgram, Origin};
use super::decision::{Decisions, NodeId};
use super::error::FilterError;
use super::search::search;
use super::simplify::simplify;
use super::stage::{Budget, Edge, Stage, ranks};
use super::value::Known;

/// Maximum number of questions in a stage; beyond it, the filters are split over two stages. Thus the program
/// with 64 filters and three views of a frame stays far below the verifier's limit.
const QUESTIONS_MAX: usize = 4096;
/// Maximum ratio of questions in a stage to those of its filters alone. More make the program a little faster
/// and its verification much slower.
const QUESTIONS_PER_NODE: usize = 8;
/// Maximum number of nodes to visit for one stage, each of which may take some 100 bytes until the
/// stage is done.
const STAGE_VISITS_MAX: u64 = 2_000_000;
/// Maximum number of nodes to visit in all: filters that are not merged by then run one after another.
const VISITS_MAX: u64 = 4 * STAGE_VISITS_MAX;
/// Maximum nodes of a filter that is merged with others: every question costs as many visits.
const NODES_MERGED_MAX: usize = 512;

/// A filter and its subscribers, as bits.
type Filter = (NodeId, u64);

/// A subscriber and its filter.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// The subscriber's bit in the verdict, 0 to 63.
    pub subscriber: u32,
    /// The filter.
    pub program: ClassicProgram,
    /// Snapshot length, bytes, up to [`CAPTURE_SNAPLEN_MAX`].
    pub snaplen_bytes: u32,
}

/// A set of filters that is evaluated as one.
#[derive(Clone, Debug)]
pub struct MergedFilter {
    pub(super) decisions: Decisions,
    pub(super) stages: Vec<Stage>,
    /// Snapshot lengths and their subscribers, the longest first.
    pub(super) snaplens: Vec<(u32, u64)>,
}

impl MergedFilter {
    /// Merges the filters of 1 to 64 subscribers.
    ///
    /// # Errors
    /// [`FilterError`] names the subscriber whose filter cannot be merged, and why.
    pub fn new(subscriptions: &[Subscription]) -> Result<Self, FilterError> {
        Self::of_stages(subscriptions, groups)
    }

    /// No filters: a program of it has the subscribers alone that get every frame.
    pub fn none() -> Self {
        Self {
            decisions: Decisions::default(),
            stages: Vec::new(),
            snaplens: Vec::new(),
        }
    }

    /// Gives every distinct filter a stage of its own: the shortest program, for a verifier that refuses the
    /// merged one as too long. The filters run one after the other for each packet.
    ///
    /// # Errors
    /// As [`MergedFilter::new`].
    pub fn apart(subscriptions: &[Subscription]) -> Result<Self, FilterError> {
        Self::of_stages(subscriptions, |filters, _| {
            filters.into_iter().map(|filter| vec![filter]).collect()
        })
    }

    fn of_stages(
        subscriptions: &[Subscription],
        stages_of: impl FnOnce(Vec<Filter>, &Decisions) -> Vec<Vec<Filter>>,
    ) -> Result<Self, FilterError> {
        check(subscriptions)?;
        let mut decisions = Decisions::default();
        let mut filters: Vec<Filter> = Vec::new();
        for subscription in subscriptions {
            let mut root = build(&subscription.program, &mut decisions).map_err(|source| {
                FilterError::Program {
                    subscriber: subscription.subscriber,
                    source,
                }
            })?;
            root = simplify(&mut decisions, root);
            if decisions.reachable(root).len() > NODES_MERGED_MAX {
                root = search(&mut decisions, root);
            }
            let bit = 1 << subscription.subscriber;
            match filters.iter_mut().find(|(known, _)| *known == root) {
                Some((_, subscribers)) => *subscribers |= bit,
                None => filters.push((root, bit)),
            }
        }
        let roots: Vec<NodeId> = filters.iter().map(|(root, _)| *root).collect();
        let ranks = ranks(&decisions, &roots);
        let mut stages = Vec::new();
        let mut open = stages_of(filters, &decisions);
        let last_visit = decisions.visits().saturating_add(VISITS_MAX);
        // Each round makes a stage, or splits a group of at least two filters.
        while let Some(mut filters) = open.pop() {
            if let [filter] = filters[..] {
                stages.push(Stage::alone(&mut decisions, &ranks, filter));
                continue;
            }
            let visits = last_visit.saturating_sub(decisions.visits());
            let budget = budget(&decisions, &filters, visits);
            if let Some(stage) = Stage::merge(&mut decisions, &ranks, &filters, budget) {
                stages.push(stage);
            } else {
                let rest = filters.split_off(filters.len() / 2);
                open.extend([rest, filters]);
            }
        }
        Ok(Self {
            decisions,
            stages,
            snaplens: snaplens(subscriptions),
        })
    }

    /// The subscribers whose filters accept a frame, as bits. `frame` is the whole frame.
    pub fn subscribers(&self, frame: &[u8]) -> u64 {
        self.subscribers_at(frame, Origin::default(), false)
    }

    /// As [`MergedFilter::subscribers`], for a frame that passes there. `tag_is_beside`: a packet socket there shows
    /// the frame's outer VLAN tag beside it.
    pub fn subscribers_at(&self, frame: &[u8], origin: Origin, tag_is_beside: bool) -> u64 {
        let mut known = Known::of(origin, tag_is_beside);
        self.stages
            .iter()
            .map(|stage| self.walk(stage, frame, &mut known))
            .fold(0, |all, accepted| all | accepted)
    }

    /// Whether every frame is accepted by all subscribers or by none. When that cannot be seen, false.
    pub fn agrees(&self) -> bool {
        let everybody = self.snaplens.iter().fold(0, |all, (_, bits)| all | bits);
        let [stage] = &self.stages[..] else {
            return false;
        };
        let mut seen = HashSet::new();
        let mut open = vec![(stage.entry, 0)];
        while let Some((edge, before)) = open.pop() {
            let accepted = before | edge.accepts;
            match edge.to {
                None if accepted != 0 && accepted != everybody => return false,
                Some(next) if seen.insert((next, accepted)) => {
                    let question = stage.questions[next];
                    open.extend([(question.yes, accepted), (question.no, accepted)]);
                }
                _ => {}
            }
        }
        true
    }

    /// The maximum snapshot length of these subscribers, in bytes; 0 without subscribers.
    pub fn snaplen_bytes(&self, subscribers: u64) -> u32 {
        self.snaplens
            .iter()
            .find(|(_, wanted)| wanted & subscribers != 0)
            .map_or(0, |(snaplen_bytes, _)| *snaplen_bytes)
    }

    /// Number of questions in the whole program.
    pub fn questions(&self) -> usize {
        self.stages.iter().map(|stage| stage.questions.len()).sum()
    }

    /// Number of stages that run one after the other: 1 unless the filters differ too much.
    pub fn stages(&self) -> usize {
        self.stages.len()
    }

    fn walk(&self, stage: &Stage, frame: &[u8], known: &mut Known) -> u64 {
        let mut accepted = 0;
        let mut edge: Edge = stage.entry;
        loop {
            accepted |= edge.accepts;
            let Some(at) = edge.to else { return accepted };
            let question = stage.questions[at];
            let answer = self.decisions.condition(question.condition).evaluate(
                &self.decisions.values,
                frame,
                known,
            );
            edge = match answer {
                Some(true) => question.yes,
                Some(false) => question.no,
                None => unreachable!("a question asks for bytes that no question before it found"),
            };
        }
    }
}

fn check(subscriptions: &[Subscription]) -> Result<(), FilterError> {
    if subscriptions.is_empty() || subscriptions.len() > CAPTURE_SUBSCRIBERS_MAX {
        return Err(FilterError::Subscriptions {
            found: subscriptions.len(),
        });
    }
    let mut seen = 0_u64;
    for &Subscription {
        subscriber,
        snaplen_bytes,
        ..
    } in subscriptions
    {
        if subscriber as usize >= CAPTURE_SUBSCRIBERS_MAX {
            return Err(FilterError::Subscriber { found: subscriber });
        }
        if seen & 1 << subscriber != 0 {
            return Err(FilterError::SubscriberTwice { subscriber });
        }
        seen |= 1 << subscriber;
        if snaplen_bytes > CAPTURE_SNAPLEN_MAX {
            return Err(FilterError::Snaplen {
                subscriber,
                found: snaplen_bytes,
            });
        }
    }
    Ok(())
}

fn snaplens(subscriptions: &[Subscription]) -> Vec<(u32, u64)> {
    let mut snaplens = std::collections::BTreeMap::new();
    for subscription in subscriptions {
        *snaplens.entry(subscription.snaplen_bytes).or_insert(0) |= 1 << subscription.subscriber;
    }
    snaplens.into_iter().rev().collect()
}

/// Long filters alone, all others in one group.
fn groups(filters: Vec<Filter>, decisions: &Decisions) -> Vec<Vec<Filter>> {
    let (long, short): (Vec<Filter>, Vec<Filter>) = filters
        .into_iter()
        .partition(|(root, _)| decisions.reachable(*root).len() > NODES_MERGED_MAX);
    let mut groups: Vec<Vec<Filter>> = long.into_iter().map(|filter| vec![filter]).collect();
    if !short.is_empty() {
        groups.push(short);
    }
    groups
}

/// The budget of a stage of these filters, with this number of visits left.
fn budget(decisions: &Decisions, filters: &[Filter], visits: u64) -> Budget {
    let nodes: usize = filters
        .iter()
        .map(|(root, _)| decisions.reachable(*root).len())
        .sum();
    Budget {
        questions: (nodes * QUESTIONS_PER_NODE).min(QUESTIONS_MAX),
        visits: visits.min(STAGE_VISITS_MAX),
    }
}
