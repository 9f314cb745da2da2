//! The TCP instrument: per-packet state of every connection, from hook to log.
//!
//! [`options`] is the request, [`hooks`] is the kernel side, `sweep` lets the kernel walk over its sockets, [`collector`] reads the ring and
//! keeps the table of [`flows`], [`session`] puts them together into a log, and `run` is the thread behind it.

pub mod account;
mod budget;
pub mod collector;
mod files;
pub mod flows;
pub mod hooks;
mod listeners;
pub mod options;
mod run;
pub mod session;
mod status;
mod sweep;

#[cfg(test)]
mod lanes_test;
