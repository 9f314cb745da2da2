//! What a capture is and has counted, and its errors.

use std::ffi::CStr;
use std::io::Write as _;
use std::sync::atomic::Ordering;

use libc::{FILE, c_char, c_int, timeval};

use super::fail;
use crate::abi::{DIRECTION_OUT, Statistics};
use crate::forwards::pcap_datalink_val_to_name;

export! {
    fn pcap_datalink(pcap: *mut Pcap) -> c_int = |_, live| live.link_type();
    fn pcap_datalink_ext(pcap: *mut Pcap) -> c_int = |_, _| 0;
    fn pcap_snapshot(pcap: *mut Pcap) -> c_int = |_, live| live.snaplen;
    fn pcap_is_swapped(pcap: *mut Pcap) -> c_int = |_, _| 0;
    fn pcap_major_version(pcap: *mut Pcap) -> c_int = |_, _| 0;
    fn pcap_minor_version(pcap: *mut Pcap) -> c_int = |_, _| 0;
    fn pcap_bufsize(pcap: *mut Pcap) -> c_int = |_, live| live.ring_bytes();
    fn pcap_file(pcap: *mut Pcap) -> *mut FILE = |_, _| std::ptr::null_mut();
    fn pcap_get_required_select_timeout(pcap: *mut Pcap) -> *const timeval = |_, _| std::ptr::null();
    fn pcap_geterr(pcap: *mut Pcap) -> *mut c_char = |handle, _| {
        handle.error.as_mut_ptr()
    };
    fn pcap_perror(pcap: *mut Pcap, prefix: *const c_char) = |handle, _| {
        // SAFETY: both texts end with 0.
        unsafe {
            let error = CStr::from_ptr(handle.error.as_mut_ptr()).to_string_lossy();
            let prefix = CStr::from_ptr(prefix).to_string_lossy();
            let _ = writeln!(std::io::stderr(), "{prefix}: {error}");
        }
    };
    fn pcap_list_datalinks(pcap: *mut Pcap, list: *mut *mut c_int) -> c_int = |handle, live| {
        let link_types = live.link_types();
        // SAFETY: `copy` has room for all types, and pcap_free_datalinks frees it; the caller has room for the pointer.
        unsafe {
            let copy = libc::malloc(size_of_val(&link_types[..])).cast::<c_int>();
            if copy.is_null() {
                return fail(handle, "malloc: no memory");
            }
            copy.copy_from_nonoverlapping(link_types.as_ptr(), link_types.len());
            *list = copy;
        }
        link_types.len() as c_int
    };
    fn pcap_set_datalink(pcap: *mut Pcap, link_type: c_int) -> c_int = |handle, live| {
        if live.link_types().contains(&link_type) {
            live.set_link_type(link_type);
            return 0;
        }
        // SAFETY: a name is a constant that ends with 0.
        unsafe {
            let name = pcap_datalink_val_to_name(link_type);
            let name = match name.is_null() {
                true => format!("DLT {link_type}"),
                false => CStr::from_ptr(name).to_string_lossy().into_owned(),
            };
            fail(handle, &format!("{name} is not one of the DLTs supported by this device"))
        }
    };
    fn pcap_setdirection(pcap: *mut Pcap, direction: c_int) -> c_int = |handle, live| {
        if !(0..=DIRECTION_OUT).contains(&direction) {
            return fail(handle, "Invalid direction");
        }
        live.direction.store(direction, Ordering::Relaxed);
        0
    };
    fn pcap_stats(pcap: *mut Pcap, statistics: *mut Statistics) -> c_int = |handle, live| {
        match live.statistics() {
            Ok(counted) => {
                // SAFETY: the caller has room for the statistics.
                unsafe { *statistics = counted };
                0
            }
            Err(reason) => fail(handle, &reason),
        }
    };
}
