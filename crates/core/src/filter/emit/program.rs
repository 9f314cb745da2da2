//! The prologue and epilogue around the questions.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;

use super::slots::{COPY, COPY_BYTES, SCRATCH, Slots};
use super::{Emitter, Hook, TAG_BYTES, TAG_END, TAG_START, Target, View};
use crate::abi::{CAPTURE_SNAPLEN_MAX, CaptureVerdict};
use crate::filter::condition::Condition;
use crate::filter::ebpf::Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10};
use crate::filter::ebpf::{
    Alu, Assembler, Bits, Helper, Instruction, Label, Operand, Register, Relocation, Size, Test,
};
use crate::filter::value::{Value, ValueId};
use crate::filter::{FilterError, MergedFilter};

/// The maps of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Map {
    /// `BPF_MAP_TYPE_PERCPU_ARRAY` with one `struct capture_verdict`.
    Verdict,
    /// `BPF_MAP_TYPE_PROG_ARRAY`; slot 0 takes the frames that a filter accepts.
    Jumps,
    /// `BPF_MAP_TYPE_ARRAY` with one word: subscribers, as bits, that get every frame.
    Unfiltered,
}

/// Where the file descriptor of a map belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapAddress {
    /// Index of the instruction.
    pub position: usize,
    /// Which map.
    pub map: Map,
}

/// A program that lacks only the file descriptors of its maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmittedProgram {
    /// The hook that it is for.
    pub target: Target,
    /// The instructions.
    pub instructions: Vec<Instruction>,
    /// Where the maps belong.
    pub map_addresses: Vec<MapAddress>,
}

/// Fields of the verdict. Until the questions are answered, the field of the snapshot length has the
/// length of the frame.
const SEEN: i16 = offset_of!(CaptureVerdict, seen) as i16;
pub(super) const SUBSCRIBERS: i16 = offset_of!(CaptureVerdict, subscribers) as i16;
const SNAPLEN: i16 = offset_of!(CaptureVerdict, snaplen) as i16;
pub(super) const LENGTH: i16 = SNAPLEN;
const UNFILTERED_SNAPLEN: i16 = offset_of!(CaptureVerdict, unfiltered_snaplen) as i16;

/// In the order of their discriminants.
const MAPS: [Map; 3] = [Map::Verdict, Map::Jumps, Map::Unfiltered];

impl MergedFilter {
    /// Makes the eBPF program that counts a frame as seen and finds its subscribers: those whose filters accept it, and
    /// those in [`Map::Unfiltered`]. If there are any, it
    /// stores subscribers and snapshot length in the verdict and continues in slot 0 of [`Map::Jumps`]. It
    /// returns the verdict of the target.
    ///
    /// # Errors
    /// [`FilterError::TooManyValues`] when one question exceeds the stack.
    pub fn emit(&self, target: Target) -> Result<EmittedProgram, FilterError> {
        let mut assembler = Assembler::default();
        let copied = assembler.label();
        let mut emitter = Emitter {
            filter: self,
            decisions: &self.decisions,
            target,
            assembler,
            slots: Slots::default(),
            copied,
            ends: self.ends(),
        };
        emitter.program()?;
        let (instructions, relocations) = emitter.assembler.finish();
        let address = |relocation: Relocation| MapAddress {
            position: relocation.slot,
            map: MAPS[relocation.map],
        };
        Ok(EmittedProgram {
            target,
            instructions,
            map_addresses: relocations.into_iter().map(address).collect(),
        })
    }

    /// Ends of the loads, in bytes: at constant offsets, and behind each index.
    fn ends(&self) -> BTreeMap<Option<ValueId>, BTreeSet<u64>> {
        let mut ends: BTreeMap<_, BTreeSet<u64>> = BTreeMap::new();
        for condition in self.conditions() {
            let (index, end) = match condition {
                Condition::Reaches { end } => (None, u64::from(end)),
                Condition::ReachesIndexed { index, end } => (Some(index), end),
                _ => continue,
            };
            ends.entry(index).or_default().insert(end);
        }
        ends
    }

    fn conditions(&self) -> impl Iterator<Item = Condition> + '_ {
        self.stages
            .iter()
            .flat_map(|stage| &stage.questions)
            .map(|question| self.decisions.condition(question.condition))
    }
}

