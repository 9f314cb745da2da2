//! Records, logs, conversions and statistics: everything of Parshall that needs neither the
//! kernel nor privileges. It builds and tests on any machine.

pub mod abi;
pub mod convert;
pub mod distributions;
mod excerpt;
pub mod filter;
pub mod input_file;
pub mod ledger;
pub mod output_file;
pub mod path_log;
mod protocols;
pub mod queueing;
pub mod router;
pub mod sizes;
pub mod stage;
pub mod tcp_log;
pub mod trace;
pub mod workload;
