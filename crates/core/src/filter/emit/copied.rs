//! Bytes of a frame whose start was copied to the stack. A helper loads bytes behind the copy, which are also
//! behind a tag that is not in the packet.

use super::Emitter;
use super::slots::{COPY, COPY_BYTES, SCRATCH};
use crate::filter::classic::Width;
use crate::filter::ebpf::Register::{R1, R2, R4, R8, R10};
use crate::filter::ebpf::{Alu, Bits, Instruction, Register, Size, Test};

impl Emitter<'_> {
    /// Loads from a constant offset into r1.
    pub(super) fn load_copied(&mut self, width: Width, offset: u32) {
        if offset + width.bytes() <= COPY_BYTES {
            self.load_bytewise(width, R10, COPY + offset as i16);
        } else {
            self.alu64(Alu::Move, R1, offset as i32);
            self.load_behind_copy(width);
        }
    }

    /// Loads from the offset r1 plus a constant into r1.
    pub(super) fn load_copied_indexed(&mut self, width: Width, offset: u32) {
        let behind = self.assembler.label();
        let loaded = self.assembler.label();
        let last = (COPY_BYTES - width.bytes()) as i32;
        self.alu64(Alu::Add, R1, offset as i32);
        self.branch(Bits::B64, Test::Greater, R1, last, behind);
        self.alu64(Alu::Move, R4, R10);
        self.alu64(Alu::Add, R4, R1);
        self.load_bytewise(width, R4, COPY);
        self.assembler.jump(loaded);
        self.assembler.place(behind);
        self.load_behind_copy(width);
        self.assembler.place(loaded);
    }

    /// Loads byte by byte into r1: the verifier requires aligned reads of the stack.
    fn load_bytewise(&mut self, width: Width, base: Register, offset: i16) {
        self.put(Instruction::load(Size::Byte, R1, base, offset));
        for byte in 1..width.bytes() as i16 {
            self.alu32(Alu::ShiftLeft, R1, 8);
            self.put(Instruction::load(Size::Byte, R2, base, offset + byte));
            self.alu32(Alu::Or, R1, R2);
        }
    }

    /// Loads from the offset r1, which lies behind the copy, into r1.
    fn load_behind_copy(&mut self, width: Width) {
        self.alu64(Alu::Move, R2, R1);
        self.alu64(Alu::Subtract, R2, R8);
        self.alu64(Alu::Move, R4, width.bytes() as i32);
        self.load_bytes(R2, SCRATCH);
        self.load(width, R10, SCRATCH);
    }
}
