//! What can be wrong with a model or its run; every message is one line with the remedy.

use thiserror::Error;

use crate::laws::LawError;

/// Why a model cannot be run, or why a run ended early.
#[derive(Debug, Error)]
pub enum ModelError {
    /// The text is no model.
    #[error("the model cannot be read: {0}; see docs/model.md for its fields")]
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
    #[error("two {kind}s are called {name:?}; rename one of them")]
    Twice {
        /// What has the name.
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
        "queue {queue:?}: packets of class {class:?} come here and have no way on; add a transition for the class, to a sink if they leave"
    )]
    DeadEnd {
        /// Where they end.
        queue: String,
        /// Their class.
        class: String,
    },
    /// Stations that can wait for each other for ever.
    #[error("the blocking transitions {} form a circle, in which all can wait for each other for ever; let one of them lose packets instead (blocks = false)", .queues.join(" -> "))]
    Deadlock {
        /// The queues on the circle, the first again at the end.
        queues: Vec<String>,
    },
    /// More work comes than a station can do, and a queue without a limit takes it.
    #[error(
        "station {station:?} has a load of {load:.3} and queue {queue:?} has no limit, so it grows for ever; lower the load, limit the queue, or allow unstable networks"
    )]
    Unstable {
        /// The station.
        station: String,
        /// Mean work per time and server.
        load: f64,
        /// A queue that would grow.
        queue: String,
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
            known: if names.is_empty() {
                "there is none".to_string()
            } else {
                format!("there are {}", names.join(", "))
            },
        }
    }
}
