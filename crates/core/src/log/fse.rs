//! The two length codes of zstd with the tables that every decoder has built in (RFC 8878, 3.1.1.3.2.2).
//!
//! Only what [`super::repeats`] needs: the encoder's side of finite state entropy for literal and match
//! lengths. All tables are made at compile time.

/// Both predefined tables have 64 states.
const STATE_BITS: u32 = 6;
const STATES: usize = 1 << STATE_BITS;
/// Lengths below this have their code in a table.
const SHORT_LENGTHS: usize = 128;

/// How a symbol leads from one state to the next.
#[derive(Clone, Copy)]
struct Transition {
    /// Added to a state it gives, in the upper half, the number of bits to write.
    bits_offset: u32,
    /// Added to what is left of the state it gives the place in `next_states`.
    state_offset: i32,
}

/// A length as a code and the bits behind it.
#[derive(Clone, Copy)]
struct LengthCode {
    code: u8,
    extra_bits: u8,
    baseline: u32,
}

/// Codes lengths of one kind.
pub struct LengthCoder<const CODES: usize> {
    next_states: [u16; STATES],
    transitions: [Transition; CODES],
    lengths: [LengthCode; CODES],
    short: [u8; SHORT_LENGTHS],
    /// The code of a long length is this plus the place of its highest bit.
    long_code_offset: u32,
    /// The length that code 0 stands for.
    shortest: u32,
}

/// `Literals_Length_Code` and its default distribution.
pub static LITERAL_LENGTHS: LengthCoder<36> = LengthCoder::new(
    [
        4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1,
        1, 1, -1, -1, -1, -1,
    ],
    [
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10,
        11, 12, 13, 14, 15, 16,
    ],
    0,
);

/// `Match_Length_Code` and its default distribution.
pub static MATCH_LENGTHS: LengthCoder<53> = LengthCoder::new(
    [
        1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
    ],
    [
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
    ],
    3,
);

impl<const CODES: usize> LengthCoder<CODES> {
    /// From a distribution (-1 means less than one) and the extra bits of each code.
    const fn new(distribution: [i8; CODES], extra_bits: [u8; CODES], shortest: u32) -> Self {
        let mut lengths = [LengthCode {
            code: 0,
            extra_bits: 0,
            baseline: 0,
        }; CODES];
        let mut short = [0u8; SHORT_LENGTHS];
        let mut baseline = 0u32;
        let mut code = 0;
        while code < CODES {
            lengths[code] = LengthCode {
                code: code as u8,
                extra_bits: extra_bits[code],
                baseline,
            };
            let end = baseline + (1 << extra_bits[code]);
            while baseline < end {
                if (baseline as usize) < SHORT_LENGTHS {
                    short[baseline as usize] = code as u8;
                }
                baseline += 1;
            }
            code += 1;
        }
        let last = lengths[CODES - 1];
        Self {
            next_states: next_states(&distribution),
            transitions: transitions(&distribution),
            lengths,
            short,
            long_code_offset: CODES as u32 - 1 - last.extra_bits as u32,
            shortest,
        }
    }

    #[inline]
    fn code_of(&self, length: u32) -> (LengthCode, u32) {
        let length = length - self.shortest;
        let code = match self.short.get(length as usize) {
            Some(code) => *code as usize,
            None => (self.long_code_offset + length.ilog2()) as usize,
        };
        let code = self.lengths[code];
        (code, length - code.baseline)
    }

    /// The state after the last length, which is coded first.
    #[inline]
    pub fn start(&self, length: u32) -> u32 {
        let (code, _) = self.code_of(length);
        let transition = self.transitions[code.code as usize];
        let bits = (transition.bits_offset + (1 << 15)) >> 16;
        let state = (bits << 16) - transition.bits_offset;
        self.follow(state, bits, transition)
    }

    /// Writes what leads from `state` to one that means `length`.
    #[inline]
    pub fn step(&self, state: u32, length: u32, bits: &mut BitWriter) -> u32 {
        let (code, _) = self.code_of(length);
        let transition = self.transitions[code.code as usize];
        let count = (state + transition.bits_offset) >> 16;
        bits.add(state & ((1 << count) - 1), count);
        self.follow(state, count, transition)
    }

