//! What anybody may put into a file, against everything that reads files: no panic, and within [`limits`] of time
//! and memory.
//!
//! As tests the parsers get some thousand mutants each of what our own writers made. `make attack` gives the same
//! functions to a fuzzer that is guided by coverage, for as long as one likes: `tests/hostile/fuzz`.

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
