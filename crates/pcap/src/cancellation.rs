//! `pthread_cancel`: a thread that waits for packets can be cancelled, as in the system's libpcap,
//! which waits in the C library's `poll`. In this library, only [`wait_readable`] and [`test`] are
//! cancellation points.
//!
//! glibc ends a cancelled thread by a forced unwind: it goes up the stack from the cancellation
//! point, through our frames and those of the program, up to the start of the thread. So does
//! `pthread_exit` in a callback. Rust permits a forced unwind through its frames under two
//! conditions:
//!
//! - Each call that the unwind may pass has the ABI `C-unwind`: exported functions, the callback,
//!   and the functions of the system's libpcap. With the ABI `C`, the process would abort.
//! - No frame that the unwind passes has anything to drop: callers of [`wait_readable`], [`test`]
//!   and the callback hold no lock and own no memory.
//!
//! All other functions hold [`Uncancellable`], because the functions of Rust's library for files
//! and threads have cancellation points, too.

use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::time::Duration;

use libc::{POLLIN, c_int, nfds_t, pollfd};

const PTHREAD_CANCEL_DISABLE: c_int = 1;

// The declarations of crate `libc` have the ABI `C`.
unsafe extern "C-unwind" {
    fn poll(descriptors: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    fn pthread_testcancel();
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Waits until one of the descriptors is readable, at most `wait_max`; a descriptor of -1 is
/// ignored. A cancellation point: the caller has nothing to drop.
pub fn wait_readable<const COUNT: usize>(
    descriptors: [RawFd; COUNT],
    wait_max: Duration,
) -> [bool; COUNT] {
    let mut waiting = descriptors.map(|fd| pollfd {
        fd,
        events: POLLIN,
        revents: 0,
    });
    let timeout_ms = wait_max.as_millis() as c_int;
    // SAFETY: the array has `waiting.len()` entries.
    unsafe { poll(waiting.as_mut_ptr(), waiting.len() as nfds_t, timeout_ms) };
    waiting.map(|one| one.revents != 0)
}

/// Ends the calling thread if it was cancelled. The caller has nothing to drop.
pub fn test() {
    // SAFETY: the function has no requirements.
    unsafe { pthread_testcancel() };
}

/// While this value lives, the calling thread is not cancelled: a request takes effect at the first
/// cancellation point afterwards.
pub struct Uncancellable {
    before: c_int,
    /// Keeps the value in its thread.
    _thread: PhantomData<*const ()>,
}

impl Uncancellable {
    /// Disables cancellation of the calling thread.
    pub fn new() -> Self {
        let mut before = 0;
        // SAFETY: the pointer is valid.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self {
            before,
            _thread: PhantomData,
        }
    }
}

impl Drop for Uncancellable {
    fn drop(&mut self) {
        // SAFETY: the function itself returned this state, and it accepts a null pointer.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}
