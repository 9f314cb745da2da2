//! Valid classic programs that no compiler would write.

use parshall_core::filter::classic::{ClassicInstruction, FrameView};
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};

const LOADS: [u16; 9] = [0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0xb1, 0x80, 0x81];
const ARITHMETIC: [u16; 19] = [
    0x04, 0x14, 0x24, 0x34, 0x44, 0x54, 0x64, 0x74, 0x94, 0xa4, 0x0c, 0x1c, 0x2c, 0x3c, 0x4c, 0x5c,
    0x6c, 0x7c, 0x9c,
];
const BRANCHES: [u16; 8] = [0x15, 0x25, 0x35, 0x45, 0x1d, 0x2d, 0x3d, 0x4d];
/// Numbers that mean something in a header.
const NUMBERS: [u32; 12] = [
    0,
    1,
    4,
    6,
    15,
    17,
    80,
    0x45,
    0x800,
    0x8100,
    0x86dd,
    0x0a00_0001,
];
/// Scratch words in use; the program writes them all first.
const WORDS: u32 = 3;

/// `SKF_AD_OFF` and the fields behind it of the VLAN tag beside the frame.
const ANCILLARY: u32 = 0xffff_f000;
const TAG_FIELDS: [u32; 3] = [44, 48, 60];

/// A program of up to 40 instructions.
pub fn program(random: &mut impl Rng, view: FrameView) -> Vec<ClassicInstruction> {
    let mut program: Vec<ClassicInstruction> = (0..WORDS).map(|word| plain(0x02, word)).collect();
    let length = random.random_range(4..40_usize);
    for at in 0..length {
        let left = (length - at - 1).min(12) as u8;
        let instruction = match random.random_range(0..16) {
            0 if view == FrameView::Untagged => tag_load(random),
            0..5 => load(random),
            5..8 => arithmetic(random),
            8 => plain(
                *[0x02, 0x03].choose(random).unwrap(),
                random.random_range(0..WORDS),
            ),
            9 => plain(
                *[0x60, 0x61].choose(random).unwrap(),
                random.random_range(0..WORDS),
            ),
            10 => plain(*[0x07, 0x87, 0x84].choose(random).unwrap(), 0),
            11 => plain(0x05, u32::from(random.random_range(0..=left))),
            _ => ClassicInstruction {
                code: *BRANCHES.choose(random).unwrap(),
                jt: random.random_range(0..=left),
                jf: random.random_range(0..=left),
                k: number(random),
            },
        };
        program.push(instruction);
    }
    program.push(match random.random_range(0..4) {
        0 => plain(0x16, 0),
        1 => plain(0x06, 0),
        _ => plain(0x06, 262_144),
    });
    program
}

fn plain(code: u16, k: u32) -> ClassicInstruction {
    ClassicInstruction {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

fn number(random: &mut impl Rng) -> u32 {
    match random.random_range(0..4) {
        0 => random.random(),
        1 => random.random_range(0..256),
        _ => *NUMBERS.choose(random).unwrap(),
    }
}

fn load(random: &mut impl Rng) -> ClassicInstruction {
    let code = *LOADS.choose(random).unwrap();
    let offset = match random.random_range(0..12) {
        0 => random.random_range(0..2_000),
        1 => random.random::<u32>() >> 1,
        _ => random.random_range(0..70),
    };
    plain(code, offset)
}

fn tag_load(random: &mut impl Rng) -> ClassicInstruction {
    let code = *[0x20, 0x28, 0x30].choose(random).unwrap();
    plain(code, ANCILLARY + *TAG_FIELDS.choose(random).unwrap())
}

fn arithmetic(random: &mut impl Rng) -> ClassicInstruction {
    let code = *ARITHMETIC.choose(random).unwrap();
    let constant = number(random);
    plain(
        code,
        match code {
            0x64 | 0x74 => constant % 32,
            0x34 | 0x94 => constant.max(1),
            _ => constant,
        },
    )
}
