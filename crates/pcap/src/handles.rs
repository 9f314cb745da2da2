//! Which handles of a program are ours. A signal handler may look one up, so no lock is taken.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use libc::c_int;
use rustix::event::{EventfdFlags, eventfd};

use crate::abi::Pcap;
use crate::error_text::ErrorText;
use crate::live::Live;

/// Handles of one process at a time; more are captures of the system's libpcap.
const HANDLES_MAX: usize = 1024;

/// A capture that a program has created. Threads share it: each part is immutable, atomic, or behind a lock.
pub struct Handle {
    /// `pcap_breakloop` was called.
    pub is_broken: AtomicBool,
    /// Ends a wait.
    pub wake: OwnedFd,
    /// Before it is activated.
    pub options: Mutex<Options>,
    /// Since it was activated on a ring.
    pub live: OnceLock<Box<Live>>,
    /// Of the last call that failed, since it was activated on a ring.
    pub error: ErrorText,
}

const _: () = {
    const fn is_shared_by_threads<T: Sync + Send>() {}
    is_shared_by_threads::<Handle>();
};

/// What was set before the activation, as libpcap names it.
pub struct Options {
    pub device: String,
    pub snaplen: c_int,
    pub is_promiscuous: bool,
    pub is_monitor: bool,
    pub timeout_ms: c_int,
    pub buffer_bytes: c_int,
    pub time_stamp_type: c_int,
    pub precision: c_int,
    pub protocol: c_int,
    pub is_nonblocking: bool,
    pub is_immediate: bool,
}

impl Options {
    fn new(device: &str) -> Self {
        Self {
            device: device.to_owned(),
            snaplen: 0,
            is_promiscuous: false,
            is_monitor: false,
            timeout_ms: 0,
            buffer_bytes: 0,
            time_stamp_type: 0,
            precision: 0,
            protocol: 0,
            is_nonblocking: false,
            is_immediate: false,
        }
    }
}

static KEYS: [AtomicUsize; HANDLES_MAX] = [const { AtomicUsize::new(0) }; HANDLES_MAX];
static HANDLES: [AtomicPtr<Handle>; HANDLES_MAX] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; HANDLES_MAX];
/// No slot from this one on was ever used.
static USED: AtomicUsize = AtomicUsize::new(0);
static CHANGES: Mutex<()> = Mutex::new(());

/// Registers a handle of the system's libpcap as ours. When the table is full, the system's libpcap captures.
pub fn add(system: *mut Pcap, device: &str) {
    let Ok(wake) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
        return;
    };
    let handle = Handle {
        is_broken: AtomicBool::new(false),
        wake,
        options: Mutex::new(Options::new(device)),
        live: OnceLock::new(),
        error: ErrorText::new(),
    };
    let Ok(_alone) = CHANGES.lock() else { return };
    let free = (0..HANDLES_MAX).find(|slot| KEYS[*slot].load(Ordering::Relaxed) == 0);
    if let Some(slot) = free {
        HANDLES[slot].store(Box::into_raw(Box::new(handle)), Ordering::Relaxed);
        KEYS[slot].store(system as usize, Ordering::Release);
        USED.fetch_max(slot + 1, Ordering::Release);
    }
}

fn slot(system: *const Pcap) -> Option<usize> {
    (0..USED.load(Ordering::Acquire))
        .find(|slot| KEYS[*slot].load(Ordering::Acquire) == system as usize)
        .filter(|_| !system.is_null())
}

/// The handle, when it is ours.
///
/// # Safety
/// The program does not close it at the same time.
pub unsafe fn find<'program>(system: *const Pcap) -> Option<&'program Handle> {
    let handle = HANDLES[slot(system)?].load(Ordering::Relaxed);
    // SAFETY: it lives until `remove`, which the caller excludes.
    unsafe { handle.as_ref() }
}

/// Removes a handle, and ends its capture.
///
/// # Safety
/// The handle is not in use any more.
pub unsafe fn remove(system: *const Pcap) {
    let Ok(_alone) = CHANGES.lock() else { return };
    if let Some(slot) = slot(system) {
        let handle = HANDLES[slot].swap(std::ptr::null_mut(), Ordering::Relaxed);
        KEYS[slot].store(0, Ordering::Release);
        // SAFETY: `add` made it by Box::into_raw, and the caller vouches that it is not in use.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// All handles; for the child after a fork, which has one thread.
///
/// # Safety
/// No other thread changes handles.
pub unsafe fn all<'program>() -> impl Iterator<Item = &'program Handle> {
    (0..USED.load(Ordering::Acquire)).filter_map(|slot| {
        // SAFETY: the caller excludes changes.
        unsafe { HANDLES[slot].load(Ordering::Relaxed).as_ref() }
    })
}
