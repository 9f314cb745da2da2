//! Instructions of the classic BPF machine, raw and decoded.

use super::ProgramError;

/// One instruction as libpcap and the kernel lay it out (`struct bpf_insn`, `struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClassicInstruction {
    /// Class, size, mode or operation.
    pub code: u16,
    /// Instructions to skip when a test holds.
    pub jt: u8,
    /// Instructions to skip when it does not.
    pub jf: u8,
    /// Constant, offset or distance.
    pub k: u32,
}

/// Width of a load from the packet; values are in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Width {
    /// 8 bits.
    Byte,
    /// 16 bits.
    Half,
    /// 32 bits.
    Word,
}

impl Width {
    /// Bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Byte => 1,
            Self::Half => 2,
            Self::Word => 4,
        }
    }
}

/// Arithmetic on 32 unsigned bits. Results wrap; a shift by 32 or more gives 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Arithmetic {
    /// Sum.
    Add,
    /// Difference.
    Subtract,
    /// Product.
    Multiply,
    /// Quotient; the filter rejects when the divisor is 0.
    Divide,
    /// Remainder; the filter rejects when the divisor is 0.
    Remainder,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    ExclusiveOr,
    /// Shift to the left.
    ShiftLeft,
    /// Shift to the right.
    ShiftRight,
}

impl Arithmetic {
    /// The result, or `None` for a division by 0.
    pub fn apply(self, left: u32, right: u32) -> Option<u32> {
        Some(match self {
            Self::Add => left.wrapping_add(right),
            Self::Subtract => left.wrapping_sub(right),
            Self::Multiply => left.wrapping_mul(right),
            Self::Divide => left.checked_div(right)?,
            Self::Remainder => left.checked_rem(right)?,
            Self::And => left & right,
            Self::Or => left | right,
            Self::ExclusiveOr => left ^ right,
            Self::ShiftLeft => left.checked_shl(right).unwrap_or(0),
            Self::ShiftRight => left.checked_shr(right).unwrap_or(0),
        })
    }

    /// Whether the operation is commutative.
    pub const fn commutes(self) -> bool {
        matches!(
            self,
            Self::Add | Self::Multiply | Self::And | Self::Or | Self::ExclusiveOr
        )
    }
}

/// Unsigned comparison of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Relation {
    /// Both are the same.
    Equal,
    /// The accumulator is the greater one.
    Greater,
    /// The accumulator is greater, or both are the same.
    GreaterOrEqual,
    /// They share a set bit.
    AnyBit,
}

impl Relation {
    /// Whether it holds.
    pub const fn holds(self, left: u32, right: u32) -> bool {
        match self {
            Self::Equal => left == right,
            Self::Greater => left > right,
            Self::GreaterOrEqual => left >= right,
            Self::AnyBit => left & right != 0,
        }
    }
}

/// Second operand of arithmetic and branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The instruction's constant.
    Constant(u32),
    /// The index register.
    Index,
}

/// A register of the classic machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// A.
    Accumulator,
    /// X.
    Index,
}

/// Where a load takes its value from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The constant.
    Constant(u32),
    /// The frame's length on the wire, in bytes.
    Length,
    /// A word of scratch memory.
    Scratch(usize),
    /// The packet at a constant offset.
    Packet(Width, u32),
    /// The packet at the index register plus a constant.
    PacketIndexed(Width, u32),
    /// Four times the low half of a byte: the length of an IPv4 header.
    HeaderLength(u32),
    /// What is known of the packet beside its bytes.
    Beside(Beside),
    /// The VLAN tag that stands beside the frame.
    Tag(TagField),
}

/// Linux's ancillary data that filters may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Beside {
    /// `SKF_AD_PKTTYPE`: `inbound` and `outbound`.
    PacketType,
    /// `SKF_AD_IFINDEX`: `ifindex`.
    InterfaceIndex,
}

