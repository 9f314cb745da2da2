//! The eBPF machine: instructions and an assembler.

mod assembler;
mod instruction;

pub use assembler::{Assembler, Label, Relocation};
pub use instruction::{Alu, Bits, Helper, Instruction, Operand, Register, Size, Test};
