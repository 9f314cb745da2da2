//! libFuzzer's program: `PARSHALL_PARSER` names the function of `parsers.rs` that gets the inputs.

#![no_main]

#[path = "../../../../crates/core/tests/hostile/limits.rs"]
mod limits;
#[path = "../../../../crates/core/tests/hostile/parsers.rs"]
mod parsers;
#[path = "../../../../crates/core/tests/hostile/seeds.rs"]
mod seeds;

use std::sync::OnceLock;

type Parser = fn(&[u8]) -> bool;

static PARSER: OnceLock<(String, Parser)> = OnceLock::new();

macro_rules! choose {
    ($($parser:ident)*) => {
        /// The parser of a name, and good inputs for it.
        fn choose(name: &str) -> Option<(Parser, Vec<Vec<u8>>)> {
            match name {
                $(stringify!($parser) => Some((parsers::$parser, seeds::$parser())),)*
                _ => None,
            }
        }
    };
}

parsers::for_each_parser! { choose }

libfuzzer_sys::fuzz_target!(
    init: {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let Some((parser, seeds)) = choose(&variable("PARSHALL_PARSER")) else {
            panic!("no parser {:?}; see parsers.rs", variable("PARSHALL_PARSER"));
        };
        // The corpus that libFuzzer is about to read.
        let corpus = std::path::PathBuf::from(variable("PARSHALL_CORPUS"));
        for (number, seed) in seeds.iter().enumerate() {
            std::fs::write(corpus.join(format!("seed-{number}")), seed).expect("room for seeds");
        }
        PARSER.set((variable("PARSHALL_PARSER"), parser)).ok().expect("once");
    },
    |bytes: &[u8]| {
        let (name, parse) = PARSER.get().expect("set");
        limits::within(name, || parse(bytes));
    }
);
