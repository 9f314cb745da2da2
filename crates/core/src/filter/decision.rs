//! Filters as decision diagrams: each node asks one question, and the terminals accept or reject.

use std::collections::HashMap;

use super::condition::{Condition, Subject};
use super::value::Values;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConditionId(u32);

/// Number of a node in its [`Decisions`]. It is greater than the numbers of its successors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);

impl NodeId {
    /// The filter rejects the frame.
    pub const REJECT: Self = Self(0);
    /// The filter accepts the frame.
    pub const ACCEPT: Self = Self(1);

    /// Whether the filter has accepted or rejected.
    pub const fn is_terminal(self) -> bool {
        self.0 < 2
    }
}

/// One question and the successor for each answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    pub condition: ConditionId,
    pub yes: NodeId,
    pub no: NodeId,
}

/// All questions and nodes of a set of filters, without duplicates.
#[derive(Clone, Debug, Default)]
pub struct Decisions {
    pub values: Values,
    conditions: Vec<(Condition, Subject)>,
    condition_numbers: HashMap<Condition, ConditionId>,
    nodes: Vec<Decision>,
    /// The subjects of the questions at and behind each node. Several subjects share a bit.
    subjects_behind: Vec<u64>,
    node_numbers: HashMap<Decision, NodeId>,
    restrictions: HashMap<(NodeId, ConditionId, bool), NodeId>,
    /// Nodes visited in restrictions, as a measure of the work.
    visits: u64,
}

impl Decisions {
    pub fn condition_id(&mut self, condition: Condition) -> ConditionId {
        let subject = condition.subject(&self.values);
        *self.condition_numbers.entry(condition).or_insert_with(|| {
            let id = ConditionId(
                u32::try_from(self.conditions.len()).expect("fewer than 2^32 conditions"),
            );
            self.conditions.push((condition, subject));
            id
        })
    }

    pub fn condition(&self, id: ConditionId) -> Condition {
        self.conditions[id.0 as usize].0
    }

    pub fn subject(&self, id: ConditionId) -> Subject {
        self.conditions[id.0 as usize].1
    }

    /// The node with this number, which is no terminal.
    pub fn node(&self, id: NodeId) -> Decision {
        self.nodes[id.0 as usize - 2]
    }

    /// The node that asks `condition`; if both answers lead to the same node, that node.
    pub fn decide(&mut self, condition: ConditionId, yes: NodeId, no: NodeId) -> NodeId {
        if yes == no {
            return yes;
        }
        let decision = Decision { condition, yes, no };
        if let Some(id) = self.node_numbers.get(&decision) {
            return *id;
        }
        let id = NodeId(u32::try_from(self.nodes.len() + 2).expect("fewer than 2^32 nodes"));
        self.nodes.push(decision);
        self.subjects_behind.push(
            self.subjects_behind(yes)
                | self.subjects_behind(no)
                | subject_bit(self.subject(condition)),
        );
        self.node_numbers.insert(decision, id);
        id
    }

    fn subjects_behind(&self, id: NodeId) -> u64 {
        if id.is_terminal() {
            0
        } else {
            self.subjects_behind[id.0 as usize - 2]
        }
    }

    pub fn visits(&self) -> u64 {
        self.visits
    }

    /// Number of nodes, for [`Decisions::forget`].
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Frees the memory of a merge: drops all restrictions and all nodes but the first `nodes`. Conditions
    /// stay.
    pub fn forget(&mut self, nodes: usize) {
        for decision in self.nodes.drain(nodes..) {
            self.node_numbers.remove(&decision);
        }
        self.subjects_behind.truncate(nodes);
        self.restrictions = HashMap::new();
        self.nodes.shrink_to_fit();
        self.subjects_behind.shrink_to_fit();
        self.node_numbers.shrink_to_fit();
    }

    /// All nodes reachable from `root`, without the terminals, successors first.
    pub fn reachable(&self, root: NodeId) -> Vec<NodeId> {
        self.reachable_with(root, |_| true)
    }

    fn reachable_with(&self, root: NodeId, is_included: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        let mut found = Vec::new();
        let mut seen = std::collections::HashSet::new();
        let mut open = vec![root];
        while let Some(id) = open.pop() {
            if id.is_terminal() || !is_included(id) || !seen.insert(id) {
                continue;
            }
            found.push(id);
            let decision = self.node(id);
            open.extend([decision.yes, decision.no]);
        }
        found.sort_unstable();
        found
    }

    /// The filter at `root`, given `answer` to `condition`, without the questions that this decides.
    pub fn restrict(&mut self, root: NodeId, condition: ConditionId, answer: bool) -> NodeId {
        let bit = subject_bit(self.subject(condition));
        if self.subjects_behind(root) & bit == 0 {
            return root;
        }
        if let Some(left) = self.restrictions.get(&(root, condition, answer)) {
            return *left;
        }
        let asked = self.condition(condition);
        let subject = self.subject(condition);
        let concerned = self.reachable_with(root, |id| {
            self.subjects_behind(id) & bit != 0
                && !self.restrictions.contains_key(&(id, condition, answer))
        });
        self.visits += concerned.len() as u64;
        for id in concerned {
            let decision = self.node(id);
            let implied = (self.subject(decision.condition) == subject)
                .then(|| asked.implies(answer, &self.condition(decision.condition)))
                .flatten();
            let left = |node: NodeId| {
                self.restrictions
                    .get(&(node, condition, answer))
                    .copied()
                    .unwrap_or(node)
            };
            let (yes, no) = (left(decision.yes), left(decision.no));
            let restricted = match implied {
                Some(true) => yes,
                Some(false) => no,
                None => self.decide(decision.condition, yes, no),
            };
            self.restrictions
                .insert((id, condition, answer), restricted);
        }
        self.restrictions[&(root, condition, answer)]
    }
}

/// The bit of a subject; several subjects share one.
fn subject_bit(subject: Subject) -> u64 {
    let number = match subject {
        Subject::Length => 0,
        Subject::Tag => 1,
        Subject::Behind(value) => 2 * value.index() + 1,
        Subject::Value(value) => 2 * value.index() + 2,
        Subject::Pair(left, right) => left.index() * 31 + right.index() * 7 + 3,
    };
    1 << (number % 64)
}
