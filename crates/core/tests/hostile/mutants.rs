//! Files with a few random faults.

use rand::{Rng, RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::{env, fs};

const WORDS: [u32; 9] = [
    0,
    1,
    2,
    0x7F,
    0xFFFF,
    0x10000,
    0x7FFF_FFFF,
    0x8000_0000,
    u32::MAX,
];
const NUMBERS: [&str; 12] = [
    "0",
    "-1",
    "7",
    "1e9",
    "1e-300",
    "nan",
    "inf",
    "65536",
    "4294967296",
    "18446744073709551616",
    "1.7",
    "",
];

/// Gives `parse` the seeds, all of which it must understand, and so many mutants of them, or `PARSHALL_MUTANTS`.
pub fn each(name: &str, mutants: u64, seeds: &[Vec<u8>], parse: impl Fn(&[u8]) -> bool) {
    let mutants =
        env::var("PARSHALL_MUTANTS").map_or(mutants, |text| text.parse().expect("a number"));
    for (number, seed) in seeds.iter().enumerate() {
        assert!(
            attack(name, seed, &parse),
            "{name}: seed {number} is not understood"
        );
    }
    let mut random = Pcg64Mcg::seed_from_u64(mutants);
    for _ in 0..mutants {
        let seed = &seeds[random.random_range(0..seeds.len())];
        attack(name, &mutant(seed, &mut random), &parse);
    }
}

/// Saves the input on which `parse` failed, and prints its path.
fn attack(name: &str, input: &[u8], parse: impl Fn(&[u8]) -> bool) -> bool {
    catch_unwind(AssertUnwindSafe(|| parse(input))).unwrap_or_else(|panic| {
        let kept = env::temp_dir().join(format!("parshall-{name}-{}", std::process::id()));
        fs::write(&kept, input).expect("room for what failed");
        eprintln!("{name}: the input is kept in {}", kept.display());
        resume_unwind(panic)
    })
}

fn mutant(seed: &[u8], random: &mut Pcg64Mcg) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..[1, 1, 1, 2, 4][random.random_range(0..5)] {
        let at = random.random_range(0..=bytes.len());
        let end = |most: usize, random: &mut Pcg64Mcg| {
            (at + random.random_range(1..=most)).min(bytes.len())
        };
        match random.random_range(0..8) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
            2 if at < bytes.len() => bytes[at] = random.random(),
            3 => {
                let word = WORDS[random.random_range(0..WORDS.len())];
                let word = if random.random() {
                    word.to_le_bytes()
                } else {
                    word.to_be_bytes()
                };
                let at = at / 4 * 4;
                for (byte, value) in bytes.iter_mut().skip(at).zip(word) {
                    *byte = value;
                }
            }
            4 => {
                let end = end(40, random);
                drop(bytes.drain(at..end));
            }
            5 => {
                let end = end(200, random);
                let twice = bytes[at..end].to_vec();
                bytes.splice(at..at, twice);
            }
            6 => other_number(&mut bytes, at, random),
            7 if random.random() => bytes.truncate(at),
            _ => {
                let mut noise = vec![0; random.random_range(1..40)];
                random.fill_bytes(&mut noise);
                bytes.splice(at..at, noise);
            }
        }
    }
    bytes
}

/// Puts another number in the place of the first one behind `at`, if this is text with numbers in it.
fn other_number(bytes: &mut Vec<u8>, at: usize, random: &mut Pcg64Mcg) {
    let Some(begin) = bytes[at..]
        .iter()
        .position(u8::is_ascii_digit)
        .map(|place| at + place)
    else {
        return;
    };
    let digits = bytes[begin..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let number = NUMBERS[random.random_range(0..NUMBERS.len())];
    bytes.splice(begin..begin + digits, number.bytes());
}
