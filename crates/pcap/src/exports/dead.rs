//! Calls of the system's libpcap with the dead handle of a capture of ours.

use std::ffi::CStr;

use libc::{c_char, c_int, c_void};

use super::fail;
use crate::abi::Pcap;
use crate::forwards::system_function;
use crate::handles::Handle;
use crate::live::Live;

/// Calls a function of the system's libpcap with the dead handle, and takes over its error.
///
/// # Safety
/// As of the function.
pub(super) unsafe fn of_dead<T: Failure>(
    handle: &Handle,
    live: &Live,
    call: impl FnOnce(*mut Pcap) -> T,
) -> T {
    live.with_dead(|dead| {
        let result = call(dead);
        if result.is_failure() {
            // SAFETY: the handle is open; its message ends with 0 and is copied at once.
            let text = unsafe {
                CStr::from_ptr(system_function!(pcap_geterr: fn(*mut Pcap) -> *mut c_char)(
                    dead,
                ))
            };
            fail(handle, &text.to_string_lossy());
        }
        result
    })
}

/// The value by which a function of libpcap reports a failure.
pub(super) trait Failure {
    fn is_failure(&self) -> bool;
}

impl Failure for c_int {
    fn is_failure(&self) -> bool {
        *self < 0
    }
}

impl Failure for *mut c_void {
    fn is_failure(&self) -> bool {
        self.is_null()
    }
}