impl Emitter<'_> {
    fn program(&mut self) -> Result<(), FilterError> {
        let tagged = self.assembler.label();
        let finish = self.assembler.label();
        let pass = self.assembler.label();

        self.alu64(Alu::Move, R6, R1);
        self.put(Instruction::store_constant(Size::Word, R10, SCRATCH, 0));
        self.assembler.put_map(R1, Map::Verdict as usize);
        self.address(R2, SCRATCH);
        self.put(Instruction::call(Helper::MapLookup));
        self.branch(Bits::B64, Test::Equal, R0, 0, pass);
        self.alu64(Alu::Move, R9, R0);
        self.put(Instruction::load(Size::Double, R1, R9, SEEN));
        self.alu64(Alu::Add, R1, 1);
        self.put(Instruction::store(Size::Double, R9, SEEN, R1));
        self.begin_with_unfiltered();
        let (data, data_end) = (self.target.data(), self.target.data_end());
        self.put(Instruction::load(Size::Word, R7, R6, data));
        self.put(Instruction::load(Size::Word, R8, R6, data_end));
        if self.target.may_be_tagged() {
            let present = Target::SKB_VLAN_PRESENT;
            self.put(Instruction::load(Size::Word, R1, R6, present));
            self.branch(Bits::B32, Test::NotEqual, R1, 0, tagged);
        }

        self.note_length_if_asked(View::Plain);
        self.questions(View::Plain)?;

        self.assembler.place(finish);
        self.finish(pass);
        self.assembler.place(pass);
        self.alu64(Alu::Move, R0, self.target.verdict());
        self.put(Instruction::exit());

        if self.target.may_be_tagged() {
            self.assembler.place(tagged);
            self.note_length_if_asked(View::Tagged);
            if self.questions(View::Tagged)? {
                self.assembler.jump(finish);
            }
        }
        if self.assembler.is_jumped_to(self.copied) {
            self.assembler.place(self.copied);
            self.begin_with_unfiltered();
            self.copy_start();
            if self.questions(View::Copied)? {
                self.assembler.jump(finish);
            }
        }
        Ok(())
    }

    /// Begins the set of subscribers with those that get every frame.
    fn begin_with_unfiltered(&mut self) {
        let none = self.assembler.label();
        self.assembler.put_map_value(R1, Map::Unfiltered as usize);
        self.put(Instruction::load(Size::Double, R1, R1, 0));
        self.put(Instruction::store(Size::Double, R9, SUBSCRIBERS, R1));
        self.branch(Bits::B64, Test::Equal, R1, 0, none);
        // Their snapshot lengths are not in the program either.
        self.alu64(Alu::Move, R1, CAPTURE_SNAPLEN_MAX as i32);
        self.assembler.place(none);
        self.put(Instruction::store(Size::Word, R9, UNFILTERED_SNAPLEN, R1));
    }

    /// Stores the frame's length in the verdict, if a question needs it.
    fn note_length_if_asked(&mut self, view: View) {
        let asked = self.filter.conditions().any(|condition| {
            self.values_of(condition)
                .any(|value| value == Value::Length)
        });
        if asked {
            self.note_length(view);
        }
    }

    /// Stores the frame's length on the wire in the verdict. In a copied frame r8 holds the bytes that
    /// the tag adds.
    fn note_length(&mut self, view: View) {
        match self.target.hook {
            Hook::SchedCls => {
                self.put(Instruction::load(Size::Word, R1, R6, Target::SKB_LEN));
                match view {
                    View::Plain => {}
                    View::Tagged => self.alu32(Alu::Add, R1, TAG_BYTES as i32),
                    View::Copied => self.alu32(Alu::Add, R1, R8),
                }
            }
            Hook::Xdp { frags: true } => {
                self.alu64(Alu::Move, R1, R6);
                self.put(Instruction::call(Helper::XdpGetBuffLen));
                self.alu64(Alu::Move, R1, R0);
            }
            Hook::Xdp { frags: false } => {
                let (data, data_end) = (self.target.data(), self.target.data_end());
                self.put(Instruction::load(Size::Word, R1, R6, data_end));
                self.put(Instruction::load(Size::Word, R2, R6, data));
                self.alu64(Alu::Subtract, R1, R2);
            }
        }
        self.put(Instruction::store(Size::Word, R9, LENGTH, R1));
    }

    /// Copies the start of the frame, as it was on the wire, to the stack, with zeros behind it.
    fn copy_start(&mut self) {
        let filled = self.assembler.label();
        self.alu64(Alu::Move, R8, 0);
        if self.target.may_be_tagged() {
            let untagged = self.assembler.label();
            let present = Target::SKB_VLAN_PRESENT;
            self.put(Instruction::load(Size::Word, R1, R6, present));
            self.branch(Bits::B32, Test::Equal, R1, 0, untagged);
            self.alu64(Alu::Move, R8, TAG_BYTES as i32);
            self.assembler.place(untagged);
        }
        self.note_length(View::Copied);
        for offset in (COPY..0).step_by(8) {
            self.put(Instruction::store_constant(Size::Double, R10, offset, 0));
        }
        if self.target.may_be_tagged() {
            let untagged = self.assembler.label();
            self.branch(Bits::B64, Test::Equal, R8, 0, untagged);
            self.alu64(Alu::Move, R4, TAG_START as i32);
            self.load_bytes(0, COPY);
            let proto = Target::SKB_VLAN_PROTO;
            self.put(Instruction::load(Size::Word, R1, R6, proto));
            let tag = COPY + TAG_START as i16;
            self.put(Instruction::store(Size::Half, R10, tag, R1));
            self.put(Instruction::load(Size::Word, R1, R6, Target::SKB_VLAN_TCI));
            self.put(Instruction::network_order(R1, 16));
            self.put(Instruction::store(Size::Half, R10, tag + 2, R1));
            self.copy_rest(TAG_START, TAG_END, filled);
            self.assembler.jump(filled);
            self.assembler.place(untagged);
        }
        self.copy_rest(0, 0, filled);
        self.assembler.place(filled);
    }

    /// Copies what the copy has room for: from `from` in the packet to `to` in the copy.
    fn copy_rest(&mut self, from: u32, to: u32, filled: Label) {
        let fits = self.assembler.label();
        let room = (COPY_BYTES - to) as i32;
        self.put(Instruction::load(Size::Word, R4, R9, LENGTH));
        self.branch(Bits::B64, Test::LessOrEqual, R4, to as i32, filled);
        if to > 0 {
            self.alu64(Alu::Subtract, R4, to as i32);
        }
        self.branch(Bits::B64, Test::LessOrEqual, R4, room, fits);
        self.alu64(Alu::Move, R4, room);
        self.assembler.place(fits);
        self.load_bytes(from as i32, COPY + to as i16);
    }

    /// Copies r4 bytes of the packet to the stack by a helper.
    pub(super) fn load_bytes(&mut self, from: impl Into<Operand>, to: i16) {
        self.alu64(Alu::Move, R1, R6);
        self.alu64(Alu::Move, R2, from);
        self.address(R3, to);
        self.put(Instruction::call(match self.target.hook {
            Hook::Xdp { .. } => Helper::XdpLoadBytes,
            Hook::SchedCls => Helper::SkbLoadBytes,
        }));
    }

    /// Finds the snapshot length and hands the frame on; without subscribers it goes to `pass`.
    fn finish(&mut self, pass: Label) {
        self.put(Instruction::load(Size::Double, R1, R9, SUBSCRIBERS));
        self.branch(Bits::B64, Test::Equal, R1, 0, pass);
        let found = self.assembler.label();
        let snaplens = &self.filter.snaplens;
        if snaplens.is_empty() {
            self.alu32(Alu::Move, R3, 0);
        }
        for (at, &(snaplen_bytes, subscribers)) in snaplens.iter().enumerate() {
            self.alu32(Alu::Move, R3, snaplen_bytes as i32);
            // The remaining subscribers have the last, shortest snapshot length.
            if at + 1 < snaplens.len() {
                let mask = self.mask(subscribers);
                self.branch(Bits::B64, Test::AnyBit, R1, mask, found);
            }
        }
        self.assembler.place(found);
        let longest = self.assembler.label();
        self.put(Instruction::load(Size::Word, R2, R9, UNFILTERED_SNAPLEN));
        self.branch(Bits::B64, Test::LessOrEqual, R2, R3, longest);
        self.alu64(Alu::Move, R3, R2);
        self.assembler.place(longest);
        self.put(Instruction::store(Size::Word, R9, SNAPLEN, R3));
        self.alu64(Alu::Move, R1, R6);
        self.assembler.put_map(R2, Map::Jumps as usize);
        self.alu64(Alu::Move, R3, 0);
        self.put(Instruction::call(Helper::TailCall));
    }

    /// Bits as an operand; in r2 when a constant of 31 bits does not hold them.
    pub(super) fn mask(&mut self, bits: u64) -> Operand {
        if let Ok(constant) = i32::try_from(bits) {
            return constant.into();
        }
        for half in Instruction::constant(R2, bits) {
            self.put(half);
        }
        R2.into()
    }

    /// Puts the address of a place on the stack into a register.
    fn address(&mut self, to: Register, offset: i16) {
        self.alu64(Alu::Move, to, R10);
        self.alu64(Alu::Add, to, i32::from(offset));
    }

    pub(super) fn put(&mut self, instruction: Instruction) {
        self.assembler.put(instruction);
    }

    pub(super) fn alu32(&mut self, operation: Alu, to: Register, operand: impl Into<Operand>) {
        self.put(Instruction::alu(Bits::B32, operation, to, operand.into()));
    }

    pub(super) fn alu64(&mut self, operation: Alu, to: Register, operand: impl Into<Operand>) {
        self.put(Instruction::alu(Bits::B64, operation, to, operand.into()));
    }

    pub(super) fn branch(
        &mut self,
        bits: Bits,
        test: Test,
        register: Register,
        operand: impl Into<Operand>,
        to: Label,
    ) {
        self.assembler.branch(bits, test, register, operand, to);
    }
}
