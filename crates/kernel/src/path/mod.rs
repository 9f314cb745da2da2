//! The path instrument: when each packet passed which stage of the kernel.
//!
//! | room | holds |
//! |---|---|
//! | [`request`] | what is wanted |
//! | `stages` | the table of the stages and their programs |
//! | [`selection`] | what this kernel offers of a request |
//! | `settings` | what the programs are given of it |
//! | `load` | the object: maps, programs |
//! | `attachment` | programs at their hooks |
//! | `arrays` | what the programs fill, mapped |
//! | `snapshot` | histograms that are put aside |
//! | [`hooks`] | the kernel side as a whole |
//! | `drop_reasons` | their names in the running kernel |
//! | `account` | the arrays as tables |
//! | `status` | what a measurement reports |
//! | [`session`] | starts a measurement; `run` is the thread behind it |

mod account;
mod arrays;
mod attachment;
mod budget;
mod drop_reasons;
mod estimates;
pub mod hooks;
pub(crate) mod load;
mod meter;
pub mod request;
mod run;
pub mod selection;
pub mod session;
mod settings;
mod snapshot;
mod stages;
mod status;
