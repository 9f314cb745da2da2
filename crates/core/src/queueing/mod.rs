//! Open multiclass networks of queues, solved by discrete-event simulation.
//!
//! A [`Model`] is plain data: sources, stations, queues, the routes between them, sinks. [`Network::new`] resolves its
//! names and checks it. [`run`] simulates it, in independent replications on several threads or in batches of one run,
//! and returns [`Results`]. Time is in whole picoseconds, and every source and queue has random number streams of its
//! own: the same model, options and seed give the same results on any number of cores, to the last bit.
//!
//! The files, in the order in which a model passes them; each uses only those before it:
//!
//! | files | hold |
//! |---|---|
//! | `time`, `error`, `range` | picoseconds, errors, ranges of numbers |
//! | `amount`, `model`, `traces` | a model as data |
//! | `names`, `check` | its names and numbers, checked |
//! | `sampler`, `service_time`, `routes`, `sources`, `levels`, `network` | a network, with names resolved |
//! | `order`, `reachability`, `blocking_cycles`, `traffic` | checks of a whole network |
//! | `build` | from a model to a network |
//! | `series`, `statistics`, `jobs`, `trace` | packets and their statistics |
//! | `calendar`, `scale`, `dispatch_list`, `queues`, `policy`, `level`, `sharing`, `station`, `stations` | the parts of the engine |
//! | `blocked`, `watchdog`, `run_options`, `engine` | the event loop |
//! | `latency`, `result`, `interval`, `batch_means`, `estimate` | from counts to results |
//! | `run` | replications and batches |

mod amount;
mod batch_means;
mod blocked;
mod blocking_cycles;
mod build;
mod calendar;
mod check;
mod dispatch_list;
mod engine;
mod error;
mod estimate;
mod interval;
mod jobs;
mod latency;
mod level;
mod levels;
mod model;
mod names;
mod network;
mod order;
mod policy;
mod quantile;
mod queues;
mod range;
mod reachability;
mod result;
mod routes;
mod run;
mod run_options;
mod sampler;
mod scale;
mod series;
mod service_time;
mod sharing;
mod sources;
mod station;
mod stations;
mod statistics;
mod time;
mod trace;
mod traces;
mod traffic;
mod watchdog;

pub use amount::Amount;
pub use error::ModelError;
pub use estimate::Estimate;
pub use interval::{Interval, interval, student_t};
pub use latency::LatencySummary;
pub use model::{
    Batch, Blocking, Choice, Frees, LevelPolicy, Model, Policy, Queue, Service, Source, Station,
    StationKind, Tags, Transition, Visited,
};
pub use network::Network;
pub use result::{QueueCounts, QueueLength, Replication, SinkCounts, StationLoad, Tail};
pub use run::{Results, run};
pub use run_options::RunOptions;
pub use series::{Series, warm_up};
pub use statistics::Balance;
pub use trace::{Fate, PacketTable, Trace, VisitTable};
pub use traces::Traces;
