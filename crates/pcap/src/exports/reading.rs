//! How packets are waited for and read.

use std::sync::Once;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::{c_char, c_int, c_uchar};
use parshall_kernel::clock::monotonic_ns;

use super::{activated, fail};
use crate::abi::{ERROR, ERROR_BREAK, Handler, PacketHeader, Pcap};
use crate::forwards::system_function;
use crate::handles::{self, Handle};
use crate::live::{HOLD_BACK_NS, Live, NAP, NAP_MAX};

/// Packets of one `pcap_dispatch` without a count: about what a block of a packet socket has.
const DISPATCH_MAX: c_int = 4096;

export! {
    fn pcap_get_selectable_fd(pcap: *mut Pcap) -> c_int = |_, live| ready_descriptor(live);
    fn pcap_fileno(pcap: *mut Pcap) -> c_int = |_, live| ready_descriptor(live);
    fn pcap_getnonblock(pcap: *mut Pcap, error: *mut c_char) -> c_int = |_, live| c_int::from(live.is_nonblocking);
    fn pcap_dispatch(pcap: *mut Pcap, count: c_int, callback: Handler, user: *mut c_uchar) -> c_int = |handle, _| {
        // SAFETY: the calling thread uses the handle; the callback is the caller's.
        unsafe { taken(handle, deliver(handle, count, callback, user)) }
    };
    fn pcap_loop(pcap: *mut Pcap, count: c_int, callback: Handler, user: *mut c_uchar) -> c_int = |handle, _| {
        let mut left = count;
        loop {
            // SAFETY: the calling thread uses the handle; the callback is the caller's.
            let status = unsafe { deliver(handle, left, callback, user) };
            left -= if count > 0 { status.max(0) } else { 0 };
            if status < 0 || (count > 0 && left == 0) {
                // SAFETY: as above.
                return unsafe { taken(handle, status.min(0)) };
            }
        }
    };
    fn pcap_next(pcap: *mut Pcap, header: *mut PacketHeader) -> *const c_uchar = |handle, _| {
        // SAFETY: the calling thread uses the handle, and has room for the header.
        unsafe {
            match (read_one(handle), activated(pcap)) {
                (1, Some((_, live))) => {
                    *header = live.kept.header;
                    live.kept.bytes.as_ptr()
                }
                _ => std::ptr::null(),
            }
        }
    };
    fn pcap_next_ex(pcap: *mut Pcap, header: *mut *mut PacketHeader, bytes: *mut *const c_uchar) -> c_int = |handle, _| {
        // SAFETY: the calling thread uses the handle, and has room for both pointers.
        unsafe {
            let status = read_one(handle);
            if status == 1 && let Some((_, live)) = activated(pcap) {
                *header = &raw mut live.kept.header;
                *bytes = live.kept.bytes.as_ptr();
            }
            status
        }
    };
}

/// See pcap_setnonblock(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setnonblock(
    pcap: *mut Pcap,
    is_nonblocking: c_int,
    error: *mut c_char,
) -> c_int {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        if let Some((_, live)) = activated(pcap) {
            live.is_nonblocking = is_nonblocking != 0;
            return 0;
        }
        let status = system_function!(pcap_setnonblock: fn(*mut Pcap, c_int, *mut c_char) -> c_int)(
            pcap,
            is_nonblocking,
            error,
        );
        // Before the activation, libpcap notes the mode and returns that the handle is not activated.
        if let Some(handle) = handles::find(pcap) {
            handle.inner().options.is_nonblocking = is_nonblocking != 0;
        }
        status
    }
}

/// See pcap_breakloop(3PCAP). A signal handler may call it.
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_breakloop(pcap: *mut Pcap) {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        if let Some(handle) = handles::find(pcap) {
            handle.is_broken.store(true, Ordering::Relaxed);
            let _ = rustix::io::write(&handle.wake, &1u64.to_ne_bytes());
        }
        system_breakloop()(pcap);
    }
}

/// The system's `pcap_breakloop`. Its first call asks the loader.
pub(super) fn system_breakloop() -> unsafe extern "C" fn(*mut Pcap) {
    // SAFETY: the function has this type in pcap/pcap.h.
    unsafe { system_function!(pcap_breakloop: fn(*mut Pcap)) }
}

