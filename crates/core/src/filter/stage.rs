//! A stage: one decision diagram for several filters.
//!
//! Filters that ask the same question continue together; if an answer decides what another filter would ask
//! later, that question is removed. A state of the stage is what remains of each filter, its residue, so
//! paths with equal residues join.

use std::collections::{BTreeMap, HashMap};

use super::condition::Subject;
use super::decision::{ConditionId, Decisions, NodeId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Edge {
    /// Subscribers whose filters accept with this answer, as bits.
    pub accepts: u64,
    /// The next question; `None` when the stage is done.
    pub to: Option<usize>,
}

/// One question for all filters that have yet to ask it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    pub condition: ConditionId,
    pub yes: Edge,
    pub no: Edge,
}

/// A graph of questions in topological order.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The edge to the first question, with the subscribers that accept without one.
    pub entry: Edge,
    pub questions: Vec<Question>,
}

/// The residues of the undecided filters: node and subscribers, in order of nodes.
type Residue = Vec<(NodeId, u64)>;

/// Limits of a stage; beyond them, its filters are split over two stages.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pub questions: usize,
    /// Maximum number of nodes to visit.
    pub visits: u64,
}

/// The rank of each subject: the number of questions before it, in the filter with the fewest. The stage asks about the
/// lowest rank first.
pub fn ranks(decisions: &Decisions, roots: &[NodeId]) -> HashMap<Subject, usize> {
    let mut ranks = HashMap::new();
    for root in roots {
        let mut depths: HashMap<NodeId, usize> = HashMap::from([(*root, 0)]);
        for id in decisions.reachable(*root).into_iter().rev() {
            let depth = depths[&id];
            let decision = decisions.node(id);
            for next in [decision.yes, decision.no] {
                let deepest = depths.entry(next).or_insert(0);
                *deepest = (*deepest).max(depth + 1);
            }
            let rank = ranks
                .entry(decisions.subject(decision.condition))
                .or_insert(depth);
            *rank = (*rank).min(depth);
        }
    }
    ranks
}

impl Stage {
    /// The stage of one filter: its nodes, as they are.
    pub fn alone(
        decisions: &mut Decisions,
        ranks: &HashMap<Subject, usize>,
        filter: (NodeId, u64),
    ) -> Self {
        let mut product = Product::new(decisions, ranks);
        let entry = product.edge([filter].into_iter());
        let mut questions = Vec::new();
        while let Some(residue) = product.residues.get(questions.len()).cloned() {
            questions.push(product.ask(&residue));
        }
        Self { entry, questions }.reduced()
    }

    /// Merges filters; `None` if their stage exceeds the budget. Leaves `decisions` unchanged.
    pub fn merge(
        decisions: &mut Decisions,
        ranks: &HashMap<Subject, usize>,
        filters: &[(NodeId, u64)],
        budget: Budget,
    ) -> Option<Self> {
        let nodes = decisions.nodes();
        let last_visit = decisions.visits().saturating_add(budget.visits);
        let mut product = Product::new(decisions, ranks);
        let entry = product.edge(filters.iter().copied());
        let mut questions = Vec::new();
        let mut is_within = true;
        while let Some(residue) = product.residues.get(questions.len()).cloned() {
            is_within =
                questions.len() < budget.questions && product.decisions.visits() <= last_visit;
            if !is_within {
                break;
            }
            questions.push(product.ask(&residue));
        }
        decisions.forget(nodes);
        is_within.then(|| Self { entry, questions }.reduced())
    }

    /// Drops questions whose answer does not matter, joins identical ones, and sorts them topologically.
    fn reduced(self) -> Self {
        let mut reduction = Reduction {
            questions: Vec::new(),
            numbers: HashMap::new(),
            resolved: vec![None; self.questions.len()],
        };
        let mut open: Vec<usize> = self.entry.to.into_iter().collect();
        while let Some(&at) = open.last() {
            if reduction.resolved[at].is_some() {
                open.pop();
                continue;
            }
            let question = self.questions[at];
            let unresolved: Vec<usize> = [question.yes.to, question.no.to]
                .into_iter()
                .flatten()
                .filter(|to| reduction.resolved[*to].is_none())
                .collect();
            if unresolved.is_empty() {
                reduction.resolve(at, question);
                open.pop();
            } else {
                open.extend(unresolved);
            }
        }
        let entry = reduction.follow(self.entry);
        let last = reduction.questions.len().wrapping_sub(1);
        let reversed = |edge: Edge| Edge {
            accepts: edge.accepts,
            to: edge.to.map(|to| last - to),
        };
        Self {
            entry: reversed(entry),
            questions: reduction
                .questions
                .iter()
                .rev()
                .map(|question| Question {
                    condition: question.condition,
                    yes: reversed(question.yes),
                    no: reversed(question.no),
                })
                .collect(),
        }
    }
}

