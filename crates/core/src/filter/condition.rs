//! Questions about a frame, and the answers that one answer implies.

use super::classic::Relation;
use super::value::{Value, ValueId, Values};

/// A yes-or-no question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// A packet socket shows the frame's outer VLAN tag beside it.
    TagIsBeside,
    /// The frame has at least this many bytes: guards loads at constant offsets.
    Reaches { end: u32 },
    /// The frame has at least `index + end` bytes, summed without wrapping: guards indexed loads.
    ReachesIndexed {
        /// The part that depends on the frame.
        index: ValueId,
        end: u64,
    },
    /// A value has a relation to a constant.
    Holds {
        /// The question; never "greater or equal".
        relation: Relation,
        value: ValueId,
        constant: u32,
    },
    /// A value has a relation to another one.
    Compares {
        /// The question; never "greater or equal".
        relation: Relation,
        left: ValueId,
        right: ValueId,
    },
}

/// What a condition is about. Only conditions on the same subject can imply each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// First, because it decides what all other questions of a filter are.
    Tag,
    Length,
    /// The length of the frame from an index.
    Behind(ValueId),
    Value(ValueId),
    Pair(ValueId, ValueId),
}

/// The result of building a condition: a known answer, or a question and whether its answer is negated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simplified {
    /// The answer does not depend on the frame.
    Known(bool),
    /// The answer is that of the condition, or its opposite.
    Question {
        condition: Condition,
        opposite: bool,
    },
}

impl Simplified {
    const fn question(condition: Condition, opposite: bool) -> Self {
        Self::Question {
            condition,
            opposite,
        }
    }
}

impl Condition {
    /// Brings a comparison into canonical form, so that equal questions of several filters are identical.
    pub fn compare(
        values: &Values,
        relation: Relation,
        left: ValueId,
        right: ValueId,
    ) -> Simplified {
        match (values.as_constant(left), values.as_constant(right)) {
            (Some(left), Some(right)) => Simplified::Known(relation.holds(left, right)),
            (None, Some(constant)) => Self::compare_constant(values, relation, left, constant),
            (Some(constant), None) => match relation {
                Relation::Equal | Relation::AnyBit => {
                    Self::compare_constant(values, relation, right, constant)
                }
                Relation::Greater | Relation::GreaterOrEqual => {
                    // constant > value: not value >= constant.
                    let relation = match relation {
                        Relation::Greater => Relation::GreaterOrEqual,
                        _ => Relation::Greater,
                    };
                    opposite(Self::compare_constant(values, relation, right, constant))
                }
            },
            (None, None) => {
                let (relation, left, right, opposite) = match relation {
                    Relation::Equal | Relation::AnyBit => {
                        (relation, left.min(right), left.max(right), false)
                    }
                    Relation::Greater => (relation, left, right, false),
                    Relation::GreaterOrEqual => (Relation::Greater, right, left, true),
                };
                if left == right {
                    match relation {
                        Relation::Equal => return Simplified::Known(true),
                        Relation::AnyBit => {
                            let zero = Self::compare_constant(values, Relation::Equal, left, 0);
                            return self::opposite(zero);
                        }
                        _ => return Simplified::Known(opposite),
                    }
                }
                let condition = Self::Compares {
                    relation,
                    left,
                    right,
                };
                Simplified::question(condition, opposite)
            }
        }
    }

    fn compare_constant(
        values: &Values,
        relation: Relation,
        value: ValueId,
        constant: u32,
    ) -> Simplified {
        let maximum = values.maximum(value);
        let (relation, constant) = match relation {
            Relation::GreaterOrEqual => match constant.checked_sub(1) {
                None => return Simplified::Known(true),
                Some(below) => (Relation::Greater, below),
            },
            _ => (relation, constant),
        };
        let never = match relation {
            Relation::Equal => constant > maximum,
            Relation::AnyBit => constant == 0,
            _ => constant >= maximum,
        };
        if never {
            return Simplified::Known(false);
        }
        let (relation, constant, opposite) = match (relation, constant) {
            // Any of all bits: not 0.
            (Relation::AnyBit, u32::MAX) | (Relation::Greater, 0) => (Relation::Equal, 0, true),
            _ => (relation, constant, false),
        };
        let condition = Self::Holds {
            relation,
            value,
            constant,
        };
        Simplified::question(condition, opposite)
    }

    pub fn subject(&self, values: &Values) -> Subject {
        match *self {
            Self::TagIsBeside => Subject::Tag,
            Self::Reaches { .. } => Subject::Length,
            Self::ReachesIndexed { index, .. } => Subject::Behind(index),
            Self::Holds { value, .. } if values.get(value) == Value::Length => Subject::Length,
            Self::Holds { value, .. } => Subject::Value(value),
            Self::Compares { left, right, .. } => Subject::Pair(left, right),
        }
    }