/// Delivers up to `most` packets (below 1: those that are there), and waits for the first one.
/// Returns what a `read_op` of libpcap returns.
///
/// # Safety
/// As of [`activated`]; the handle was activated on a ring.
unsafe fn read(
    handle: &Handle,
    most: c_int,
    take: &mut dyn FnMut(&PacketHeader, *const c_uchar),
) -> c_int {
    // A callback may use the handle too, so that it is taken anew for each packet.
    // SAFETY: the caller vouches for the thread.
    let live = || unsafe { handle.inner() }.live.as_mut();
    let most = if most < 1 { DISPATCH_MAX } else { most };
    let mut taken = 0;
    let Some((timeout, is_nonblocking)) = live().map(|one| (one.timeout, one.is_nonblocking))
    else {
        return ERROR;
    };
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut nap = NAP;
    loop {
        let horizon_ns = monotonic_ns().saturating_sub(HOLD_BACK_NS);
        loop {
            // As libpcap on Linux, also when packets were taken.
            if handle.is_broken.load(Ordering::Relaxed) {
                handle.is_broken.store(false, Ordering::Relaxed);
                let _ = rustix::io::read(&handle.wake, &mut [0; 8]);
                return ERROR_BREAK;
            }
            let Some((header, bytes)) = live().and_then(|one| one.next(horizon_ns)) else {
                break;
            };
            take(&header, bytes);
            taken += 1;
            if taken == most {
                return taken;
            }
        }
        if taken > 0 {
            return taken;
        }
        let wait = if is_nonblocking { Duration::ZERO } else { nap };
        // Also without waiting: the keeper may have ended.
        if let Some(Err(reason)) = live().map(|one| one.wait(wait, &handle.wake)) {
            // SAFETY: the caller's thread uses the handle.
            return unsafe { fail(handle, &reason) };
        }
        if is_nonblocking || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return 0;
        }
        nap = NAP_MAX;
    }
}

/// After packets were taken: the descriptor that the program polls follows.
unsafe fn taken(handle: &Handle, status: c_int) -> c_int {
    // SAFETY: the caller's thread uses the handle.
    if let Some(live) = unsafe { handle.inner() }.live.as_mut() {
        live.update_ready();
    }
    status
}

/// Delivers packets to a callback as [`read`] does.
///
/// # Safety
/// As of [`read`]; `callback` takes `user`.
unsafe fn deliver(handle: &Handle, most: c_int, callback: Handler, user: *mut c_uchar) -> c_int {
    // SAFETY: the caller vouches for the handle and the callback.
    unsafe {
        read(handle, most, &mut |header, bytes| {
            callback(user, header, bytes)
        })
    }
}

/// Reads a packet into the handle, where it stays until the next one.
unsafe fn read_one(handle: &Handle) -> c_int {
    let mut kept = None;
    // SAFETY: the caller's thread uses the handle; the packet's bytes stay until the next read.
    unsafe {
        let status = read(handle, 1, &mut |header, bytes| {
            kept = Some((*header, bytes))
        });
        if let (Some((header, bytes)), Some(live)) = (kept, handle.inner().live.as_mut()) {
            live.kept.header = header;
            live.kept.bytes.clear();
            let bytes = std::slice::from_raw_parts(bytes, header.captured_bytes as usize);
            live.kept.bytes.extend_from_slice(bytes);
        }
        taken(handle, status)
    }
}

fn ready_descriptor(live: &mut Live) -> c_int {
    static AT_FORK: Once = Once::new();
    // SAFETY: the function is there as long as the library is.
    AT_FORK.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(restart_in_child));
    });
    live.ready_descriptor().unwrap_or(ERROR)
}

unsafe extern "C" fn restart_in_child() {
    // SAFETY: a child has one thread, which is here.
    for handle in unsafe { handles::all() } {
        // SAFETY: as above.
        if let Some(live) = unsafe { handle.inner() }.live.as_mut() {
            live.restart_in_child();
        }
    }
}
