//! Turns a classic program into a decision diagram by symbolic execution. Registers and scratch memory
//! vanish: the questions contain their values.

use std::collections::{BTreeSet, HashMap};

use super::classic::{
    Arithmetic, ClassicProgram, FrameView, Live, Operand, Operation, ProgramError, Register,
    Relation, SCRATCH_WORDS, Source, TagField, Width,
};
use super::condition::{Condition, Simplified};
use super::decision::{ConditionId, Decisions, NodeId};
use super::untagged::{TAG_BYTES, TAG_START};
use super::value::ValueId;

/// Maximum number of states (instruction and register values) of a program. Programs of libpcap have about
/// one for each instruction; a program made to have more is refused.
const STATES_MAX: usize = 262_144;

/// The values of the registers before an instruction; `None` for registers that are not live.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    position: usize,
    accumulator: Option<ValueId>,
    index: Option<ValueId>,
    scratch: [Option<ValueId>; SCRATCH_WORDS],
}

/// A basic block: questions with their required answers, then a branch or return.
struct Step {
    /// Each question with the answer that continues; the other one rejects.
    demands: Vec<(ConditionId, bool)>,
    end: End,
}

enum End {
    Reject,
    Accept,
    Go(usize),
    Branch {
        condition: ConditionId,
        yes: usize,
        no: usize,
    },
}

/// The decision diagram of a program. All its questions are about the whole frame, so that programs of both views
/// share them: where a program may see the frame without its tag, there is a diagram for each case.
///
/// # Errors
/// [`ProgramError`] when it reads scratch memory that it did not write, has too many states, or loads from where the
/// tag may be.
pub fn build(program: &ClassicProgram, decisions: &mut Decisions) -> Result<NodeId, ProgramError> {
    let plain = build_for(program, false, decisions)?;
    if program.view() == FrameView::Whole {
        return Ok(plain);
    }
    let untagged = build_for(program, true, decisions)?;
    let tag_is_beside = decisions.condition_id(Condition::TagIsBeside);
    Ok(decisions.decide(tag_is_beside, untagged, plain))
}

fn build_for(
    program: &ClassicProgram,
    tag_is_beside: bool,
    decisions: &mut Decisions,
) -> Result<NodeId, ProgramError> {
    let mut builder = Builder {
        live: program.live(),
        program,
        tag_is_beside,
        decisions,
        states: Vec::new(),
        numbers: HashMap::new(),
    };
    let steps = builder.explore()?;
    Ok(builder.assemble(&steps))
}

struct Builder<'a> {
    program: &'a ClassicProgram,
    /// The program sees the frame without its outer tag.
    tag_is_beside: bool,
    live: Vec<Live>,
    decisions: &'a mut Decisions,
    states: Vec<State>,
    numbers: HashMap<State, usize>,
}

