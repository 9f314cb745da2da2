//! Questions and the paths between them.

use super::program::{LENGTH, SUBSCRIBERS};
use super::{Emitter, Hook, OFFSET_MAX, View};
use crate::filter::FilterError;
use crate::filter::classic::Relation;
use crate::filter::condition::Condition;
use crate::filter::ebpf::Register::{R0, R1, R2, R9};
use crate::filter::ebpf::{Alu, Bits, Instruction, Label, Operand, Size, Test};
use crate::filter::stage::{Edge, Stage};
use crate::filter::value::ValueId;

/// XDP's helper reads no further into a frame, in bytes.
const XDP_REACH_MAX: u64 = 0xffff;
/// No packet of the stack is longer, in bytes, and the verifier takes no larger offset (`BPF_MAX_VAR_OFF`).
const SKB_REACH_MAX: u64 = (1 << 29) - 1;

/// Facts that hold on the path to a question.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// The value in r1.
    pub held: Option<ValueId>,
    /// The index whose place in the frame r5 points at, and how far from there the frame is
    /// certain to reach, in bytes.
    pub anchor: Option<(ValueId, u64)>,
    /// How far the frame is certain to reach, in bytes.
    pub reach: u32,
}

impl Known {
    /// Whether r5 points at an index, and the frame reaches to `end` from there.
    pub(super) fn reaches(&self, index: ValueId, end: u64) -> bool {
        self.anchor
            .is_some_and(|(at, reach)| at == index && reach >= end)
    }

    /// The facts that hold on both paths to a question.
    fn meet(self, other: Self) -> Self {
        Self {
            held: None,
            anchor: None,
            reach: self.reach.min(other.reach),
        }
    }
}

/// A test of r1, which holds for the answer "yes".
struct Split {
    bits: Bits,
    test: Test,
    operand: Operand,
}

/// The questions of a stage while they are emitted.
struct Rows {
    labels: Vec<Label>,
    /// Number of paths that lead to each question.
    paths: Vec<usize>,
    known: Vec<Option<Known>>,
    done: Label,
    known_when_done: Option<Known>,
    /// Edges that make filters accept, and are jumped to.
    accepting: Vec<(Label, Edge)>,
}

impl Rows {
    fn arrive(&mut self, edge: Edge, known: Known) {
        let Some(to) = edge.to else {
            self.known_when_done = Some(
                self.known_when_done
                    .map_or(known, |other| other.meet(known)),
            );
            return;
        };
        self.known[to] = Some(match self.known[to] {
            None if self.paths[to] == 1 => known,
            None => known.meet(known),
            Some(other) => other.meet(known),
        });
    }

    fn label(&self, edge: Edge) -> Label {
        edge.to.map_or(self.done, |to| self.labels[to])
    }
}

