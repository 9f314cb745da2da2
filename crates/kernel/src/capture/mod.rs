//! Packet capture.

pub mod backend;
