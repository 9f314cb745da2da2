//! What can be wrong with a model or its run; every message is one line with the remedy.

use thiserror::Error;

use crate::laws::LawError;

/// Why a model cannot be run, or why a run ended early.
#[derive(Debug, Error)]
pub enum ModelError {
    /// The text is no model.
    #[error("the model cannot be read: {0}; see docs/formats/model-file.md for its fields")]
    Syntax(#[from] serde_json::Error),
    /// A name that nothing in the model has.
    #[error("{place}: no {kind} {name:?} in the model; {known}")]
    Unknown {
        /// Where the name is used.
        place: String,
        /// What should have it.
        kind: &'static str,
        /// The name.
        name: String,
        /// Which names there are.
        known: String,
    },
    /// A name that two parts have.
    #[error("two {kind} are called {name:?}; rename one of them")]
    Twice {
        /// What has the name, in the plural.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A law that cannot be.
    #[error("{place}: {error}")]
    Law {
        /// Where it is used.
        place: String,
        /// What is wrong with it.
        error: LawError,
    },
    /// A value out of its range.
    #[error("{place}: {field} is {value}; expected {expected}")]
    Value {
        /// Which part of the model.
        place: String,
        /// Which field of it.
        field: String,
        /// Its value.
        value: String,
        /// What it may be.
        expected: String,
    },
    /// A part that no packet reaches.
    #[error("{kind} {name:?} is reached by no source; lead a route to it, or remove it")]
    Unreachable {
        /// What it is.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// Packets of a class end in the middle of the network.
    #[error(
        "{kind} {name:?}: packets of class {class:?} come here and have no way on; add a transition for the class, to a sink if they leave"
    )]
    DeadEnd {
        /// Whether they end in a queue or at their source.
        kind: &'static str,
        /// Where they end.
        name: String,
        /// Their class.
        class: String,
    },
    /// Stations that can wait for each other for ever.
    #[error("the blocking transitions {} form a circle, in which all can wait for each other for ever; let one of them lose packets instead (blocks = false)", path(.queues))]
    Deadlock {
        /// The queues on the circle, the first again at the end.
        queues: Vec<String>,
    },
    /// Stations wait for each other for ever.
    #[error("queues {} wait for each other for ever: the run found a deadlock, in the first {time_s:.6} s; give one of them more room, or let one of them lose packets instead (blocks = false)", .queues.join(" -> "))]
    Deadlocked {
        /// The queues, the first again at the end.
        queues: Vec<String>,
        /// A time by which it was there.
        time_s: f64,
    },
    /// More work comes than a station can do, and a queue without a limit takes it.
    #[error(
        "station {station:?} has a load of {} and queue {queue:?} has no limit, so it grows for ever; lower the load, limit the queue, or allow unstable networks", rounded(*.load)
    )]
    Unstable {
        /// The station.
        station: String,
        /// Mean work per time and server.
        load: f64,
        /// A queue that would grow.
        queue: String,
    },
    /// Packets come in for ever and none can leave.
    #[error(
        "queue {queue:?}: packets of class {class:?} that come here go round for ever; lead a way from there to a sink, or let the source end after some packets"
    )]
    Trapped {
        /// A queue that they do not leave for a sink.
        queue: String,
        /// Their class.
        class: String,
    },
    /// Packets move on and on while no time passes.
    #[error(
        "more than {events} events at the same instant, after {time_s:.9} s, mostly of queue {queue:?}; give a service time to a queue of the loop, or a gap to the source"
    )]
    Standstill {
        /// How many.
        events: u64,
        /// A queue that is busy then.
        queue: String,
        /// When.
        time_s: f64,
    },
    /// The run needs more events than it may have.
    #[error(
        "the run: {} events in {} s of the model, more than events_max {events_max}; run a shorter duration, lower the load, or raise events_max", .events, rounded(*.time_s)
    )]
    TooManyEvents {
        /// How many: those that were simulated, or that are to be expected.
        events: String,
        /// Of how much time.
        time_s: f64,
        /// How many there may be.
        events_max: u64,
    },
    /// More packets are inside than the run allows.
    #[error(
        "{jobs} packets are in the network, most of them in queue {queue:?}, after {time_s:.3} s; the network seems unstable: lower the load, limit the queue, or raise jobs_max"
    )]
    TooManyJobs {
        /// How many.
        jobs: usize,
        /// The longest queue.
        queue: String,
        /// When.
        time_s: f64,
    },
    /// The clock of 64 bits has run out.
    #[error(
        "the run reached the end of time, 213 days of the model; run it for a shorter duration_ns"
    )]
    EndOfTime,
    /// The caller asked to stop.
    #[error("the run was stopped")]
    Stopped,
}

impl ModelError {
    pub(super) fn value(
        place: &str,
        field: impl Into<String>,
        value: impl ToString,
        expected: impl Into<String>,
    ) -> Self {
        Self::Value {
            place: place.to_string(),
            field: field.into(),
            value: value.to_string(),
            expected: expected.into(),
        }
    }

    pub(super) fn unknown<'a>(
        place: &str,
        kind: &'static str,
        name: &str,
        known: impl Iterator<Item = &'a String>,
    ) -> Self {
        let names: Vec<&str> = known.map(String::as_str).collect();
        Self::Unknown {
            place: place.to_string(),
            kind,
            name: name.to_string(),
            known: known_names(name, names),
        }
    }
}

/// Names that are shown of many.
const NAMES_SHOWN: usize = 10;

/// Which names there are; of many, those that are most like the one that was looked for.
fn known_names(name: &str, mut names: Vec<&str>) -> String {
    if names.is_empty() {
        return "there is none".to_string();
    }
    let more = names.len().saturating_sub(NAMES_SHOWN);
    if more == 0 {
        return format!(
            "there are {}",
            names
                .iter()
                .map(|name| shown(name))
                .collect::<Vec<_>>()
                .join(", ")
        );
    }
    names.sort_by_cached_key(|known| std::cmp::Reverse(likeness(name, known)));
    names.truncate(NAMES_SHOWN);
    let names: Vec<_> = names.iter().map(|name| shown(name)).collect();
    format!("there are {} and {more} more", names.join(", "))
}

/// How many characters two names have in common at their beginnings and ends.
fn likeness(name: &str, other: &str) -> usize {
    let (name, other): (Vec<char>, Vec<char>) = (name.chars().collect(), other.chars().collect());
    let same =
        |pairs: &mut dyn Iterator<Item = (&char, &char)>| pairs.take_while(|(a, b)| a == b).count();
    same(&mut name.iter().zip(&other)) + same(&mut name.iter().rev().zip(other.iter().rev()))
}

/// A name on one line.
fn shown(name: &str) -> String {
    name.escape_debug().to_string()
}

fn path(queues: &[String]) -> String {
    let names: Vec<_> = queues
        .iter()
        .take(NAMES_SHOWN)
        .map(|name| shown(name))
        .collect();
    let more = if queues.len() > NAMES_SHOWN {
        " -> ..."
    } else {
        ""
    };
    names.join(" -> ") + more
}

/// A number of which three decimals are enough.
fn rounded(value: f64) -> String {
    if value < 1e6 {
        return format!("{value:.3}");
    }
    format!("{value:.3e}")
}
