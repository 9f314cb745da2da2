//! A drop-in `libpcap.so.0.8`: live captures read a Parshall ring, everything else goes to the system's own libpcap.
//!
//! The loader finds this library first (`parshall pcap`). [`exports`] has the functions that know both kinds of
//! handles, [`forwards`] those that only pass a call on to [`system`]. A capture is first a handle of the system's with
//! recorded options. When it is activated on an interface that a ring can serve, [`live`] takes over; the
//! caller keeps the pointer. [`reading`] is its subscription to the [`ring`]. [`handles`] knows which pointers are ours;
//! [`ready`] makes a pollable descriptor.
//!
//! The functions of `live` have the shape of a capture module: create, activate, read, inject, set_filter,
//! set_direction, stats, close.

mod abi;
mod error_text;
mod exports;
mod forwards;
mod handles;
mod injected;
mod live;
mod reading;
mod ready;
mod ring;
mod system;
