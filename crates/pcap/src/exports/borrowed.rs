//! Calls of the system's libpcap with a handle of its own, for a capture of ours.

use std::ffi::{CStr, CString};

use libc::{c_char, c_int, c_void};

use super::fail;
use crate::abi::{DLT_EN10MB, ERROR_BYTES, Pcap};
use crate::forwards::system_function;
use crate::handles::Handle;
use crate::live::Live;

/// Calls a function of the system's libpcap with its handle, and takes over the error into ours.
///
/// # Safety
/// The system's handle is open, and only the calling thread uses it.
pub(super) unsafe fn with<T: Failure>(
    handle: &Handle,
    system: *mut Pcap,
    call: impl FnOnce(*mut Pcap) -> T,
) -> T {
    let result = call(system);
    if result.is_failure() {
        // SAFETY: the handle is open; its message ends with 0 and is copied at once.
        let text = unsafe {
            CStr::from_ptr(system_function!(pcap_geterr: fn(*mut Pcap) -> *mut c_char)(
                system,
            ))
        };
        fail(handle, &text.to_string_lossy());
    }
    result
}

/// The same with the dead handle of a capture.
///
/// # Safety
/// As of the function.
pub(super) unsafe fn with_dead<T: Failure>(
    handle: &Handle,
    live: &Live,
    call: impl FnOnce(*mut Pcap) -> T,
) -> T {
    // SAFETY: the dead handle is open, and no other thread has it meanwhile.
    live.with_dead(|dead| unsafe { with(handle, dead, call) })
}

/// A capture of the system's on a packet socket, only to compile with: there `vlan` asks for the tag beside the frame, as
/// on no dead handle.
pub(super) struct Compiling(pub *mut Pcap);

impl Compiling {
    /// `None` without the privilege for a packet socket, or when the link layer is not Ethernet.
    pub fn open(device: &str, snaplen: c_int) -> Option<Self> {
        let device = CString::new(device).ok()?;
        let mut error: [c_char; ERROR_BYTES] = [0; ERROR_BYTES];
        // SAFETY: the name ends with 0, and the buffer is as long as libpcap asks for; the handle is open from here on.
        unsafe {
            let create = system_function!(pcap_create: fn(*const c_char, *mut c_char) -> *mut Pcap);
            let pcap = create(device.as_ptr(), error.as_mut_ptr());
            if pcap.is_null() {
                return None;
            }
            let opened = Self(pcap);
            system_function!(pcap_set_snaplen: fn(*mut Pcap, c_int) -> c_int)(pcap, snaplen);
            // The smallest one, as no packet is read.
            system_function!(pcap_set_buffer_size: fn(*mut Pcap, c_int) -> c_int)(pcap, 1);
            let status = system_function!(pcap_activate: fn(*mut Pcap) -> c_int)(pcap);
            let link_type = system_function!(pcap_datalink: fn(*mut Pcap) -> c_int);
            (status >= 0 && link_type(pcap) == DLT_EN10MB).then_some(opened)
        }
    }
}

impl Drop for Compiling {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and closed only here.
        unsafe { system_function!(pcap_close: fn(*mut Pcap))(self.0) };
    }
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