    /// Writes the bits behind the code of a length.
    #[inline]
    pub fn extra(&self, length: u32, bits: &mut BitWriter) {
        let (code, extra) = self.code_of(length);
        bits.add(extra, u32::from(code.extra_bits));
    }

    /// Writes the state that the decoder starts with.
    #[inline]
    pub fn finish(&self, state: u32, bits: &mut BitWriter) {
        bits.add(state & (STATES as u32 - 1), STATE_BITS);
    }

    #[inline]
    fn follow(&self, state: u32, bits: u32, transition: Transition) -> u32 {
        let place = (state >> bits) as i32 + transition.state_offset;
        u32::from(self.next_states[place as usize & (STATES - 1)])
    }
}

/// The symbol of each state, as RFC 8878, 4.1.1 spreads them.
const fn spread(distribution: &[i8]) -> [usize; STATES] {
    let mut symbols = [0usize; STATES];
    let mut free = STATES;
    let mut symbol = 0;
    while symbol < distribution.len() {
        if distribution[symbol] == -1 {
            free -= 1;
            symbols[free] = symbol;
        }
        symbol += 1;
    }
    let mut place = 0;
    let mut symbol = 0;
    while symbol < distribution.len() {
        let mut left = distribution[symbol];
        while left > 0 {
            symbols[place] = symbol;
            place = (place + STATES / 2 + STATES / 8 + 3) % STATES;
            while place >= free {
                place = (place + STATES / 2 + STATES / 8 + 3) % STATES;
            }
            left -= 1;
        }
        symbol += 1;
    }
    symbols
}

const fn count_of(probability: i8) -> usize {
    if probability < 0 {
        1
    } else {
        probability as usize
    }
}

/// The states sorted by symbol, each with the number that a state has while it is written.
const fn next_states(distribution: &[i8]) -> [u16; STATES] {
    let symbols = spread(distribution);
    let mut next = [0u16; STATES];
    let mut at = 0;
    let mut symbol = 0;
    while symbol < distribution.len() {
        let mut state = 0;
        while state < STATES {
            if symbols[state] == symbol {
                next[at] = (STATES + state) as u16;
                at += 1;
            }
            state += 1;
        }
        symbol += 1;
    }
    next
}

const fn transitions<const CODES: usize>(distribution: &[i8; CODES]) -> [Transition; CODES] {
    let mut all = [Transition {
        bits_offset: 0,
        state_offset: 0,
    }; CODES];
    let mut first = 0;
    let mut symbol = 0;
    while symbol < CODES {
        let count = count_of(distribution[symbol]);
        // A symbol that has `count` states is left with this many bits, or one fewer.
        let bits_max = if count == 1 {
            STATE_BITS
        } else {
            STATE_BITS - (count as u32 - 1).ilog2()
        };
        all[symbol] = Transition {
            bits_offset: (bits_max << 16) - ((count as u32) << bits_max),
            state_offset: first as i32 - count as i32,
        };
        first += count;
        symbol += 1;
    }
    all
}

/// A bit stream that is read from its end.
pub struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    waiting: u64,
    waiting_bits: u32,
}

impl<'a> BitWriter<'a> {
    /// Appends to `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self {
            out,
            waiting: 0,
            waiting_bits: 0,
        }
    }

    /// Adds the low `count` bits; the others are 0. At most 56 between two calls of [`BitWriter::flush`].
    #[inline]
    pub fn add(&mut self, value: u32, count: u32) {
        self.waiting |= u64::from(value) << self.waiting_bits;
        self.waiting_bits += count;
    }

    /// Writes the whole bytes that wait.
    #[inline]
    pub fn flush(&mut self) {
        let bytes = self.waiting_bits as usize / 8;
        let end = self.out.len() + bytes;
        self.out.extend_from_slice(&self.waiting.to_le_bytes());
        self.out.truncate(end);
        self.waiting >>= 8 * bytes;
        self.waiting_bits %= 8;
    }

    /// Marks the end and writes the rest.
    pub fn finish(mut self) {
        self.add(1, 1);
        self.flush();
        if self.waiting_bits > 0 {
            self.out.push(self.waiting as u8);
        }
    }
}
