//! Hostile input to everything that reads files: no panic, and within [`limits`] of time and memory.
//!
//! Each test parses a thousand mutants of files that our own writers made, or ten thousand in `make test-long`. `make
//! attack` runs the same functions under a coverage-guided fuzzer: `tests/hostile/fuzz`.

mod limits;
mod mutants;
mod parsers;
mod seeds;

fn attack(name: &str, mutants: u64, seeds: &[Vec<u8>], parse: fn(&[u8]) -> bool) {
    mutants::each(name, mutants, seeds, |bytes| {
        limits::within(name, || parse(bytes))
    });
}

macro_rules! attack {
    ($($parser:ident)*) => {
        $(
            #[test]
            fn $parser() {
                attack(stringify!($parser), 1_000, &seeds::$parser(), parsers::$parser);
            }
        )*

        mod long_attack {
            $(
                #[test]
                #[ignore = "10,000 mutants: make test-long"]
                fn $parser() {
                    let seeds = crate::seeds::$parser();
                    crate::attack(stringify!($parser), 10_000, &seeds, crate::parsers::$parser);
                }
            )*
        }
    };
}

parsers::for_each_parser! { attack }
