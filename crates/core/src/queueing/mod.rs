//! Open multiclass networks of queues, solved by discrete-event simulation.
//!
//! A [`Model`] is plain data: sources, stations, queues, the ways between them, sinks.
//! [`Network::new`] resolves its names and checks it; [`run`] simulates it, several times in parallel,
//! and returns [`Results`]. Time is whole picoseconds, and every random number comes from a stream of its
//! own: the same model, options and seed give the same results on any number of cores, to the last bit.

mod account;
mod amount;
mod blocked;
mod calendar;
mod check;
mod engine;
mod error;
mod interval;
mod jobs;
mod level;
mod model;
mod names;
mod network;
mod order;
mod result;
mod run;
mod scale;
mod series;
mod service;
mod shape;
mod sharing;
mod stability;
mod time;
mod trace;
mod traces;
mod travel;

pub use amount::Amount;
pub use error::ModelError;
pub use interval::{Interval, interval, student_t};
pub use model::{
    Batch, Blocking, Choice, Frees, LevelPolicy, Model, Policy, Queue, Service, Source, Station,
    StationKind, Tags, Transition, Visited,
};
pub use network::Network;
pub use result::{
    Balanced, Estimate, LatencySummary, QueueCounts, QueueLength, Replication, SinkCounts,
    StationLoad, Tail,
};
pub use run::{Results, RunOptions, run};
pub use series::{Series, warm_up};
pub use trace::{Fate, PacketTable, Trace, VisitTable};
pub use traces::Traces;
