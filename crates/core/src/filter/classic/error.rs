//! Why a classic program is refused.

/// An invalid classic program, or one that cannot be merged. `position` is the index of the instruction, from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ProgramError {
    /// There is no instruction.
    #[error("filter program: it is empty, expected at least a return; give a compiled filter")]
    Empty,
    /// The code is invalid.
    #[error(
        "filter program: instruction {position} has the unknown code {code:#06x}; give the output of a pcap-filter compiler"
    )]
    UnknownInstruction { position: usize, code: u16 },
    /// Scratch memory has 16 words.
    #[error(
        "filter program: instruction {position} names word {word} of the scratch memory, which has 16; give a valid program"
    )]
    NoSuchScratchWord { position: usize, word: u32 },
    /// A word of scratch memory is read that nothing wrote.
    #[error(
        "filter program: instruction {position} reads word {word} of the scratch memory, which no instruction before it wrote; give a valid program"
    )]
    UnwrittenScratchWord { position: usize, word: usize },
    /// A constant divisor of 0.
    #[error("filter program: instruction {position} divides by 0; change the divisor")]
    DivisionByZero { position: usize },
    /// A constant shift by more than 31 bits.
    #[error(
        "filter program: instruction {position} shifts by {bits} bits, expected 0 to 31; change the shift"
    )]
    ShiftTooFar { position: usize, bits: u32 },
    /// A jump leaves the program.
    #[error(
        "filter program: instruction {position} goes on behind the program's {length} instructions; give a valid program"
    )]
    LeavesProgram { position: usize, length: usize },
    /// The program loads data outside the frame.
    #[error(
        "filter: instruction {position} asks for {what}, which is not in the frame; leave that out of the expression"
    )]
    Ancillary { position: usize, what: &'static str },
    /// A packet decides whether a load lies before or behind the tag that is not in the frame.
    #[error(
        "filter: instruction {position} loads from an offset that may lie before or behind a VLAN tag; load from a constant offset there"
    )]
    AroundTag { position: usize },
    /// Too many combinations of values reach an instruction.
    #[error(
        "filter: the program has more than {limit} combinations of place and values; split the expression into several filters"
    )]
    TooManyStates { limit: usize },
}
