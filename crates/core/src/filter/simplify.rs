//! Removes questions of a filter whose answers are already known.
//!
//! Without its optimizer libpcap tests again before each primitive whether the packet is IPv4. Restricting the filter at every question, as merging does, would
//! take quadratic time: here each path through the filter keeps the answers to the most frequent questions,
//! and paths that reach the same node with the same answers are one.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use super::decision::{ConditionId, Decisions, NodeId};

/// Maximum number of questions whose answers are kept, one bit for each.
const TRACKED_MAX: usize = 64;
/// Maximum number of paths to a node, on average; beyond it the filter stays as it is.
const PATHS_PER_NODE: usize = 64;
/// Maximum number of paths in all: each takes some 200 bytes.
const PATHS_MAX: usize = 1_000_000;
/// A walk over more decided questions is remembered.
const LONG_WALK: usize = 16;

/// Answers, by bits of the questions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Answers {
    yes: u64,
    no: u64,
}

impl Answers {
    fn of(self, question: u64) -> Option<bool> {
        match (self.yes & question != 0, self.no & question != 0) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }
}

/// A node, and the known answers to the questions at or behind it.
type Place = (NodeId, Answers);

/// The filter without questions that earlier answers decide.
pub fn simplify(decisions: &mut Decisions, root: NodeId) -> NodeId {
    let nodes = decisions.reachable(root);
    let paths = Paths::new(decisions, &nodes);
    let start = paths.follow((root, Answers::default()));
    let Some(order) = paths.explore(start, (nodes.len() * PATHS_PER_NODE).min(PATHS_MAX)) else {
        return root;
    };
    let mut made: HashMap<Place, NodeId> = HashMap::with_capacity(order.len());
    for (place, condition, yes, no) in order {
        let find = |place: Place| made.get(&place).copied().unwrap_or(place.0);
        let node = decisions.decide(condition, find(yes), find(no));
        made.insert(place, node);
    }
    made.get(&start).copied().unwrap_or(start.0)
}

struct Paths<'a> {
    decisions: &'a Decisions,
    /// The bit of each tracked question, and the answers that no and yes imply.
    tracked: HashMap<ConditionId, (u64, [Answers; 2])>,
    /// The tracked questions at or behind a node.
    behind: HashMap<NodeId, u64>,
    /// Where walks over many decided questions end: many paths begin the same one.
    long_walks: RefCell<HashMap<Place, Place>>,
}

impl<'a> Paths<'a> {
    /// `nodes` are the nodes of the filter, successors first.
    fn new(decisions: &'a Decisions, nodes: &[NodeId]) -> Self {
        let mut times: HashMap<ConditionId, usize> = HashMap::new();
        for node in nodes {
            *times.entry(decisions.node(*node).condition).or_default() += 1;
        }
        let mut often: Vec<(ConditionId, usize)> =
            times.into_iter().filter(|(_, times)| *times > 1).collect();
        often.sort_unstable_by_key(|&(condition, times)| (std::cmp::Reverse(times), condition));
        often.truncate(TRACKED_MAX);
        let follows = |known: ConditionId, answer| {
            let mut answers = Answers::default();
            for (bit, (other, _)) in often.iter().enumerate() {
                if decisions.subject(*other) == decisions.subject(known) {
                    let implied = decisions
                        .condition(known)
                        .implies(answer, &decisions.condition(*other));
                    answers.yes |= u64::from(implied == Some(true)) << bit;
                    answers.no |= u64::from(implied == Some(false)) << bit;
                }
            }
            answers
        };
        let tracked: HashMap<_, _> = often
            .iter()
            .enumerate()
            .map(|(bit, &(condition, _))| {
                let answers = [follows(condition, false), follows(condition, true)];
                (condition, (1 << bit, answers))
            })
            .collect();
        let mut behind: HashMap<NodeId, u64> = HashMap::with_capacity(nodes.len());
        for node in nodes {
            let decision = decisions.node(*node);
            let own = tracked.get(&decision.condition).map_or(0, |(bit, _)| *bit);
            let later = |next| behind.get(&next).copied().unwrap_or(0);
            let all = own | later(decision.yes) | later(decision.no);
            behind.insert(*node, all);
        }
        Self {
            decisions,
            tracked,
            behind,
            long_walks: RefCell::default(),
        }
    }

    /// Moves to the first undecided question, and drops the answers that no later question needs.
    fn follow(&self, from: Place) -> Place {
        let mut place = self.without_needless(from);
        let mut steps = 0;
        while let Some(next) = self.decided(place) {
            if steps == LONG_WALK
                && let Some(end) = self.long_walks.borrow().get(&from)
            {
                return *end;
            }
            place = self.without_needless((next, place.1));
            steps += 1;
        }
        if steps > LONG_WALK {
            self.long_walks.borrow_mut().insert(from, place);
        }
        place
    }

    fn without_needless(&self, (node, answers): Place) -> Place {
        let behind = self.behind.get(&node).copied().unwrap_or(0);
        let needed = Answers {
            yes: answers.yes & behind,
            no: answers.no & behind,
        };
        (node, needed)
    }

    /// The next node, where the answer is known.
    fn decided(&self, (node, answers): Place) -> Option<NodeId> {
        if node.is_terminal() {
            return None;
        }
        let decision = self.decisions.node(node);
        let (bit, _) = self.tracked.get(&decision.condition)?;
        answers.of(*bit).map(|answer| match answer {
            true => decision.yes,
            false => decision.no,
        })
    }

    /// All reachable places, each with its question and the places that the answers lead to, later ones
    /// first. `None` if more than `limit`.
    fn explore(
        &self,
        start: Place,
        limit: usize,
    ) -> Option<Vec<(Place, ConditionId, Place, Place)>> {
        let mut order = Vec::new();
        let mut done: HashSet<Place> = HashSet::new();
        let mut open = vec![start];
        while let Some(&place) = open.last() {
            if place.0.is_terminal() || done.contains(&place) {
                open.pop();
                continue;
            }
            let (node, answers) = place;
            let decision = self.decisions.node(node);
            let follows = self.tracked.get(&decision.condition);
            let go = |next, answer: bool| {
                let new = follows.map_or(Answers::default(), |(_, by)| by[usize::from(answer)]);
                self.follow((
                    next,
                    Answers {
                        yes: answers.yes | new.yes,
                        no: answers.no | new.no,
                    },
                ))
            };
            let (yes, no) = (go(decision.yes, true), go(decision.no, false));
            let before = open.len();
            open.extend(
                [yes, no]
                    .into_iter()
                    .filter(|next| !next.0.is_terminal() && !done.contains(next)),
            );
            if open.len() == before {
                order.push((place, decision.condition, yes, no));
                if order.len() > limit {
                    return None;
                }
                done.insert(place);
                open.pop();
            }
        }
        Some(order)
    }
}
