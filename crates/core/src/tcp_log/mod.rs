//! The native log of TCP states: one Arrow IPC stream that any Arrow reader opens.
//!
//! Rows are record batches with the columns of [`columns::COLUMNS`]. The tables of flows and listeners and the
//! ledger are custom metadata of record batches without rows, the *ticks*. So the file needs no index, and can
//! be read up to wherever it is truncated.

mod batch;
pub mod columns;
mod compression;
mod error;
mod flow;
mod flow_states;
mod flow_table;
mod follower;
mod header;
mod listener;
pub(crate) mod message;
pub(crate) mod message_reader;
mod part_reader;
mod reader;
pub mod retransmission;
mod retransmission_table;
mod rows;
mod scale;
mod schema;
mod series;
mod state_columns;
mod thinning;
mod writer;

pub use batch::BatchEncoder;
pub use compression::{Codec, Compression};
pub use error::LogError;
pub use flow::FlowRow;
pub use flow_states::FlowStates;
pub use flow_table::{flow_batch, flow_rows, flow_schema};
pub use follower::LogFollower;
pub use header::{FORMAT, FORMAT_VERSION, LogHeader, LogPart};
pub use listener::ListenerRow;
pub use message_reader::Truncation;
pub use reader::LogReader;
pub use retransmission_table::{retransmission_batch, retransmissions};
pub use scale::Scale;
pub use schema::record_schema;
pub use series::{Gap, GapCause, files_of_log};
pub use state_columns::StateColumns;
pub use thinning::ThinningRow;
pub use writer::{LogWriter, Unwritten};

#[cfg(test)]
mod series_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
