//! A whole classic program, decoded and checked.

use super::instruction::TAG_BESIDE;
use super::{ClassicInstruction, FrameView, Operation, ProgramError, Register, Source};

/// How often a loop is run at most: `protochain` goes to the next extension header each time.
const ROUNDS_MAX: usize = 6;

/// A program of valid instructions that can neither loop nor run off its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassicProgram {
    operations: Vec<Operation>,
    has_loop: bool,
    view: FrameView,
}

impl ClassicProgram {
    /// Decodes and checks instructions that see the whole frame.
    ///
    /// # Errors
    /// As [`ClassicProgram::of_view`].
    pub fn new(instructions: &[ClassicInstruction]) -> Result<Self, ProgramError> {
        Self::of_view(instructions, FrameView::Whole)
    }

    /// Decodes and checks the instructions.
    ///
    /// A loop is unrolled: the program is there [`ROUNDS_MAX`] times, and a jump back goes on in the next one. What would
    /// go on in none rejects.
    ///
    /// # Errors
    /// [`ProgramError`] names the first invalid instruction.
    pub fn of_view(
        instructions: &[ClassicInstruction],
        view: FrameView,
    ) -> Result<Self, ProgramError> {
        if instructions.is_empty() {
            return Err(ProgramError::Empty);
        }
        let length = instructions.len();
        let mut operations = Vec::with_capacity(length);
        let mut has_loop = false;
        for (position, instruction) in instructions.iter().enumerate() {
            let mut operation = instruction.decode(position)?;
            if view == FrameView::Whole && matches!(operation, Operation::Load(_, Source::Tag(_))) {
                return Err(ProgramError::Ancillary {
                    position,
                    what: TAG_BESIDE,
                });
            }
            if let Operation::Jump(distance) = &mut operation
                && *distance < 0
            {
                let behind = i64::try_from(length)
                    .ok()
                    .map(|length| length + i64::from(*distance));
                let leaves = || ProgramError::LeavesProgram { position, length };
                if i64::from(*distance) + position as i64 + 1 < 0 {
                    return Err(leaves());
                }
                *distance = behind
                    .and_then(|jump| i32::try_from(jump).ok())
                    .ok_or_else(leaves)?;
                has_loop = true;
                operations.push(operation);
                continue;
            }
            let (first, second) = successors(position, operation);
            if [first, second].into_iter().flatten().any(|to| to >= length) {
                return Err(ProgramError::LeavesProgram { position, length });
            }
            operations.push(operation);
        }
        if has_loop {
            operations = operations.repeat(ROUNDS_MAX);
            let last = operations.len() - length;
            for position in last..operations.len() {
                if matches!(operations[position], Operation::Jump(distance) if position + 1 + distance as usize >= operations.len())
                {
                    operations[position] = Operation::Return(Some(0));
                }
            }
        }
        Ok(Self {
            operations,
            has_loop,
            view,
        })
    }

    /// Whether the instructions have a loop, which sockets do not take.
    pub fn has_loop(&self) -> bool {
        self.has_loop
    }

    /// How it sees a frame with a VLAN tag.
    pub fn view(&self) -> FrameView {
        self.view
    }

    /// Whether it asks for what is not in the packet's bytes.
    pub fn asks_for_origin(&self) -> bool {
        self.operations
            .iter()
            .any(|operation| matches!(operation, Operation::Load(_, Source::Beside(_))))
    }

    /// The instructions.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The registers and scratch words that are live before each instruction.
    pub(in crate::filter) fn live(&self) -> Vec<Live> {
        let mut live = vec![Live(0); self.operations.len()];
        for (position, operation) in self.operations.iter().enumerate().rev() {
            let (first, second) = successors(position, *operation);
            let after = [first, second]
                .into_iter()
                .flatten()
                .fold(Live(0), |all, to| Live(all.0 | live[to].0));
            live[position] = after.before(*operation);
        }
        live
    }
}

/// The instructions that may follow one.
fn successors(position: usize, operation: Operation) -> (Option<usize>, Option<usize>) {
    let next = position + 1;
    match operation {
        Operation::Return(_) => (None, None),
        Operation::Jump(distance) => (Some(next + distance as usize), None),
        Operation::Branch {
            if_true, if_false, ..
        } => (
            Some(next + usize::from(if_true)),
            Some(next + usize::from(if_false)),
        ),
        _ => (Some(next), None),
    }
}

/// A set of registers and scratch words: bit 0 the accumulator, bit 1 the index, then the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::filter) struct Live(u32);

impl Live {
    const fn register(register: Register) -> u32 {
        match register {
            Register::Accumulator => 1,
            Register::Index => 2,
        }
    }

    const fn word(word: usize) -> u32 {
        4 << word
    }

    /// Whether a register is in the set.
    pub const fn has_register(self, register: Register) -> bool {
        self.0 & Self::register(register) != 0
    }

    /// Whether a scratch word is in the set.
    pub const fn has_word(self, word: usize) -> bool {
        self.0 & Self::word(word) != 0
    }

    /// What is live before an operation when this set is live behind it.
    fn before(self, operation: Operation) -> Self {
        use super::Operand;
        let (writes, reads) = match operation {
            Operation::Load(register, source) => (
                Self::register(register),
                match source {
                    Source::Scratch(word) => Self::word(word),
                    Source::PacketIndexed(..) => Self::register(Register::Index),
                    _ => 0,
                },
            ),
            Operation::Store(register, word) => (Self::word(word), Self::register(register)),
            Operation::Compute(_, Operand::Index)
            | Operation::Branch {
                operand: Operand::Index,
                ..
            } => (0, 3),
            Operation::Compute(..) | Operation::Branch { .. } | Operation::Negate => (0, 1),
            Operation::Return(None) => (0, 1),
            Operation::Return(Some(_)) | Operation::Jump(_) => (0, 0),
            Operation::CopyTo(Register::Index) => (2, 1),
            Operation::CopyTo(Register::Accumulator) => (1, 2),
        };
        // What may reject here (a load, a division) must stay where it is, but a rejection needs
        // no register: only the operands count.
        Self(self.0 & !writes | reads)
    }
}
