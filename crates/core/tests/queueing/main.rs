//! The queueing engine against exact results.

mod balance;
mod batches;
mod blocking;
mod exact;
mod limits;
mod networks;
mod oracles;
mod polling;
mod quantiles;
mod refusals;
mod switchover;
mod wake_up;
