//! A relay that plays a link between two Ethernet interfaces, for kernels without netem.
//!
//! ```text
//! interface a -> [queue -> rate -> loss -> delay] -> interface b      (and the same back)
//! ```
//!
//! [`Channel`] is the emulated link itself, without I/O: what becomes of a frame as a function of
//! arrival times. [`Relay`] moves real frames through two channels, in one thread. Its account
//! balances: `arrived = forwarded + queue_dropped + loss_dropped + own_lost + inside`, where
//! `own_lost` is what the relay itself, and not the link that it plays, failed to carry.
//!
//! A frame arrives when the kernel stamps it at the incoming interface, so that the time which the
//! thread needs to wake and read does not add to the delay.

mod channel;
mod direction;
mod discipline;
mod error;
mod handle;
mod ledger;
mod placement;
mod serialiser;
mod shape;
mod store;
mod worker;

pub use channel::{Channel, Fate};
pub use discipline::{Bottleneck, Discipline, Outcome, Waiting};
pub use handle::Relay;
pub use shape::{JitterDistribution, Shape};