impl Emitter<'_> {
    /// Emits all questions for one view of frames; `false` if no frame reaches the end through it.
    pub(super) fn questions(&mut self, view: View) -> Result<bool, FilterError> {
        let filter = self.filter;
        let mut known = Some(Known::default());
        for stage in &filter.stages {
            let Some(start) = known else { return Ok(false) };
            let start = start.meet(start);
            known = self.stage(stage, view, start)?;
        }
        Ok(known.is_some())
    }

    fn stage(
        &mut self,
        stage: &Stage,
        view: View,
        start: Known,
    ) -> Result<Option<Known>, FilterError> {
        let mut rows = self.rows(stage, view);
        rows.arrive(stage.entry, start);
        self.fall_through(&rows, stage.entry, stage.entry.to);
        for at in 0..stage.questions.len() {
            // Only frames that are read through another view get here.
            let Some(known) = rows.known[at] else {
                continue;
            };
            self.assembler.place(rows.labels[at]);
            self.slots.clear();
            self.question(stage, at, view, known, &mut rows)?;
        }
        for (label, edge) in std::mem::take(&mut rows.accepting) {
            self.assembler.place(label);
            self.fall_through(&rows, edge, None);
            if edge.to.is_none() {
                self.assembler.jump(rows.done);
            }
        }
        self.assembler.place(rows.done);
        Ok(rows.known_when_done)
    }

    fn rows(&mut self, stage: &Stage, view: View) -> Rows {
        let mut paths = vec![0; stage.questions.len()];
        let mut count = |edge: Edge| {
            if let Some(to) = edge.to {
                paths[to] += 1;
            }
        };
        count(stage.entry);
        for question in &stage.questions {
            let condition = self.decisions.condition(question.condition);
            let guards = matches!(
                condition,
                Condition::Reaches { .. } | Condition::ReachesIndexed { .. }
            );
            match self.known_answer(condition, view) {
                Some(true) => count(question.yes),
                Some(false) => count(question.no),
                // A read in place that fails is repeated in a copy.
                None if guards && view != View::Copied => count(question.yes),
                None => {
                    count(question.yes);
                    count(question.no);
                }
            }
        }
        Rows {
            labels: paths.iter().map(|_| self.assembler.label()).collect(),
            known: vec![None; paths.len()],
            paths,
            done: self.assembler.label(),
            known_when_done: None,
            accepting: Vec::new(),
        }
    }

    fn question(
        &mut self,
        stage: &Stage,
        at: usize,
        view: View,
        mut known: Known,
        rows: &mut Rows,
    ) -> Result<(), FilterError> {
        let question = stage.questions[at];
        let condition = self.decisions.condition(question.condition);
        if view != View::Copied && !self.can_be_asked_in_place(condition, view) {
            self.assembler.jump(self.copied);
            return Ok(());
        }
        let mut go = |emitter: &mut Self, edge: Edge, known| {
            rows.arrive(edge, known);
            let next = next(rows, at);
            emitter.go(rows, edge, next);
        };
        if let Some(answer) = self.known_answer(condition, view) {
            go(self, if answer { question.yes } else { question.no }, known);
            return Ok(());
        }
        let split = match (condition, view) {
            (Condition::TagIsBeside, _) => {
                self.ask_tag(view, &mut known);
                Split {
                    bits: Bits::B32,
                    test: Test::NotEqual,
                    operand: 0.into(),
                }
            }
            (Condition::Reaches { end }, View::Plain | View::Tagged) => {
                self.reach(end, view, &mut known);
                go(self, question.yes, known);
                return Ok(());
            }
            (Condition::ReachesIndexed { index, end }, View::Plain | View::Tagged) => {
                self.anchor(index, end, view, &mut known)?;
                go(self, question.yes, known);
                return Ok(());
            }
            (Condition::Reaches { end }, View::Copied) => {
                self.put(Instruction::load(Size::Word, R1, R9, LENGTH));
                known.held = None;
                Split {
                    bits: Bits::B64,
                    test: Test::GreaterOrEqual,
                    operand: (end as i32).into(),
                }
            }
            (Condition::ReachesIndexed { index, end }, View::Copied) => {
                self.put_value(index, view, &mut known)?;
                self.alu64(Alu::Add, R1, end as i32);
                known.held = None;
                self.put(Instruction::load(Size::Word, R2, R9, LENGTH));
                if let Hook::Xdp { .. } = self.target.hook {
                    let short = self.assembler.label();
                    let most = XDP_REACH_MAX as i32;
                    self.branch(Bits::B64, Test::LessOrEqual, R2, most, short);
                    self.alu64(Alu::Move, R2, most);
                    self.assembler.place(short);
                }
                Split {
                    bits: Bits::B64,
                    test: Test::LessOrEqual,
                    operand: R2.into(),
                }
            }
            (
                Condition::Holds {
                    relation,
                    value,
                    constant,
                },
                _,
            ) => {
                self.put_value(value, view, &mut known)?;
                Split {
                    bits: Bits::B32,
                    test: test(relation),
                    operand: (constant as i32).into(),
                }
            }
            (
                Condition::Compares {
                    relation,
                    left,
                    right,
                },
                _,
            ) => {
                self.put_operands(left, right, view, &mut known)?;
                known.held = Some(left);
                Split {
                    bits: Bits::B32,
                    test: test(relation),
                    operand: R2.into(),
                }
            }
        };
        rows.arrive(question.yes, known);
        rows.arrive(question.no, known);
        self.split(&split, question.yes, question.no, next(rows, at), rows);
        Ok(())
    }

    /// Jumps to one answer and continues with the other, so that the next question needs no jump.
    fn split(&mut self, split: &Split, yes: Edge, no: Edge, next: Option<usize>, rows: &mut Rows) {
        let (test, jumped, other) = match split.test.opposite() {
            Some(opposite) if yes.to == next && no.to != next => (opposite, no, yes),
            _ => (split.test, yes, no),
        };
        let label = if jumped.accepts == 0 {
            rows.label(jumped)
        } else {
            let label = self.assembler.label();
            rows.accepting.push((label, jumped));
            label
        };
        self.branch(split.bits, test, R1, split.operand, label);
        self.go(rows, other, next);
    }

    /// Follows an edge; `next` is the question that is emitted next.
    fn go(&mut self, rows: &Rows, edge: Edge, next: Option<usize>) {
        self.fall_through(rows, edge, next);
        if edge.to.is_none() {
            self.assembler.jump(rows.done);
        }
    }

    /// Sets the accepting subscribers, and jumps unless the edge leads to the next question.
    fn fall_through(&mut self, rows: &Rows, edge: Edge, next: Option<usize>) {
        if edge.accepts != 0 {
            self.put(Instruction::load(Size::Double, R0, R9, SUBSCRIBERS));
            let mask = self.mask(edge.accepts);
            self.alu64(Alu::Or, R0, mask);
            self.put(Instruction::store(Size::Double, R9, SUBSCRIBERS, R0));
        }
        if edge.to.is_some() && edge.to != next {
            self.assembler.jump(rows.label(edge));
        }
    }

    /// The answer that all frames of a view have, if they have one.
    fn known_answer(&self, condition: Condition, view: View) -> Option<bool> {
        match (condition, view) {
            (Condition::TagIsBeside, _) => self.tag_answer(view),
            (Condition::Reaches { end }, View::Copied) if u64::from(end) > self.reach_max() => {
                Some(false)
            }
            (Condition::ReachesIndexed { end, .. }, View::Copied) if end > self.reach_max() => {
                Some(false)
            }
            _ => None,
        }
    }

    /// How far into a copied frame bytes can be read.
    fn reach_max(&self) -> u64 {
        match self.target.hook {
            Hook::Xdp { .. } => XDP_REACH_MAX,
            Hook::SchedCls => SKB_REACH_MAX,
        }
    }

    fn can_be_asked_in_place(&self, condition: Condition, view: View) -> bool {
        let guards = match condition {
            Condition::Reaches { end } => u64::from(end) <= OFFSET_MAX,
            Condition::ReachesIndexed { end, .. } => {
                end <= OFFSET_MAX && (view == View::Plain || end >= u64::from(super::TAG_END))
            }
            _ => true,
        };
        guards
            && self
                .values_of(condition)
                .all(|value| Self::lies_in_place(value, view))
    }
}

/// The question that is emitted next: the first later one to which a path leads.
fn next(rows: &Rows, at: usize) -> Option<usize> {
    (at + 1..rows.known.len()).find(|to| rows.known[*to].is_some())
}

const fn test(relation: Relation) -> Test {
    match relation {
        Relation::Equal => Test::Equal,
        Relation::Greater => Test::Greater,
        Relation::GreaterOrEqual => Test::GreaterOrEqual,
        Relation::AnyBit => Test::AnyBit,
    }
}
