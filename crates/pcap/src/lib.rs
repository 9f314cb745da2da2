//! A drop-in `libpcap.so.0.8`: live captures read a Parshall ring, everything else goes to the system's own libpcap.
//!
//! The loader finds this library first (`parshall pcap`). [`exports`] has the functions that know
//! both kinds of handles, [`forwards`] those that only pass a call on to [`system`]. A capture is
//! first a handle of the system's with recorded options. When it is activated on an interface that
//! a ring can serve, [`live`] takes over; the caller keeps the pointer. [`subscription`] is what a
//! capture asks of the [`ring`]; [`reader`] reads the ring. [`handles`] knows which pointers are
//! ours; [`ready`] makes a pollable descriptor.
//!
//! Threads share a capture: one reads, and others count, send, set filters and break its loop.
//! [`conversation`] is how they talk to the ring's keeper; [`cancellation`] says where
//! `pthread_cancel` can end a thread.
//!
//! The functions of `live` have the shape of a capture module: create, activate, read, inject, set_filter,
//! set_direction, stats, close.

mod abi;
mod cancellation;
mod conversation;
mod error_text;
mod exports;
mod forwards;
mod handles;
mod injected;
mod live;
mod own_filter;
mod reader;
mod ready;
mod ring;
mod subscription;
mod system;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock. If a thread panicked while it held the lock, the program goes on with the data as
/// they are.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
