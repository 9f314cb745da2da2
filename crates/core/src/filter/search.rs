//! Replaces a row of comparisons of a value by a binary search.
//!
//! `port 1000 or port 1001 or ...` compares source and destination port with each number in turn.
//! If "yes" always leads to the same node, the comparisons can be grouped by value, with a search
//! tree over the numbers of each. Consecutive numbers become a range. This saves time for each
//! packet, and keeps the program within the verifier's limit of 8,192 open jumps: each comparison
//! of a row is one.

use std::collections::{HashMap, HashSet};

use super::classic::Relation;
use super::condition::{Condition, Simplified};
use super::decision::{Decisions, NodeId};
use super::value::ValueId;

/// Minimum length of a row that becomes a search.
const ROW_MIN: usize = 8;

/// First and last of consecutive numbers.
type Range = (u32, u32);

/// Replaces the rows of a filter by searches; returns the new root.
pub fn search(decisions: &mut Decisions, root: NodeId) -> NodeId {
    let nodes = decisions.reachable(root);
    let inner = inner_nodes(decisions, &nodes);
    let mut replacements: HashMap<NodeId, NodeId> = HashMap::with_capacity(nodes.len());
    for node in nodes {
        let decision = decisions.node(node);
        let (row, after_row) = match inner.contains(&node) {
            // This node is needed only if the row around it is too short for a search.
            true => (Vec::new(), decision.no),
            false => row(decisions, node, &inner),
        };
        let replaced = |next: NodeId| replacements.get(&next).copied().unwrap_or(next);
        let yes = replaced(decision.yes);
        let new = if row.len() < ROW_MIN {
            decisions.decide(decision.condition, yes, replaced(decision.no))
        } else {
            let mut numbers: Vec<(ValueId, Vec<u32>)> = Vec::new();
            for (value, number) in row {
                match numbers.iter_mut().find(|(known, _)| *known == value) {
                    Some((_, numbers)) => numbers.push(number),
                    None => numbers.push((value, vec![number])),
                }
            }
            // Values are in order of first use, so that a guard (a divisor is not 0) stays before its value.
            numbers
                .into_iter()
                .rev()
                .fold(replaced(after_row), |no, (value, numbers)| {
                    tree(decisions, value, &ranges(numbers), yes, no)
                })
        };
        replacements.insert(node, new);
    }
    replacements.get(&root).copied().unwrap_or(root)
}

/// The value and the number that a node compares; `None` for a question of another kind.
fn comparison(decisions: &Decisions, node: NodeId) -> Option<(ValueId, u32)> {
    match decisions.condition(decisions.node(node).condition) {
        Condition::Holds {
            relation: Relation::Equal,
            value,
            constant,
        } => Some((value, constant)),
        _ => None,
    }
}

/// The next node of a row, which is another comparison with the same "yes".
fn next_in_row(decisions: &Decisions, node: NodeId) -> Option<NodeId> {
    comparison(decisions, node)?;
    let decision = decisions.node(node);
    let next = decision.no;
    let goes_on = !next.is_terminal()
        && comparison(decisions, next).is_some()
        && decisions.node(next).yes == decision.yes;
    goes_on.then_some(next)
}

/// Nodes that are reached only from the node before them in their row.
fn inner_nodes(decisions: &Decisions, nodes: &[NodeId]) -> HashSet<NodeId> {
    let mut edges: HashMap<NodeId, usize> = HashMap::new();
    let mut inner = HashSet::new();
    for node in nodes {
        let decision = decisions.node(*node);
        for next in [decision.yes, decision.no] {
            *edges.entry(next).or_default() += 1;
        }
        inner.extend(next_in_row(decisions, *node));
    }
    inner.retain(|node| edges.get(node) == Some(&1));
    inner
}

/// The comparisons of the row that starts at a node, and the node after the row.
fn row(
    decisions: &Decisions,
    start: NodeId,
    inner: &HashSet<NodeId>,
) -> (Vec<(ValueId, u32)>, NodeId) {
    let mut row = Vec::new();
    let mut at = start;
    loop {
        row.extend(comparison(decisions, at));
        match next_in_row(decisions, at).filter(|next| inner.contains(next)) {
            Some(next) => at = next,
            None => return (row, decisions.node(at).no),
        }
    }
}

fn ranges(mut numbers: Vec<u32>) -> Vec<Range> {
    numbers.sort_unstable();
    let mut ranges: Vec<Range> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if number <= last.saturating_add(1) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges
}

/// The search tree that leads to `yes` if a value is in one of the sorted ranges, else to `no`.
fn tree(
    decisions: &mut Decisions,
    value: ValueId,
    ranges: &[Range],
    yes: NodeId,
    no: NodeId,
) -> NodeId {
    match *ranges {
        [] => no,
        [(first, last)] if first == last => {
            compare(decisions, Relation::Equal, value, first, yes, no)
        }
        [(first, last)] => {
            let above = compare(decisions, Relation::Greater, value, last, no, yes);
            compare(decisions, Relation::GreaterOrEqual, value, first, above, no)
        }
        _ => {
            let (low, high) = ranges.split_at(ranges.len() / 2);
            let above = tree(decisions, value, high, yes, no);
            let below = tree(decisions, value, low, yes, no);
            let from = high[0].0;
            compare(
                decisions,
                Relation::GreaterOrEqual,
                value,
                from,
                above,
                below,
            )
        }
    }
}

fn compare(
    decisions: &mut Decisions,
    relation: Relation,
    value: ValueId,
    number: u32,
    yes: NodeId,
    no: NodeId,
) -> NodeId {
    let constant = decisions.values.constant(number);
    match Condition::compare(&decisions.values, relation, value, constant) {
        Simplified::Known(true) => yes,
        Simplified::Known(false) => no,
        Simplified::Question {
            condition,
            opposite,
        } => {
            let condition = decisions.condition_id(condition);
            let (yes, no) = if opposite { (no, yes) } else { (yes, no) };
            decisions.decide(condition, yes, no)
        }
    }
}
