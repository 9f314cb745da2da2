//! Every parser of foreign input, run to the end of its input. Each returns whether the input was valid.

use parshall_core::convert::{self, ConvertOptions};
use parshall_core::distributions::{AnyDistribution, Distribution as _, GapDistribution, Rng};
use parshall_core::filter::classic::{ClassicInstruction, ClassicProgram};
use parshall_core::filter::{MergedFilter, Subscription};
use parshall_core::queueing::{Model, Network, RunOptions, Traces, run};
use parshall_core::sizes::{self, Parameters, SizeCounts, SizeDistribution, SizesError, TwoStage};
use parshall_core::tcp_log::LogReader;
use parshall_core::trace::Reader;
use std::error::Error;
use std::io::{Cursor, sink};
use std::sync::atomic::AtomicBool;

/// Gives a macro the names of all parsers; `seeds` has good inputs under the same names.
macro_rules! for_each_parser {
    ($macro:ident) => {
        $macro! { logs conversions captures captured_sizes sizes dist procfs distributions models filters }
    };
}
pub(crate) use for_each_parser;

pub fn logs(bytes: &[u8]) -> bool {
    let Ok(mut log) = LogReader::new(bytes, "log".into()) else {
        return false;
    };
    let is_good = log.by_ref().all(|batch| batch.is_ok());
    is_good && log.ledger().is_some()
}

pub fn conversions(bytes: &[u8]) -> bool {
    let mut understood = false;
    for format in convert::Format::ALL {
        let Ok(log) = LogReader::new(Cursor::new(bytes), "log".into()) else {
            return false;
        };
        understood |= convert::convert(log, format, sink(), ConvertOptions::default()).is_ok();
    }
    understood
}

fn capture(bytes: &[u8]) -> Option<Reader> {
    Reader::new(Box::new(Cursor::new(bytes.to_vec())), "capture").ok()
}

pub fn captures(bytes: &[u8]) -> bool {
    let Some(mut reader) = capture(bytes) else {
        return false;
    };
    loop {
        match reader.next() {
            Ok(Some(packet)) => drop(std::hint::black_box(packet.captured.to_vec())),
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

pub fn captured_sizes(bytes: &[u8]) -> bool {
    let Some(mut reader) = capture(bytes) else {
        return false;
    };
    if let Some(mut again) = capture(bytes) {
        let _ = sizes::trace_gaps_ns(&mut again, 1 << 20);
    }
    let counted = sizes::count_trace(&mut reader, |_| true);
    if let Ok((counts, ledger)) = &counted {
        assert_eq!(
            ledger.ipv4 + ledger.ipv6 + ledger.not_ip + ledger.cut_short,
            ledger.seen
        );
        represented(counts);
    }
    counted.is_ok()
}

fn represented(counts: &SizeCounts) {
    if let Ok(distribution) = TwoStage::from_counts(counts, &Parameters::default()) {
        drawn(&distribution);
        let _ = sizes::write_procfs(&distribution, sink(), false);
    }
}

fn drawn(distribution: &TwoStage) {
    let mut rng = Rng::new(1, 1);
    for _ in 0..100 {
        assert!(distribution.sample(&mut rng) <= distribution.maximum_bytes());
    }
}

fn counted(counts: Result<SizeCounts, SizesError>) -> bool {
    match counts {
        Ok(counts) => represented(&counts),
        Err(error) => return refused(&error),
    }
    true
}

/// A refusal, before it is made safe for a terminal.
fn refused(error: &dyn Error) -> bool {
    let message = error.to_string();
    assert!(message.len() < 2000, "{message}");
    false
}

pub fn sizes(bytes: &[u8]) -> bool {
    counted(sizes::read_sizes(bytes, "sizes"))
}

pub fn dist(bytes: &[u8]) -> bool {
    counted(sizes::read_dist(bytes, "dist", ' '))
}

pub fn procfs(bytes: &[u8]) -> bool {
    match sizes::read_procfs(bytes, "procfs") {
        Ok(distribution) => drawn(&distribution),
        Err(error) => return refused(&error),
    }
    true
}

pub fn distributions(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let mut rng = Rng::new(1, 1);
    let mut understood = match AnyDistribution::of_times(text) {
        Ok(distribution) => (0..100).map(|_| distribution.sample(&mut rng)).sum::<f64>() > f64::MIN,
        Err(error) => refused(&error),
    };
    for mean_gap_ns in [None, Some(2000.0)] {
        if let Ok(distribution) = GapDistribution::parse(text, mean_gap_ns) {
            understood = true;
            let mut process = distribution.start(&mut rng);
            for _ in 0..100 {
                let gap_ns = process.next_gap_ns(&mut rng);
                assert!(gap_ns >= 0.0, "{text}: a gap of {gap_ns} ns");
            }
        }
    }
    // A text that names a file is a user's own order to read it.
    if !text.contains(':') {
        understood |= SizeDistribution::parse(text, &Parameters::default()).is_ok();
    }
    understood
}

pub fn models(bytes: &[u8]) -> bool {
    let Ok(model) = serde_json::from_slice::<Model>(bytes) else {
        return false;
    };
    match Network::new(model, &Traces::default(), true) {
        Ok(network) => {
            let options = RunOptions {
                duration_ns: Some(1e6),
                warm_up_ns: Some(0.0),
                replications: 1,
                threads: Some(1),
                allow_unstable: true,
                jobs_max: 20_000,
                events_max: 50_000,
                ..RunOptions::default()
            };
            match run(&network, &options, &AtomicBool::new(false)) {
                Ok(_) => true,
                Err(error) => refused(&error),
            }
        }
        Err(error) => refused(&error),
    }
}

/// Eight bytes are an instruction, as the kernel has them; a ret without a value lies between programs.
pub fn filters(bytes: &[u8]) -> bool {
    let instructions: Vec<ClassicInstruction> = bytes
        .chunks_exact(8)
        .take(256)
        .map(|of| ClassicInstruction {
            code: u16::from_le_bytes([of[0], of[1]]),
            jt: of[2],
            jf: of[3],
            k: u32::from_le_bytes([of[4], of[5], of[6], of[7]]),
        })
        .collect();
    let programs = instructions.split(|one| one.code == RETURN_A);
    let subscriptions: Vec<Subscription> = (0..)
        .zip(
            programs
                .filter_map(|one| ClassicProgram::new(one).ok())
                .take(8),
        )
        .map(|(subscriber, program)| Subscription {
            subscriber,
            program,
            snaplen_bytes: 96,
        })
        .collect();
    let Ok(merged) = MergedFilter::new(&subscriptions) else {
        return false;
    };
    for frame in crate::seeds::frames() {
        let accepted = merged.subscribers(&frame);
        for subscription in &subscriptions {
            let accepts = subscription.program.run(&frame) != 0;
            assert_eq!(
                accepted >> subscription.subscriber & 1 == 1,
                accepts,
                "{subscription:?}"
            );
        }
    }
    !subscriptions.is_empty()
}

const RETURN_A: u16 = 0x16;