/// What filters may ask of the VLAN tag that the kernel keeps beside a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TagField {
    /// `SKF_AD_VLAN_TAG`: priority and number.
    Control,
    /// `SKF_AD_VLAN_TAG_PRESENT`: 1 when there is a tag, else 0.
    Present,
    /// `SKF_AD_VLAN_TPID`: its EtherType.
    Protocol,
}

/// Where a frame passes: what [`Beside`] asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Whether it leaves the host by this interface.
    pub is_outbound: bool,
    /// The interface's number.
    pub interface_index: u32,
}

impl Origin {
    /// The number that a filter sees, as a packet socket shows it.
    pub const fn value(self, what: Beside) -> u32 {
        /// `PACKET_OUTGOING`; inbound packets are of another type, of which libpcap does not ask.
        const OUTGOING: u32 = 4;
        match what {
            Beside::PacketType => (self.is_outbound as u32) * OUTGOING,
            Beside::InterfaceIndex => self.interface_index,
        }
    }
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sets a register.
    Load(Register, Source),
    /// Puts a register into a word of scratch memory.
    Store(Register, usize),
    /// Computes on the accumulator.
    Compute(Arithmetic, Operand),
    /// Negates the accumulator.
    Negate,
    /// Skips instructions; backwards when negative.
    Jump(i32),
    /// Skips instructions after a test of the accumulator.
    Branch {
        /// The question.
        relation: Relation,
        /// The value to compare the accumulator with.
        operand: Operand,
        /// Instructions to skip when it holds.
        if_true: u8,
        /// Instructions to skip when it does not.
        if_false: u8,
    },
    /// Ends: anything but 0 accepts.
    Return(Option<u32>),
    /// Copies one register into the other, which is named here.
    CopyTo(Register),
}

/// Words of scratch memory.
pub const SCRATCH_WORDS: usize = 16;
/// `-SKF_AD_OFF`: ancillary data begin so far below 0.
const ANCILLARY_BYTES: u32 = 0x1000;

/// In messages.
pub(super) const TAG_BESIDE: &str = "the VLAN tag beside the frame";

const CLASS: u16 = 0x07;
const OPERATION: u16 = 0xf0;
const FROM_INDEX: u16 = 0x08;

impl ClassicInstruction {
    /// Decodes the instruction that stands at `position`.
    ///
    /// # Errors
    /// [`ProgramError`] that names the instruction if it is invalid.
    pub fn decode(self, position: usize) -> Result<Operation, ProgramError> {
        let unknown = || ProgramError::UnknownInstruction {
            position,
            code: self.code,
        };
        let operand = if self.code & FROM_INDEX != 0 {
            Operand::Index
        } else {
            Operand::Constant(self.k)
        };
        Ok(match self.code & CLASS {
            0x00 => Operation::Load(Register::Accumulator, self.source(position, unknown)?),
            0x01 => Operation::Load(
                Register::Index,
                match self.code {
                    0x01 => Source::Constant(self.k),
                    0x81 => Source::Length,
                    0x61 => Source::Scratch(self.scratch(position)?),
                    0xb1 => Source::HeaderLength(self.absolute(position)?),
                    _ => return Err(unknown()),
                },
            ),
            0x02 if self.code == 0x02 => {
                Operation::Store(Register::Accumulator, self.scratch(position)?)
            }
            0x03 if self.code == 0x03 => Operation::Store(Register::Index, self.scratch(position)?),
            0x04 => self.arithmetic(position, operand, unknown)?,
            0x05 => {
                let relation = match self.code & OPERATION {
                    0x00 if self.code == 0x05 => return Ok(Operation::Jump(self.k as i32)),
                    0x10 => Relation::Equal,
                    0x20 => Relation::Greater,
                    0x30 => Relation::GreaterOrEqual,
                    0x40 => Relation::AnyBit,
                    _ => return Err(unknown()),
                };
                Operation::Branch {
                    relation,
                    operand,
                    if_true: self.jt,
                    if_false: self.jf,
                }
            }
            0x06 => match self.code {
                0x06 => Operation::Return(Some(self.k)),
                0x16 => Operation::Return(None),
                _ => return Err(unknown()),
            },
            0x07 => match self.code {
                0x07 => Operation::CopyTo(Register::Index),
                0x87 => Operation::CopyTo(Register::Accumulator),
                _ => return Err(unknown()),
            },
            _ => return Err(unknown()),
        })
    }

