//! Why a classic program is refused.

/// What is wrong with a classic program, or beyond what can be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// There is no instruction.
    #[error("filter program: it is empty, expected at least a return; give a compiled filter")]
    Empty,
    /// The code means nothing.
    #[error(
        "filter program: instruction {position} has the unknown code {code:#06x}; give the output of a pcap-filter compiler"
    )]
    UnknownInstruction {
        /// Index of the instruction, from 0.
        position: usize,
        /// Its code.
        code: u16,
    },
    /// Scratch memory has 16 words.
    #[error(
        "filter program: instruction {position} names word {word} of the scratch memory, which has 16; give a valid program"
    )]
    NoSuchScratchWord {
        /// Index of the instruction, from 0.
        position: usize,
        /// The word.
        word: u32,
    },
    /// A word of scratch memory is read that nothing wrote.
    #[error(
        "filter program: instruction {position} reads word {word} of the scratch memory, which no instruction before it wrote; give a valid program"
    )]
    UnwrittenScratchWord {
        /// Index of the instruction, from 0.
        position: usize,
        /// The word.
        word: usize,
    },
    /// A constant divisor of 0.
    #[error("filter program: instruction {position} divides by 0; change the divisor")]
    DivisionByZero {
        /// Index of the instruction, from 0.
        position: usize,
    },
    /// A constant shift by more than 31 bits.
    #[error(
        "filter program: instruction {position} shifts by {bits} bits, expected 0 to 31; change the shift"
    )]
    ShiftTooFar {
        /// Index of the instruction, from 0.
        position: usize,
        /// The shift.
        bits: u32,
    },
    /// A jump leaves the program.
    #[error(
        "filter program: instruction {position} goes on behind the program's {length} instructions; give a valid program"
    )]
    LeavesProgram {
        /// Index of the instruction, from 0.
        position: usize,
        /// Instructions of the program.
        length: usize,
    },
    /// A jump goes back.
    #[error(
        "filter: instruction {position} jumps back, and loops (protochain) cannot be merged; name the protocol itself, as in 'ip6 proto 6'"
    )]
    Loop {
        /// Index of the instruction, from 0.
        position: usize,
    },
    /// The program asks for something that is no byte of the frame.
    #[error(
        "filter: instruction {position} asks for {what}, which is not in the frame; leave that out of the expression"
    )]
    Ancillary {
        /// Index of the instruction, from 0.
        position: usize,
        /// What it asks for.
        what: &'static str,
    },
    /// The values at a place of the program depend on the way there in too many ways.
    #[error(
        "filter: the program has more than {limit} combinations of place and values; split the expression into several filters"
    )]
    TooManyStates {
        /// The limit.
        limit: usize,
    },
}
