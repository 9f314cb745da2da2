//! Errors of a model and of its runs. Every message is one line and names the remedy.

use thiserror::Error;

use crate::distributions::DistributionError;

/// Why a model cannot be run, or why a run ended early.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ModelError {
    /// The text is not a model.
    #[error("the model cannot be read: {0}; see docs/formats/model-file.md for its fields")]
    Syntax(#[from] serde_json::Error),
    /// A name that no part of the model has.
    #[error("{place}: no {kind} {name:?} in the model; {known}")]
    Unknown {
        place: String,
        kind: &'static str,
        name: String,
        known: String,
    },
    /// Two parts with the same name.
    #[error("two {kind} are called {name:?}; rename one of them")]
    Twice {
        /// The kind of part, in the plural.
        kind: &'static str,
        name: String,
    },
    /// An invalid distribution.
    #[error("{place}: {error}")]
    Distribution {
        place: String,
        error: DistributionError,
    },
    /// A value out of its range.
    #[error("{place}: {field} is {value}; expected {expected}")]
    Value {
        place: String,
        field: String,
        value: String,
        expected: String,
    },
    /// A part that no packet reaches.
    #[error("{kind} {name:?}: no source reaches it; add a route to it, or remove it")]
    Unreachable { kind: &'static str, name: String },
    /// Packets of a class have no route.
    #[error(
        "{kind} {name:?}: packets of class {class:?} come here and have no route; add a transition for the class, to a sink if they leave"
    )]
    DeadEnd {
        /// `queue` or `source`.
        kind: &'static str,
        name: String,
        class: String,
    },
    /// A cycle of transitions that block before service.
    #[error("the blocking transitions {} form a cycle, which can deadlock; let one of them lose packets instead (blocks = false)", path(.queues))]
    Deadlock {
        /// The queues of the cycle, the first again at the end.
        queues: Vec<String>,
    },
    /// A run found a deadlock.
    #[error("queues {} wait for each other for ever: the run found a deadlock, in the first {time_s:.6} s; give one of them more room, or let one of them lose packets instead (blocks = false)", .queues.join(" -> "))]
    Deadlocked {
        /// The queues, the first again at the end.
        queues: Vec<String>,
        /// A time at which it existed, s.
        time_s: f64,
    },
    /// An unlimited queue at an overloaded station.
    #[error(
        "station {station:?} has a load of {} and queue {queue:?} has no limit, so it grows without bound; lower the load, limit the queue, or allow unstable networks (--allow-unstable)", rounded(*.load)
    )]
    Unstable {
        station: String,
        load: f64,
        queue: String,
    },
    /// A loop that packets of an endless source do not leave.
    #[error(
        "queue {queue:?}: packets of class {class:?} that come here circulate for ever; add a route to a sink, or let the source end after some packets"
    )]
    Trapped { queue: String, class: String },
    /// Events occur while no time passes.
    #[error(
        "more than {events} events at the same instant, after {time_s:.9} s, mostly of queue {queue:?}; give a service time to a queue of the loop, or a gap to the source"
    )]
    Standstill {
        events: u64,
        queue: String,
        time_s: f64,
    },
    /// The run needs more than `events_max` events.
    #[error(
        "the run: {} events in {} s of the model, more than events_max {events_max}; run a shorter duration, lower the load, or raise events_max", .events, rounded(*.time_s)
    )]
    TooManyEvents {
        events: String,
        time_s: f64,
        events_max: u64,
    },
    /// More than `jobs_max` packets are in the network.
    #[error(
        "{jobs} packets are in the network, above the limit of {jobs_max}, most of them in queue {queue:?}, after {time_s:.3} s; the network seems unstable: lower the load, limit the queue, or raise jobs_max (--jobs-max)"
    )]
    TooManyJobs {
        jobs: usize,
        jobs_max: usize,
        queue: String,
        time_s: f64,
    },
    /// Time exceeds 64 bits.
    #[error(
        "the run reached the maximum time, 213 days of the model; run it for a shorter duration_ns"
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

/// Maximum number of names in a message.
const NAMES_SHOWN: usize = 10;

/// The known names; of many, those that are most similar to `name`.
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

/// Number of characters that two names share at their beginnings and ends.
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

/// A number with three decimals.
fn rounded(value: f64) -> String {
    if value < 1e6 {
        return format!("{value:.3}");
    }
    format!("{value:.3e}")
}
