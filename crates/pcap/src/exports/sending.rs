//! How frames are sent.

use libc::{c_int, c_uchar, c_void, size_t};

use super::fail;
use crate::error_text;
use crate::handles::Handle;
use crate::live::Live;

export! {
    fn pcap_inject(pcap: *mut Pcap, frame: *const c_void, bytes: size_t) -> c_int = |handle, live| {
        if bytes == 0 {
            return fail(handle, &with_errno("The number of bytes to be injected must not be zero"));
        }
        if c_int::try_from(bytes).is_err() {
            return fail(handle, &format!("More than {} bytes cannot be injected", c_int::MAX));
        }
        // SAFETY: the caller's frame has `bytes` bytes.
        unsafe { inject(handle, live, frame.cast(), bytes) }
    };
    fn pcap_sendpacket(pcap: *mut Pcap, frame: *const c_uchar, bytes: c_int) -> c_int = |handle, live| {
        let Some(bytes) = usize::try_from(bytes).ok().filter(|&bytes| bytes > 0) else {
            return fail(handle, &with_errno("The number of bytes to be sent must be positive"));
        };
        // SAFETY: the caller's frame has `bytes` bytes.
        unsafe { inject(handle, live, frame, bytes) }.min(0)
    };
}

/// An error followed by the text of the thread's last errno, related or not, as in libpcap's
/// messages.
fn with_errno(text: &str) -> String {
    let last = std::io::Error::last_os_error().raw_os_error();
    let last = rustix::io::Errno::from_raw_os_error(last.unwrap_or(0));
    format!("{text}: {}", error_text::of_kernel(last))
}

unsafe fn inject(handle: &Handle, live: &Live, frame: *const c_uchar, bytes: usize) -> c_int {
    // SAFETY: the caller vouches for the number of bytes.
    match live.inject(unsafe { std::slice::from_raw_parts(frame, bytes) }) {
        Ok(sent) => sent as c_int,
        Err(reason) => fail(handle, &reason),
    }
}
