//! Instructions of the eBPF machine, as few as the filters need.

use std::fmt;

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Register {
    /// Result of a helper, and of the program.
    R0 = 0,
    /// First argument; helpers overwrite it.
    R1,
    /// Second argument; helpers overwrite it.
    R2,
    /// Third argument; helpers overwrite it.
    R3,
    /// Fourth argument; helpers overwrite it.
    R4,
    /// Fifth argument; helpers overwrite it.
    R5,
    /// Kept across helpers.
    R6,
    /// Kept across helpers.
    R7,
    /// Kept across helpers.
    R8,
    /// Kept across helpers.
    R9,
    /// End of the stack, read only.
    R10,
}

/// Bytes of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// 1 byte.
    Byte,
    /// 2 bytes.
    Half,
    /// 4 bytes.
    Word,
    /// 8 bytes.
    Double,
}

impl Size {
    const fn code(self) -> u8 {
        match self {
            Self::Word => 0x00,
            Self::Half => 0x08,
            Self::Byte => 0x10,
            Self::Double => 0x18,
        }
    }
}

/// Second operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A constant; 64-bit operations extend its sign.
    Immediate(i32),
    /// A register.
    Register(Register),
}

impl From<Register> for Operand {
    fn from(register: Register) -> Self {
        Self::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(constant: i32) -> Self {
        Self::Immediate(constant)
    }
}

/// Arithmetic; 32-bit operations clear the upper half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Alu {
    /// Sum.
    Add = 0x00,
    /// Difference.
    Subtract = 0x10,
    /// Product.
    Multiply = 0x20,
    /// Unsigned quotient.
    Divide = 0x30,
    /// Bitwise or.
    Or = 0x40,
    /// Bitwise and.
    And = 0x50,
    /// Shift to the left.
    ShiftLeft = 0x60,
    /// Shift to the right.
    ShiftRight = 0x70,
    /// Unsigned remainder.
    Remainder = 0x90,
    /// Bitwise exclusive or.
    ExclusiveOr = 0xa0,
    /// The second operand.
    Move = 0xb0,
}

/// Tests of a jump, unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Test {
    /// Equal.
    Equal = 0x10,
    /// Greater.
    Greater = 0x20,
    /// Common bits.
    AnyBit = 0x40,
    /// Greater or equal.
    GreaterOrEqual = 0x30,
    /// Not equal.
    NotEqual = 0x50,
    /// Less.
    Less = 0xa0,
    /// Less or equal.
    LessOrEqual = 0xb0,
}

impl Test {
    /// The test that holds when this one does not, if the machine has it.
    pub const fn opposite(self) -> Option<Self> {
        Some(match self {
            Self::Equal => Self::NotEqual,
            Self::NotEqual => Self::Equal,
            Self::Greater => Self::LessOrEqual,
            Self::LessOrEqual => Self::Greater,
            Self::Less => Self::GreaterOrEqual,
            Self::GreaterOrEqual => Self::Less,
            Self::AnyBit => return None,
        })
    }
}

/// The width of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    /// The lower half.
    B32,
    /// The whole register.
    B64,
}

/// One slot of a program, as the kernel lays it out (`struct bpf_insn`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Instruction {
    /// Class, size, mode or operation.
    pub code: u8,
    /// Destination in the low half, source in the high half.
    pub registers: u8,
    /// Distance of a jump in slots, or offset of a memory access in bytes.
    pub offset: i16,
    /// Constant.
    pub immediate: i32,
}

impl fmt::Debug for Instruction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{:02x} {:02x} {:+} {:#x}",
            self.code, self.registers, self.offset, self.immediate
        )
    }
}

