//! An interpreter of the classic machine: the reference for all other forms of a filter.

use super::{
    ClassicProgram, Operand, Operation, Packet, Register, SCRATCH_WORDS, Source, Tag, Width,
};

impl ClassicProgram {
    /// Runs the program on a whole frame. Returns its return value: 0 rejects.
    ///
    /// A load behind the frame's end and a division by 0 reject.
    pub fn run(&self, frame: &[u8]) -> u32 {
        self.run_on(&Packet::whole(frame))
    }

    /// As [`ClassicProgram::run`], on a packet.
    pub fn run_on(&self, packet: &Packet<'_>) -> u32 {
        Machine::default().run(self, packet).unwrap_or(0)
    }
}

#[derive(Default)]
struct Machine {
    accumulator: u32,
    index: u32,
    scratch: [u32; SCRATCH_WORDS],
}

impl Machine {
    /// `None`: the filter rejects because of a load or a division.
    fn run(&mut self, program: &ClassicProgram, packet: &Packet<'_>) -> Option<u32> {
        let mut position = 0;
        loop {
            let operation = *program.operations().get(position)?;
            position += 1;
            match operation {
                Operation::Load(register, source) => {
                    *self.register(register) = self.load(source, packet)?;
                }
                Operation::Store(register, word) => self.scratch[word] = *self.register(register),
                Operation::Compute(operator, operand) => {
                    self.accumulator = operator.apply(self.accumulator, self.operand(operand))?;
                }
                Operation::Negate => self.accumulator = self.accumulator.wrapping_neg(),
                Operation::Jump(distance) => position += distance as usize,
                Operation::Branch {
                    relation,
                    operand,
                    if_true,
                    if_false,
                } => {
                    let holds = relation.holds(self.accumulator, self.operand(operand));
                    position += usize::from(if holds { if_true } else { if_false });
                }
                Operation::Return(constant) => return Some(constant.unwrap_or(self.accumulator)),
                Operation::CopyTo(Register::Index) => self.index = self.accumulator,
                Operation::CopyTo(Register::Accumulator) => self.accumulator = self.index,
            }
        }
    }

    fn register(&mut self, register: Register) -> &mut u32 {
        match register {
            Register::Accumulator => &mut self.accumulator,
            Register::Index => &mut self.index,
        }
    }

    fn operand(&self, operand: Operand) -> u32 {
        match operand {
            Operand::Constant(constant) => constant,
            Operand::Index => self.index,
        }
    }

    fn load(&self, source: Source, packet: &Packet<'_>) -> Option<u32> {
        let frame = packet.bytes;
        match source {
            Source::Constant(constant) => Some(constant),
            Source::Length => Some(packet.wire_bytes),
            Source::Scratch(word) => Some(self.scratch[word]),
            Source::Beside(what) => Some(packet.origin.value(what)),
            Source::Tag(field) => Some(Tag::field(packet.tag, field)),
            Source::Packet(width, offset) => read(frame, width, u64::from(offset)),
            Source::PacketIndexed(width, offset) => {
                read(frame, width, u64::from(self.index) + u64::from(offset))
            }
            Source::HeaderLength(offset) => {
                Some((read(frame, Width::Byte, u64::from(offset))? & 0xf) << 2)
            }
        }
    }
}

/// Bytes of a frame in network byte order; `None` when one lies behind its end.
pub(in crate::filter) fn read(frame: &[u8], width: Width, offset: u64) -> Option<u32> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(width.bytes() as usize)?;
    let bytes = frame.get(start..end)?;
    Some(
        bytes
            .iter()
            .fold(0, |value, byte| value << 8 | u32::from(*byte)),
    )
}
