//! Values: arithmetic, registers and stack.

use std::collections::{BTreeMap, BTreeSet};

use super::program::LENGTH;
use super::questions::Known;
use super::{Emitter, View};
use crate::filter::FilterError;
use crate::filter::classic::Arithmetic;
use crate::filter::condition::Condition;
use crate::filter::ebpf::Register::{R1, R2, R9, R10};
use crate::filter::ebpf::{Alu, Bits, Instruction, Size, Test};
use crate::filter::value::{Value, ValueId};

impl Emitter<'_> {
    /// Puts a value into r1.
    pub(super) fn put_value(
        &mut self,
        id: ValueId,
        view: View,
        known: &mut Known,
    ) -> Result<(), FilterError> {
        let mut shared = self.shared([id]);
        self.compute(id, view, known, &mut shared)
    }

    /// Puts one value into r1 and another into r2.
    pub(super) fn put_operands(
        &mut self,
        left: ValueId,
        right: ValueId,
        view: View,
        known: &mut Known,
    ) -> Result<(), FilterError> {
        let mut shared = self.shared([left, right]);
        self.compute_both(left, right, view, known, &mut shared)
    }

    /// All values of a condition, including operands.
    pub(super) fn values_of(&self, condition: Condition) -> impl Iterator<Item = Value> + '_ {
        let roots: Vec<ValueId> = match condition {
            Condition::TagIsBeside | Condition::Reaches { .. } => Vec::new(),
            Condition::ReachesIndexed { index, .. } => vec![index],
            Condition::Holds { value, .. } => vec![value],
            Condition::Compares { left, right, .. } => vec![left, right],
        };
        self.reachable(roots)
            .into_iter()
            .map(|id| self.decisions.values.get(id))
    }

    fn reachable(&self, roots: impl IntoIterator<Item = ValueId>) -> BTreeSet<ValueId> {
        let mut found = BTreeSet::new();
        let mut open: Vec<ValueId> = roots.into_iter().collect();
        while let Some(id) = open.pop() {
            if found.insert(id) {
                open.extend(operands(self.decisions.values.get(id)));
            }
        }
        found
    }

    /// Values that are needed more than once for `roots` and cost more than a load.
    fn shared(&self, roots: impl IntoIterator<Item = ValueId> + Clone) -> Shared {
        let mut uses: BTreeMap<ValueId, usize> = BTreeMap::new();
        for id in self.reachable(roots.clone()) {
            let mut last = None;
            for operand in operands(self.decisions.values.get(id)) {
                // Two equal operands are one use.
                if last != Some(operand) {
                    *uses.entry(operand).or_default() += 1;
                }
                last = Some(operand);
            }
        }
        for root in roots {
            *uses.entry(root).or_default() += 1;
        }
        uses.retain(|id, uses| {
            *uses > 1
                && matches!(
                    self.decisions.values.get(*id),
                    Value::Computed { .. } | Value::LoadIndexed { .. }
                )
        });
        Shared {
            uses,
            slots: BTreeMap::new(),
        }
    }

    fn compute(
        &mut self,
        id: ValueId,
        view: View,
        known: &mut Known,
        shared: &mut Shared,
    ) -> Result<(), FilterError> {
        if known.held == Some(id) {
            self.used(id, shared);
            return Ok(());
        }
        if let Some(slot) = shared.slots.get(&id) {
            self.put(Instruction::load(Size::Double, R1, R10, *slot));
            known.held = Some(id);
            self.used(id, shared);
            return Ok(());
        }
        match self.decisions.values.get(id) {
            Value::Constant(constant) => {
                self.alu32(Alu::Move, R1, constant as i32);
            }
            Value::Length => self.put(Instruction::load(Size::Word, R1, R9, LENGTH)),
            Value::Beside(what) => {
                let number = self.target.origin.value(what);
                self.alu32(Alu::Move, R1, number as i32);
            }
            Value::Load { width, offset } => match view {
                View::Copied => self.load_copied(width, offset),
                View::Plain | View::Tagged => self.load_in_place(width, offset, view, known),
            },
            Value::LoadIndexed {
                width,
                index,
                offset,
            } => {
                let end = u64::from(offset) + u64::from(width.bytes());
                match view {
                    View::Copied => {
                        self.compute(index, view, known, shared)?;
                        self.load_copied_indexed(width, offset);
                    }
                    View::Plain | View::Tagged => {
                        if !known.reaches(index, end) {
                            self.compute(index, view, known, shared)?;
                            self.set_anchor(index, end, view, known);
                        }
                        self.load_at_anchor(width, offset, view);
                    }
                }
            }
            Value::Computed {
                operator,
                left,
                right,
            } => {
                if let Some(constant) = self.decisions.values.as_constant(right) {
                    self.compute(left, view, known, shared)?;
                    self.alu32(alu(operator), R1, constant as i32);
                } else {
                    self.compute_both(left, right, view, known, shared)?;
                    self.combine(operator);
                }
            }
        }
        known.held = Some(id);
        if shared.uses.contains_key(&id) {
            let slot = self.slots.take()?;
            self.put(Instruction::store(Size::Double, R10, slot, R1));
            shared.slots.insert(id, slot);
            self.used(id, shared);
        }
        Ok(())
    }

    /// Puts one value into r1 and another into r2.
    fn compute_both(
        &mut self,
        left: ValueId,
        right: ValueId,
        view: View,
        known: &mut Known,
        shared: &mut Shared,
    ) -> Result<(), FilterError> {
        if let Some(constant) = self.decisions.values.as_constant(left) {
            self.compute(right, view, known, shared)?;
            self.alu64(Alu::Move, R2, R1);
            self.alu32(Alu::Move, R1, constant as i32);
            return Ok(());
        }
        self.compute(left, view, known, shared)?;
        if left == right {
            self.alu64(Alu::Move, R2, R1);
            return Ok(());
        }
        let slot = self.slots.take()?;
        self.put(Instruction::store(Size::Double, R10, slot, R1));
        self.compute(right, view, known, shared)?;
        self.alu64(Alu::Move, R2, R1);
        self.put(Instruction::load(Size::Double, R1, R10, slot));
        self.slots.give_back(slot);
        Ok(())
    }

    /// Computes r1 from r1 and r2.
    fn combine(&mut self, operator: Arithmetic) {
        let shifts = matches!(operator, Arithmetic::ShiftLeft | Arithmetic::ShiftRight);
        let operation = Instruction::alu(Bits::B32, alu(operator), R1, R2.into());
        if !shifts {
            self.put(operation);
            return;
        }
        // eBPF uses the low five bits of the shift count; in classic BPF, a shift by 32 or more
        // gives 0.
        let within = self.assembler.label();
        self.branch(Bits::B32, Test::LessOrEqual, R2, 31, within);
        self.alu32(Alu::Move, R1, 0);
        self.alu32(Alu::Move, R2, 0);
        self.assembler.place(within);
        self.put(operation);
    }

    /// Counts a use; a slot is free after the last one.
    fn used(&mut self, id: ValueId, shared: &mut Shared) {
        let Some(uses) = shared.uses.get_mut(&id) else {
            return;
        };
        *uses -= 1;
        if *uses == 0 {
            shared.uses.remove(&id);
            if let Some(slot) = shared.slots.remove(&id) {
                self.slots.give_back(slot);
            }
        }
    }
}

/// Values that one question needs more than once.
struct Shared {
    /// Remaining uses of each value.
    uses: BTreeMap<ValueId, usize>,
    /// Slots of the values that are computed already.
    slots: BTreeMap<ValueId, i16>,
}

fn operands(value: Value) -> impl Iterator<Item = ValueId> {
    let (first, second) = match value {
        Value::LoadIndexed { index, .. } => (Some(index), None),
        Value::Computed { left, right, .. } => (Some(left), Some(right)),
        _ => (None, None),
    };
    first.into_iter().chain(second)
}

const fn alu(operator: Arithmetic) -> Alu {
    match operator {
        Arithmetic::Add => Alu::Add,
        Arithmetic::Subtract => Alu::Subtract,
        Arithmetic::Multiply => Alu::Multiply,
        Arithmetic::Divide => Alu::Divide,
        Arithmetic::Remainder => Alu::Remainder,
        Arithmetic::And => Alu::And,
        Arithmetic::Or => Alu::Or,
        Arithmetic::ExclusiveOr => Alu::ExclusiveOr,
        Arithmetic::ShiftLeft => Alu::ShiftLeft,
        Arithmetic::ShiftRight => Alu::ShiftRight,
    }
}
