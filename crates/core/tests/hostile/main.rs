//! Hostile input to everything that reads files: no panic, and within [`limits`] of time and memory.
//!
//! Each test parses some thousand mutants of files that our own writers made. `make attack` runs the same
//! functions under a coverage-guided fuzzer: `tests/hostile/fuzz`.

mod limits;
mod mutants;
mod parsers;
mod seeds;

macro_rules! attack {
    ($($parser:ident)*) => {$(
        #[test]
        fn $parser() {
            let name = stringify!($parser);
            let within = |bytes: &[u8]| limits::within(name, || parsers::$parser(bytes));
            mutants::each(name, &seeds::$parser(), within);
        }
    )*};
}

parsers::for_each_parser! { attack }
