//! How files are opened for packets of a capture.

use libc::{FILE, c_char, c_void};

use super::borrowed::with_dead;
use crate::abi::Pcap;
use crate::forwards::system_function;

export! {
    fn pcap_dump_open(pcap: *mut Pcap, name: *const c_char) -> *mut c_void = |handle, live| {
        // SAFETY: the caller meets libpcap's requirements.
        unsafe { with_dead(handle, live, |dead| system_function!(pcap_dump_open: fn(*mut Pcap, *const c_char) -> *mut c_void)(dead, name)) }
    };
    fn pcap_dump_open_append(pcap: *mut Pcap, name: *const c_char) -> *mut c_void = |handle, live| {
        // SAFETY: the caller meets libpcap's requirements.
        unsafe { with_dead(handle, live, |dead| system_function!(pcap_dump_open_append: fn(*mut Pcap, *const c_char) -> *mut c_void)(dead, name)) }
    };
    fn pcap_dump_fopen(pcap: *mut Pcap, file: *mut FILE) -> *mut c_void = |handle, live| {
        // SAFETY: the caller meets libpcap's requirements.
        unsafe { with_dead(handle, live, |dead| system_function!(pcap_dump_fopen: fn(*mut Pcap, *mut FILE) -> *mut c_void)(dead, file)) }
    };
}