impl Builder<'_> {
    /// Follows every path through the program. States are numbered in order of discovery.
    fn explore(&mut self) -> Result<Vec<Step>, ProgramError> {
        let zero = self.decisions.values.constant(0);
        self.state(State {
            position: 0,
            accumulator: Some(zero),
            index: Some(zero),
            scratch: [None; SCRATCH_WORDS],
        })?;
        let mut steps = Vec::new();
        while let Some(state) = self.states.get(steps.len()).cloned() {
            let mut demands = Vec::new();
            let end = self.walk(state, &mut demands)?;
            steps.push(Step { demands, end });
        }
        Ok(steps)
    }

    /// The number of a state, without values that are not live.
    fn state(&mut self, mut state: State) -> Result<usize, ProgramError> {
        let live = self.live[state.position];
        if !live.has_register(Register::Accumulator) {
            state.accumulator = None;
        }
        if !live.has_register(Register::Index) {
            state.index = None;
        }
        for (word, held) in state.scratch.iter_mut().enumerate() {
            if !live.has_word(word) {
                *held = None;
            }
        }
        if let Some(number) = self.numbers.get(&state) {
            return Ok(*number);
        }
        let number = self.states.len();
        if number == STATES_MAX {
            return Err(ProgramError::TooManyStates { limit: STATES_MAX });
        }
        self.states.push(state.clone());
        self.numbers.insert(state, number);
        Ok(number)
    }

    /// Executes from a state to the next branch or return.
    fn walk(
        &mut self,
        mut state: State,
        demands: &mut Vec<(ConditionId, bool)>,
    ) -> Result<End, ProgramError> {
        loop {
            let position = state.position;
            let operation = self.program.operations()[position];
            state.position += 1;
            match operation {
                Operation::Load(register, source) => {
                    let Some(value) = self.load(&state, position, source, demands)? else {
                        return Ok(End::Reject);
                    };
                    *register_of(&mut state, register) = Some(value);
                }
                Operation::Store(register, word) => {
                    state.scratch[word] = *register_of(&mut state, register);
                }
                Operation::CopyTo(Register::Index) => state.index = state.accumulator,
                Operation::CopyTo(Register::Accumulator) => state.accumulator = state.index,
                Operation::Negate => {
                    let zero = self.decisions.values.constant(0);
                    let value = held(state.accumulator);
                    state.accumulator =
                        self.decisions
                            .values
                            .compute(Arithmetic::Subtract, zero, value);
                }
                Operation::Compute(operator, operand) => {
                    let (left, right) = (held(state.accumulator), self.operand(&state, operand));
                    let divides = matches!(operator, Arithmetic::Divide | Arithmetic::Remainder);
                    if divides && !self.demand_nonzero(right, demands) {
                        return Ok(End::Reject);
                    }
                    state.accumulator = self.decisions.values.compute(operator, left, right);
                }
                Operation::Jump(distance) => {
                    state.position += distance as usize;
                    return self.state(state).map(End::Go);
                }
                Operation::Branch {
                    relation,
                    operand,
                    if_true,
                    if_false,
                } => {
                    let (left, right) = (held(state.accumulator), self.operand(&state, operand));
                    let (mut yes, mut no) = (state.clone(), state);
                    yes.position += usize::from(if_true);
                    no.position += usize::from(if_false);
                    return match Condition::compare(&self.decisions.values, relation, left, right) {
                        Simplified::Known(answer) => {
                            self.state(if answer { yes } else { no }).map(End::Go)
                        }
                        Simplified::Question {
                            condition,
                            opposite,
                        } => {
                            let (yes, no) = if opposite { (no, yes) } else { (yes, no) };
                            Ok(End::Branch {
                                condition: self.decisions.condition_id(condition),
                                yes: self.state(yes)?,
                                no: self.state(no)?,
                            })
                        }
                    };
                }
                Operation::Return(Some(constant)) => return Ok(end(constant != 0)),
                Operation::Return(None) => {
                    return Ok(end(self.demand_nonzero(held(state.accumulator), demands)));
                }
            }
        }
    }

    /// A load's value; `None` when it lies behind the end of every frame.
    fn load(
        &mut self,
        state: &State,
        position: usize,
        source: Source,
        demands: &mut Vec<(ConditionId, bool)>,
    ) -> Result<Option<ValueId>, ProgramError> {
        Ok(match source {
            Source::Constant(constant) => Some(self.decisions.values.constant(constant)),
            Source::Length => self.length(),
            Source::Beside(what) => Some(self.decisions.values.beside(what)),
            Source::Tag(field) => self.load_tag(field, demands),
            Source::Scratch(word) => Some(
                state.scratch[word].ok_or(ProgramError::UnwrittenScratchWord { position, word })?,
            ),
            Source::Packet(width, offset) => {
                let zero = self.decisions.values.constant(0);
                self.load_packet(position, width, zero, offset, demands)?
            }
            Source::PacketIndexed(width, offset) => {
                self.load_packet(position, width, held(state.index), offset, demands)?
            }
            Source::HeaderLength(offset) => {
                let zero = self.decisions.values.constant(0);
                self.load_packet(position, Width::Byte, zero, offset, demands)?
                    .and_then(|byte| {
                        let values = &mut self.decisions.values;
                        let low_half = values.constant(0xf);
                        let words = values.compute(Arithmetic::And, byte, low_half)?;
                        let two = values.constant(2);
                        values.compute(Arithmetic::ShiftLeft, words, two)
                    })
            }
        })
    }

    fn load_packet(
        &mut self,
        position: usize,
        width: Width,
        index: ValueId,
        offset: u32,
        demands: &mut Vec<(ConditionId, bool)>,
    ) -> Result<Option<ValueId>, ProgramError> {
        let values = &mut self.decisions.values;
        let Some((index, offset)) = values.anchor(index, offset) else {
            return Ok(None);
        };
        let value = match self.tag_is_beside {
            true => values
                .load_untagged(width, index, offset)
                .map_err(|_| ProgramError::AroundTag { position })?,
            false => values.load_indexed(width, index, offset),
        };
        let end = u64::from(offset) + u64::from(width.bytes()) + u64::from(self.tag_bytes());
        Ok(value.filter(|_| self.demand_reach(index, end, demands)))
    }

    /// Bytes of the whole frame that the program does not see.
    const fn tag_bytes(&self) -> u32 {
        if self.tag_is_beside { TAG_BYTES } else { 0 }
    }

    /// The frame's length as the program sees it.
    fn length(&mut self) -> Option<ValueId> {
        let tag_bytes = self.tag_bytes();
        let values = &mut self.decisions.values;
        let (whole, tag_bytes) = (values.length(), values.constant(tag_bytes));
        values.compute(Arithmetic::Subtract, whole, tag_bytes)
    }

    fn load_tag(
        &mut self,
        field: TagField,
        demands: &mut Vec<(ConditionId, bool)>,
    ) -> Option<ValueId> {
        let values = &mut self.decisions.values;
        let offset = match field {
            TagField::Present => return Some(values.constant(u32::from(self.tag_is_beside))),
            _ if !self.tag_is_beside => return Some(values.constant(0)),
            TagField::Protocol => TAG_START,
            TagField::Control => TAG_START + 2,
        };
        let (zero, value) = (values.constant(0), values.load(Width::Half, offset));
        self.demand_reach(zero, u64::from(offset + 2), demands)
            .then_some(value)
    }

    /// Requires that the frame reaches to `index + end`; `false` if none is that long.
    fn demand_reach(
        &mut self,
        index: ValueId,
        end: u64,
        demands: &mut Vec<(ConditionId, bool)>,
    ) -> bool {
        let condition = match (self.decisions.values.as_constant(index), u32::try_from(end)) {
            (Some(_), Ok(end)) => Condition::Reaches { end },
            (Some(_), Err(_)) => return false,
            (None, _) => Condition::ReachesIndexed { index, end },
        };
        let asked = Simplified::Question {
            condition,
            opposite: false,
        };
        self.demand(asked, true, demands)
    }

    /// Requires that a value is not 0; `false` if it always is.
    fn demand_nonzero(&mut self, value: ValueId, demands: &mut Vec<(ConditionId, bool)>) -> bool {
        let zero = self.decisions.values.constant(0);
        let asked = Condition::compare(&self.decisions.values, Relation::Equal, value, zero);
        self.demand(asked, false, demands)
    }

    /// Requires an answer to a question; `false` if it never has it.
    fn demand(
        &mut self,
        asked: Simplified,
        answer: bool,
        demands: &mut Vec<(ConditionId, bool)>,
    ) -> bool {
        match asked {
            Simplified::Known(known) => known == answer,
            Simplified::Question {
                condition,
                opposite,
            } => {
                demands.push((self.decisions.condition_id(condition), answer != opposite));
                true
            }
        }
    }

    fn operand(&mut self, state: &State, operand: Operand) -> ValueId {
        match operand {
            Operand::Constant(constant) => self.decisions.values.constant(constant),
            Operand::Index => held(state.index),
        }
    }

    /// Makes the nodes, those of later instructions first: jumps only go forward.
    fn assemble(&mut self, steps: &[Step]) -> NodeId {
        let mut nodes = vec![NodeId::REJECT; steps.len()];
        let order: BTreeSet<(usize, usize)> = self
            .states
            .iter()
            .enumerate()
            .map(|(number, state)| (state.position, number))
            .collect();
        for (_, number) in order.into_iter().rev() {
            let step = &steps[number];
            let end = match step.end {
                End::Reject => NodeId::REJECT,
                End::Accept => NodeId::ACCEPT,
                End::Go(to) => nodes[to],
                End::Branch { condition, yes, no } => {
                    self.decisions.decide(condition, nodes[yes], nodes[no])
                }
            };
            nodes[number] = step
                .demands
                .iter()
                .rev()
                .fold(end, |node, &(condition, answer)| {
                    if answer {
                        self.decisions.decide(condition, node, NodeId::REJECT)
                    } else {
                        self.decisions.decide(condition, NodeId::REJECT, node)
                    }
                });
        }
        nodes[0]
    }
}

const fn end(accepts: bool) -> End {
    if accepts { End::Accept } else { End::Reject }
}

/// A register's value where an instruction reads it: it is always there.
fn held(register: Option<ValueId>) -> ValueId {
    register.expect("a register that is read is live, and both start as 0")
}

fn register_of(state: &mut State, register: Register) -> &mut Option<ValueId> {
    match register {
        Register::Accumulator => &mut state.accumulator,
        Register::Index => &mut state.index,
    }
}
