//! Random numbers.

use rand::Rng as _;
use rand_pcg::Pcg64;

/// Name of the algorithm and of its seeding, stored with results.
pub const RNG_NAME: &str = "PCG64 XSL-RR (rand_pcg 0.10), seeded by SplitMix64 of seed and stream";

/// PCG64 (XSL-RR 128/64, O'Neill 2014), with the conversions to real numbers and ranges that belong
/// to the sequence: they are written here, not taken from a library that may change them.
///
/// One seed has 2^64 streams, so that sizes, gaps and flows (or the stations of a model) draw independently:
/// the number of draws of one does not change the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rng {
    pcg: Pcg64,
}

impl Rng {
    /// The stream `stream` of the seed `seed`. Neighbouring seeds and streams are unrelated: 64-bit
    /// numbers are spread to PCG's 128 bits of state and 127 of increment by SplitMix64.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut spread = seed;
        let state = u128::from(split_mix(&mut spread)) << 64 | u128::from(split_mix(&mut spread));
        // Streams of one seed differ in the increment and in the state.
        let mut spread = split_mix(&mut spread) ^ stream.wrapping_mul(0x9FB2_1C65_1E98_DF25);
        let increment =
            u128::from(split_mix(&mut spread)) << 64 | u128::from(split_mix(&mut spread));
        Self {
            pcg: Pcg64::new(state ^ increment.rotate_left(64), increment),
        }
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.pcg.next_u64()
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform in (0, 1): an odd multiple of 2^-53. Its logarithm is finite.
    #[inline]
    pub fn open_unit(&mut self) -> f64 {
        ((self.bits() >> 12) as f64 + 0.5) * (1.0 / (1_u64 << 52) as f64)
    }

    /// Uniform in 0..`bound`, without bias (Lemire 2019). A bound of 0 gives 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let mut product = u128::from(self.bits()) * u128::from(bound);
        if (product as u64) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u64) < threshold {
                product = u128::from(self.bits()) * u128::from(bound);
            }
        }
        (product >> 64) as u64
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
