//! The capture instrument: one ring in the kernel, any number of applications, one copy of a packet.
//!
//! A ring is held by a small process of its own, the [`keeper`]: it has the maps, the links and the
//! filters of all subscribers, merged into one program a hook. Every process that captures, the one
//! that created the ring too, is a [`client`] of the keeper and reads the ring by itself: a
//! [`session`] is its capture, `run` the thread behind it; a [`collector`] reads the ring, an [`output`]
//! selects packets, and a [`sink`] stores them.
//!
//! Inside the keeper, [`kept_ring`] is the ring with its subscribers, `ring_maps` its memory, [`generation`] the
//! programs that serve one set of them, `preparation` the process that compiles these, [`attachment`] an eBPF
//! link to a hook, and `grace` (of the crate) the wait until no CPU runs the replaced programs.

pub mod attachment;
pub mod backend;
pub mod batch;
pub mod bell;
pub mod client;
pub mod collector;
pub mod dispatcher;
mod error;
pub(crate) mod generation;
pub mod keeper;
pub mod kept_ring;
mod ledger;
mod load;
mod output;
mod preparation;
pub mod request;
mod ring_capture;
mod ring_check;
mod ring_maps;
mod run;
pub mod session;
pub mod sink;
mod socket_capture;
mod status;
pub mod tagged;
mod tally;

pub use error::CaptureError;

use crate::programs::compiled::{CompiledObject, compiled_object};

pub(crate) static OBJECT: CompiledObject = compiled_object!("capture");