    /// The answer to `other` that `answer` to this condition implies, if any.
    ///
    /// Both must have the same [`Subject`].
    pub fn implies(&self, answer: bool, other: &Self) -> Option<bool> {
        match (*self, *other) {
            (Self::ReachesIndexed { end: known, .. }, Self::ReachesIndexed { end, .. }) => {
                (if answer { end <= known } else { end >= known }).then_some(answer)
            }
            (Self::TagIsBeside, Self::TagIsBeside) => Some(answer),
            (Self::Compares { .. }, Self::Compares { .. }) => (self == other).then_some(answer),
            _ => Numbers::of(self, answer)?.decide(other),
        }
    }

    /// The answer for a frame; `None` when the frame lacks a value of the condition.
    pub fn evaluate(
        &self,
        values: &Values,
        frame: &[u8],
        known: &mut super::value::Known,
    ) -> Option<bool> {
        let length = frame.len() as u64;
        Some(match *self {
            Self::TagIsBeside => known.tag_is_beside,
            Self::Reaches { end } => length >= u64::from(end),
            Self::ReachesIndexed { index, end } => {
                u64::from(values.evaluate(index, frame, known)?) + end <= length
            }
            Self::Holds {
                relation,
                value,
                constant,
            } => relation.holds(values.evaluate(value, frame, known)?, constant),
            Self::Compares {
                relation,
                left,
                right,
            } => {
                let left = values.evaluate(left, frame, known)?;
                relation.holds(left, values.evaluate(right, frame, known)?)
            }
        })
    }
}

fn opposite(asked: Simplified) -> Simplified {
    match asked {
        Simplified::Known(answer) => Simplified::Known(!answer),
        Simplified::Question {
            condition,
            opposite,
        } => Simplified::question(condition, !opposite),
    }
}

/// The numbers that a subject can be after an answer.
#[derive(Clone, Copy, Debug)]
enum Numbers {
    Range(u32, u32),
    AllBut(u32),
    /// Numbers with at least one of these bits.
    WithBit(u32),
    /// Numbers with none of these bits.
    WithoutBits(u32),
}

impl Numbers {
    /// The numbers for which a condition has an answer; `None` for the empty set.
    fn of(condition: &Condition, answer: bool) -> Option<Self> {
        let (relation, constant) = question(condition)?;
        Some(match (relation, answer) {
            (Relation::Equal, true) => Self::Range(constant, constant),
            (Relation::Equal, false) => Self::AllBut(constant),
            (Relation::Greater, true) => Self::Range(constant.checked_add(1)?, u32::MAX),
            (Relation::Greater, false) => Self::Range(0, constant),
            (Relation::GreaterOrEqual, true) => Self::Range(constant, u32::MAX),
            (Relation::GreaterOrEqual, false) => Self::Range(0, constant.checked_sub(1)?),
            (Relation::AnyBit, true) => Self::WithBit(constant),
            (Relation::AnyBit, false) => Self::WithoutBits(constant),
        })
    }

    /// The common answer for all of these numbers, if they have one.
    fn decide(self, condition: &Condition) -> Option<bool> {
        let (relation, constant) = question(condition)?;
        match (self, relation) {
            (Self::Range(first, last), _) if first == last => Some(relation.holds(first, constant)),
            (Self::Range(first, last), Relation::Equal) => {
                (constant < first || constant > last).then_some(false)
            }
            (Self::Range(first, last), Relation::Greater | Relation::GreaterOrEqual) => {
                let (low, high) = (
                    relation.holds(first, constant),
                    relation.holds(last, constant),
                );
                (low == high).then_some(low)
            }
            (Self::AllBut(number), Relation::Equal) => (number == constant).then_some(false),
            (Self::WithBit(bits), Relation::Equal) => (bits & constant == 0).then_some(false),
            (Self::WithBit(bits), Relation::AnyBit) => (bits & !constant == 0).then_some(true),
            (Self::WithoutBits(bits), Relation::Equal) => (bits & constant != 0).then_some(false),
            (Self::WithoutBits(bits), Relation::AnyBit) => (constant & !bits == 0).then_some(false),
            _ => None,
        }
    }
}

/// A condition on one number as relation and constant.
fn question(condition: &Condition) -> Option<(Relation, u32)> {
    match *condition {
        Condition::Reaches { end } => Some((Relation::GreaterOrEqual, end)),
        Condition::Holds {
            relation, constant, ..
        } => Some((relation, constant)),
        _ => None,
    }
}
