//! The queueing engine against what is known exactly.

mod balance;
mod batches;
mod exact;
mod networks;
mod oracles;
mod polling;
mod refusals;
