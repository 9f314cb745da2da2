//! How a capture is created, configured, activated and closed.

use std::ffi::CStr;
use std::io::Write as _;

use libc::{c_char, c_int};
use parshall_kernel::net::interface::Interface;

use super::reading::system_breakloop;
use super::{activated, fail};
use crate::abi::{ERROR_ACTIVATED, Pcap};
use crate::cancellation::Uncancellable;
use crate::error_text;
use crate::forwards::system_function;
use crate::handles::{self, Handle, Options};
use crate::live::{self, Live};
use crate::lock;

/// Environment variable with device and inode of the standard error of `parshall pcap`.
const STANDARD_ERROR: &str = "PARSHALL_PCAP_STDERR";

/// Notes what libpcap refuses after the activation, in its words; returns its status for it.
fn fail_activated(handle: &Handle) -> c_int {
    fail(handle, "can't perform  operation on activated capture");
    ERROR_ACTIVATED
}

/// Exports functions that set an option: the system's handle checks and keeps it, we note it.
macro_rules! export_options {
    ($(fn $name:ident($value:ident: c_int) = |$options:ident| $note:expr;)*) => {$(
        /// See the manual page of the same name.
        ///
        /// # Safety
        /// As libpcap documents.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(pcap: *mut Pcap, $value: c_int) -> c_int {
            // SAFETY: the caller meets libpcap's requirements.
            unsafe { set(pcap, |pcap| system_function!($name: fn(*mut Pcap, c_int) -> c_int)(pcap, $value), |$options| $note) }
        }
    )*};
}

export_options! {
    fn pcap_set_snaplen(value: c_int) = |options| options.snaplen = value;
    fn pcap_set_promisc(value: c_int) = |options| options.is_promiscuous = value != 0;
    fn pcap_set_rfmon(value: c_int) = |options| options.is_monitor = value != 0;
    fn pcap_set_timeout(value: c_int) = |options| options.timeout_ms = value;
    fn pcap_set_buffer_size(value: c_int) = |options| options.buffer_bytes = value;
    fn pcap_set_tstamp_type(value: c_int) = |options| options.time_stamp_type = value;
    fn pcap_set_tstamp_precision(value: c_int) = |options| options.precision = value;
    fn pcap_set_protocol_linux(value: c_int) = |options| options.protocol = value;
    fn pcap_set_immediate_mode(value: c_int) = |options| options.is_immediate = value != 0;
}

unsafe fn set(
    pcap: *mut Pcap,
    system: impl FnOnce(*mut Pcap) -> c_int,
    note: impl FnOnce(&mut Options),
) -> c_int {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        if let Some((handle, _)) = activated(pcap) {
            return fail_activated(handle);
        }
        let status = system(pcap);
        // A warning means that libpcap ignored the value.
        if status == 0
            && let Some(handle) = handles::find(pcap)
        {
            note(&mut lock(&handle.options));
        }
        status
    }
}

/// See pcap_create(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_create(
    device: *const c_char,
    error: *mut c_char,
) -> *mut Pcap {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        let _uncancellable = Uncancellable::new();
        let pcap = system_function!(pcap_create: fn(*const c_char, *mut c_char) -> *mut Pcap)(
            device, error,
        );
        // Not first in pcap_breakloop: a signal handler must not call the loader.
        system_breakloop();
        if !pcap.is_null()
            && !device.is_null()
            && let Ok(device) = CStr::from_ptr(device).to_str()
        {
            handles::add(pcap, device);
        }
        pcap
    }
}

/// See pcap_activate(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_activate(pcap: *mut Pcap) -> c_int {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        let _uncancellable = Uncancellable::new();
        if let Some((handle, _)) = activated(pcap) {
            return fail_activated(handle);
        }
        let reason = match handles::find(pcap).and_then(activate_on_ring) {
            Some(Ok(())) => return 0,
            Some(Err(reason)) => Some(reason),
            None => None,
        };
        let status = system_function!(pcap_activate: fn(*mut Pcap) -> c_int)(pcap);
        notice(reason.as_deref(), status >= 0);
        if status >= 0 {
            handles::remove(pcap);
        }
        status
    }
}

/// Reports that a capture does not use the ring, where `parshall pcap` would: for a program that it started, standard error
/// may be a pipe with a protocol, as dumpcap's to tshark.
fn notice(reason: Option<&str>, is_capturing: bool) {
    let is_ours = || {
        let Some(ours) = std::env::var_os(STANDARD_ERROR) else {
            return true;
        };
        let file = rustix::fs::fstat(std::io::stderr());
        file.is_ok_and(|file| *ours == *format!("{}:{}", file.st_dev, file.st_ino))
    };
    if let Some(reason) = reason
        && is_ours()
    {
        let instead = match is_capturing {
            true => "capturing by a packet socket, without the ring",
            false => "a packet socket could not be used in its place",
        };
        let _ = writeln!(std::io::stderr(), "parshall: {reason}; {instead}");
    }
}

/// None when the system's libpcap is to capture, which also reports errors.
fn activate_on_ring(handle: &Handle) -> Option<Result<(), String>> {
    let options = lock(&handle.options);
    let interface = Interface::find(&options.device).ok()?;
    if !live::can_serve(&options) || !interface.is_up {
        return None;
    }
    let name = interface.name.clone();
    let activated = Live::activate(&options, interface);
    Some(
        match activated.map(|live| handle.live.set(Box::new(live))) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(format!("interface {name}: another thread has activated it")),
            Err(reason) => Err(format!("interface {name}: {reason}")),
        },
    )
}

/// See pcap_open_live(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_open_live(
    device: *const c_char,
    snaplen: c_int,
    promiscuous: c_int,
    timeout_ms: c_int,
    error: *mut c_char,
) -> *mut Pcap {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        let _uncancellable = Uncancellable::new();
        let pcap = pcap_create(device, error);
        if pcap.is_null() {
            return pcap;
        }
        pcap_set_snaplen(pcap, snaplen);
        pcap_set_promisc(pcap, promiscuous);
        pcap_set_timeout(pcap, timeout_ms);
        let reason = match handles::find(pcap).and_then(activate_on_ring) {
            Some(Ok(())) => {
                error_text::write(error, "");
                return pcap;
            }
            Some(Err(reason)) => Some(reason),
            None => None,
        };
        pcap_close(pcap);
        let open = system_function!(pcap_open_live: fn(*const c_char, c_int, c_int, c_int, *mut c_char) -> *mut Pcap);
        let pcap = open(device, snaplen, promiscuous, timeout_ms, error);
        notice(reason.as_deref(), !pcap.is_null());
        pcap
    }
}

/// See pcap_close(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_close(pcap: *mut Pcap) {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        let _uncancellable = Uncancellable::new();
        handles::remove(pcap);
        system_function!(pcap_close: fn(*mut Pcap))(pcap);
    }
}
