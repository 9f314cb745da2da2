//! `pthread_cancel`: a thread that waits for packets can be cancelled, as in the system's libpcap, which waits in the C
//! library's `poll`. No other function of ours is a cancellation point.
//!
//! glibc ends a cancelled thread by a forced unwind: it goes up the stack from the cancellation point, through our frames
//! and those of the program, up to the start of the thread. So does `pthread_exit` in a callback. Rust defines a forced
//! unwind through its frames where two things hold:
//!
//! - Calls that it may pass have the ABI `C-unwind`. A function with the ABI `C` would abort the process. So all exported
//!   functions, the callback, and the functions of the system's libpcap have it.
//! - No frame on its path has anything to drop: no lock is held and no memory is owned where [`wait_readable`], [`test`]
//!   or the callback is called.
//!
//! All other functions hold [`Uncancellable`], as files and threads of Rust's library have cancellation points, too.

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

/// Waits until one of the descriptors is readable, at most this long; -1 stands for none. A cancellation point: the
/// caller has nothing to drop.
pub fn wait_readable<const COUNT: usize>(
    descriptors: [RawFd; COUNT],
    most: Duration,
) -> [bool; COUNT] {
    let mut waiting = descriptors.map(|fd| pollfd {
        fd,
        events: POLLIN,
        revents: 0,
    });
    let timeout_ms = most.as_millis() as c_int;
    // SAFETY: the array has so many entries.
    unsafe { poll(waiting.as_mut_ptr(), waiting.len() as nfds_t, timeout_ms) };
    waiting.map(|one| one.revents != 0)
}

/// Ends the calling thread if it was cancelled. The caller has nothing to drop.
pub fn test() {
    // SAFETY: the function has no requirements.
    unsafe { pthread_testcancel() };
}

/// While it lives, the calling thread is not cancelled: a request waits until the next cancellation point.
pub struct Uncancellable {
    before: c_int,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Uncancellable {
    /// From here on.
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
        // SAFETY: the state is one that the function returned; it accepts a null pointer.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}
