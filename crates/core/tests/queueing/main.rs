//! The queueing engine against what is known exactly.

mod balance;
mod batches;
mod blocking;
mod exact;
mod limits;
mod networks;
mod oracles;
mod polling;
mod refusals;
mod switchover;