struct Product<'a> {
    decisions: &'a mut Decisions,
    ranks: &'a HashMap<Subject, usize>,
    residues: Vec<Residue>,
    /// Index of each residue.
    numbers: HashMap<Residue, usize>,
}

impl<'a> Product<'a> {
    fn new(decisions: &'a mut Decisions, ranks: &'a HashMap<Subject, usize>) -> Self {
        Self {
            decisions,
            ranks,
            residues: Vec::new(),
            numbers: HashMap::new(),
        }
    }

    /// The edge to what remains of these filters: those that accept are bits of it, those that reject are dropped.
    fn edge(&mut self, filters: impl Iterator<Item = (NodeId, u64)>) -> Edge {
        let mut accepts = 0;
        let mut undecided: BTreeMap<NodeId, u64> = BTreeMap::new();
        for (node, subscribers) in filters {
            match node {
                NodeId::REJECT => {}
                NodeId::ACCEPT => accepts |= subscribers,
                _ => *undecided.entry(node).or_default() |= subscribers,
            }
        }
        if undecided.is_empty() {
            return Edge { accepts, to: None };
        }
        let residue: Residue = undecided.into_iter().collect();
        let next = self.residues.len();
        let to = *self.numbers.entry(residue).or_insert_with_key(|residue| {
            self.residues.push(residue.clone());
            next
        });
        Edge {
            accepts,
            to: Some(to),
        }
    }

    /// Chooses the next question for these residues, and follows both answers.
    fn ask(&mut self, residue: &Residue) -> Question {
        let decisions = &*self.decisions;
        let condition = residue
            .iter()
            .map(|(node, _)| decisions.node(*node).condition)
            .min_by_key(|condition| {
                let subject = decisions.subject(*condition);
                (self.ranks.get(&subject), subject, *condition)
            })
            .expect("a residue holds at least one filter");
        // A single filter is simplified already; restricting it would only duplicate its shared nodes.
        let (yes, no): (Residue, Residue) = if let [(node, subscribers)] = residue[..] {
            let decision = decisions.node(node);
            (
                vec![(decision.yes, subscribers)],
                vec![(decision.no, subscribers)],
            )
        } else {
            let mut restricted = |answer| {
                residue
                    .iter()
                    .map(|&(node, subscribers)| {
                        (
                            self.decisions.restrict(node, condition, answer),
                            subscribers,
                        )
                    })
                    .collect()
            };
            (restricted(true), restricted(false))
        };
        Question {
            condition,
            yes: self.edge(yes.into_iter()),
            no: self.edge(no.into_iter()),
        }
    }
}

struct Reduction {
    /// Successors first.
    questions: Vec<Question>,
    /// Index of each question.
    numbers: HashMap<Question, usize>,
    /// What replaces each question of the stage.
    resolved: Vec<Option<Edge>>,
}

impl Reduction {
    fn follow(&self, edge: Edge) -> Edge {
        match edge.to {
            None => edge,
            Some(to) => {
                let further = self.resolved[to].expect("what an edge leads to is resolved first");
                Edge {
                    accepts: edge.accepts | further.accepts,
                    to: further.to,
                }
            }
        }
    }

    fn resolve(&mut self, at: usize, question: Question) {
        let question = Question {
            condition: question.condition,
            yes: self.follow(question.yes),
            no: self.follow(question.no),
        };
        self.resolved[at] = Some(if question.yes == question.no {
            question.yes
        } else {
            let next = self.questions.len();
            let to = *self.numbers.entry(question).or_insert_with_key(|question| {
                self.questions.push(*question);
                next
            });
            Edge {
                accepts: 0,
                to: Some(to),
            }
        });
    }
}
