//! How frames are sent.

use libc::{c_int, c_uchar, c_void, size_t};

use super::fail;
use crate::handles::Handle;
use crate::live::Live;

export! {
    fn pcap_inject(pcap: *mut Pcap, frame: *const c_void, bytes: size_t) -> c_int = |handle, live| {
        // SAFETY: the caller's frame has so many bytes.
        unsafe { inject(handle, live, frame.cast(), bytes) }
    };
    fn pcap_sendpacket(pcap: *mut Pcap, frame: *const c_uchar, bytes: c_int) -> c_int = |handle, live| {
        // SAFETY: the caller's frame has so many bytes.
        unsafe { inject(handle, live, frame, usize::try_from(bytes).unwrap_or(0)).min(0) }
    };
}

unsafe fn inject(handle: &Handle, live: &Live, frame: *const c_uchar, bytes: usize) -> c_int {
    // SAFETY: the caller vouches for so many bytes.
    match live.inject(unsafe { std::slice::from_raw_parts(frame, bytes) }) {
        Ok(sent) => sent as c_int,
        Err(reason) => fail(handle, &reason),
    }
}
