//! Classic BPF programs, the output of libpcap's compiler.

mod error;
mod instruction;
mod interpreter;
mod packet;
mod program;

pub use error::ProgramError;
pub use instruction::{
    Arithmetic, Beside, ClassicInstruction, Operand, Operation, Origin, Register, Relation,
    SCRATCH_WORDS, Source, TagField, Width,
};
pub(super) use interpreter::read;
pub use packet::{FrameView, Packet, Tag};
pub use program::ClassicProgram;
pub(super) use program::Live;