    fn source(
        self,
        position: usize,
        unknown: impl Fn() -> ProgramError,
    ) -> Result<Source, ProgramError> {
        let width = match self.code & 0x18 {
            0x00 => Width::Word,
            0x08 => Width::Half,
            0x10 => Width::Byte,
            _ => return Err(unknown()),
        };
        Ok(match self.code & 0xe0 {
            0x20 => match (beside(self.k), tag_field(self.k)) {
                (Some(what), _) => Source::Beside(what),
                (_, Some(field)) => Source::Tag(field),
                _ => Source::Packet(width, self.absolute(position)?),
            },
            0x40 => Source::PacketIndexed(width, self.k),
            0x00 if self.code == 0x00 => Source::Constant(self.k),
            0x80 if self.code == 0x80 => Source::Length,
            0x60 if self.code == 0x60 => Source::Scratch(self.scratch(position)?),
            _ => return Err(unknown()),
        })
    }

    /// A word of scratch memory.
    fn scratch(self, position: usize) -> Result<usize, ProgramError> {
        let word = self.k;
        if word as usize >= SCRATCH_WORDS {
            return Err(ProgramError::NoSuchScratchWord { position, word });
        }
        Ok(word as usize)
    }

    /// A constant offset. From 2 GiB on, it is a negative offset of Linux's ancillary data (`SKF_AD_OFF`).
    fn absolute(self, position: usize) -> Result<u32, ProgramError> {
        if self.k >= 0x8000_0000 {
            return Err(ProgramError::Ancillary {
                position,
                what: ancillary(self.k),
            });
        }
        Ok(self.k)
    }

    fn arithmetic(
        self,
        position: usize,
        operand: Operand,
        unknown: impl Fn() -> ProgramError,
    ) -> Result<Operation, ProgramError> {
        let operator = match self.code & OPERATION {
            0x00 => Arithmetic::Add,
            0x10 => Arithmetic::Subtract,
            0x20 => Arithmetic::Multiply,
            0x30 => Arithmetic::Divide,
            0x40 => Arithmetic::Or,
            0x50 => Arithmetic::And,
            0x60 => Arithmetic::ShiftLeft,
            0x70 => Arithmetic::ShiftRight,
            0x80 if self.code == 0x84 => return Ok(Operation::Negate),
            0x90 => Arithmetic::Remainder,
            0xa0 => Arithmetic::ExclusiveOr,
            _ => return Err(unknown()),
        };
        match (operator, operand) {
            (Arithmetic::Divide | Arithmetic::Remainder, Operand::Constant(0)) => {
                Err(ProgramError::DivisionByZero { position })
            }
            (Arithmetic::ShiftLeft | Arithmetic::ShiftRight, Operand::Constant(bits))
                if bits > 31 =>
            {
                Err(ProgramError::ShiftTooFar { position, bits })
            }
            _ => Ok(Operation::Compute(operator, operand)),
        }
    }
}

/// What a load at a negative offset asks for, of what is known.
const fn beside(k: u32) -> Option<Beside> {
    match k.wrapping_add(ANCILLARY_BYTES) {
        4 => Some(Beside::PacketType),
        8 => Some(Beside::InterfaceIndex),
        _ => None,
    }
}

/// The same of the VLAN tag beside the frame.
const fn tag_field(k: u32) -> Option<TagField> {
    match k.wrapping_add(ANCILLARY_BYTES) {
        44 => Some(TagField::Control),
        48 => Some(TagField::Present),
        60 => Some(TagField::Protocol),
        _ => None,
    }
}

/// Linux's ancillary data at the negative offset `k`.
fn ancillary(k: u32) -> &'static str {
    match k.wrapping_add(ANCILLARY_BYTES) {
        0 => "the protocol of the socket buffer",
        44 | 48 | 60 => TAG_BESIDE,
        _ => "Linux's ancillary data",
    }
}