impl Instruction {
    const fn new(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Self {
        // The halves of the register byte change places with the order of bytes.
        let registers = if cfg!(target_endian = "little") {
            source << 4 | destination
        } else {
            destination << 4 | source
        };
        Self {
            code,
            registers,
            offset,
            immediate,
        }
    }

    fn with_operand(code: u8, register: Register, operand: Operand, offset: i16) -> Self {
        let (flag, source, constant) = match operand {
            Operand::Immediate(constant) => (0x00, 0, constant),
            Operand::Register(source) => (0x08, source as u8, 0),
        };
        Self::new(code | flag, register as u8, source, offset, constant)
    }

    /// Arithmetic on a register.
    pub fn alu(bits: Bits, operation: Alu, to: Register, operand: Operand) -> Self {
        let class = match bits {
            Bits::B32 => 0x04,
            Bits::B64 => 0x07,
        };
        Self::with_operand(class | operation as u8, to, operand, 0)
    }

    /// Network byte order of the low 16 or 32 bits to the machine's, or back; clears the rest.
    pub fn network_order(register: Register, bits: i32) -> Self {
        Self::new(0xdc, register as u8, 0, 0, bits)
    }

    /// Loads from memory.
    pub fn load(size: Size, to: Register, base: Register, offset: i16) -> Self {
        Self::new(0x61 | size.code(), to as u8, base as u8, offset, 0)
    }

    /// Stores a register into memory.
    pub fn store(size: Size, base: Register, offset: i16, value: Register) -> Self {
        Self::new(0x63 | size.code(), base as u8, value as u8, offset, 0)
    }

    /// Stores a constant into memory.
    pub fn store_constant(size: Size, base: Register, offset: i16, constant: i32) -> Self {
        Self::new(0x62 | size.code(), base as u8, 0, offset, constant)
    }

    /// Both slots of a 64-bit constant.
    pub fn constant(to: Register, constant: u64) -> [Self; 2] {
        [
            Self::new(0x18, to as u8, 0, 0, constant as u32 as i32),
            Self::new(0x00, 0, 0, 0, (constant >> 32) as u32 as i32),
        ]
    }

    /// Both slots of the address of an array's first value; the map's file descriptor is filled in at load.
    pub fn map_value(to: Register) -> [Self; 2] {
        const PSEUDO_MAP_VALUE: u8 = 2;
        [
            Self::new(0x18, to as u8, PSEUDO_MAP_VALUE, 0, 0),
            Self::new(0x00, 0, 0, 0, 0),
        ]
    }

    /// Both slots of a map's address; the map's file descriptor is filled in at load.
    pub fn map(to: Register) -> [Self; 2] {
        const PSEUDO_MAP_FD: u8 = 1;
        [
            Self::new(0x18, to as u8, PSEUDO_MAP_FD, 0, 0),
            Self::new(0x00, 0, 0, 0, 0),
        ]
    }

    /// Calls a helper of the kernel.
    pub fn call(helper: Helper) -> Self {
        Self::new(0x85, 0, 0, 0, helper as i32)
    }

    /// Ends the program.
    pub fn exit() -> Self {
        Self::new(0x95, 0, 0, 0, 0)
    }

    /// Jumps when a test holds.
    pub fn branch(
        bits: Bits,
        test: Test,
        register: Register,
        operand: Operand,
        distance: i16,
    ) -> Self {
        let class = match bits {
            Bits::B32 => 0x06,
            Bits::B64 => 0x05,
        };
        Self::with_operand(class | test as u8, register, operand, distance)
    }

    /// Jumps.
    pub fn jump(distance: i16) -> Self {
        Self::new(0x05, 0, 0, distance, 0)
    }

    /// Jumps further than 16 bits reach; kernels from 6.6 know it.
    pub fn jump_far(distance: i32) -> Self {
        Self::new(0x06, 0, 0, 0, distance)
    }
}

/// Helpers of the kernel, by their numbers in `linux/bpf.h`. None is restricted to GPL programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Helper {
    /// `bpf_map_lookup_elem`
    MapLookup = 1,
    /// `bpf_tail_call`
    TailCall = 12,
    /// `bpf_skb_load_bytes`
    SkbLoadBytes = 26,
    /// `bpf_xdp_get_buff_len`
    XdpGetBuffLen = 188,
    /// `bpf_xdp_load_bytes`
    XdpLoadBytes = 189,
}
