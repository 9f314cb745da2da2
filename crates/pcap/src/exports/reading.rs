//! How packets are waited for and read.

use std::sync::Once;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::{c_char, c_int, c_uchar};
use rustix::event::{EventfdFlags, eventfd};

use super::{activated, fail};
use crate::abi::{ERROR, ERROR_BREAK, Handler, PacketHeader, Pcap};
use crate::cancellation::{self, Uncancellable};
use crate::error_text;
use crate::forwards::system_function;
use crate::handles::{self, Handle};
use crate::live::{Live, NAP, NAP_MAX};
use crate::lock;

/// Maximum packets of one `pcap_dispatch` without a count: about as many as a block of a packet
/// socket has.
const DISPATCH_MAX: c_int = 4096;

export! {
    fn pcap_get_selectable_fd(pcap: *mut Pcap) -> c_int = |_, live| ready_descriptor(live);
    fn pcap_fileno(pcap: *mut Pcap) -> c_int = |_, live| ready_descriptor(live);
    fn pcap_getnonblock(pcap: *mut Pcap, error: *mut c_char) -> c_int = |_, live| c_int::from(live.is_nonblocking.load(Ordering::Relaxed));
}

export_cancellation_points! {
    fn pcap_dispatch(pcap: *mut Pcap, count: c_int, callback: Handler, user: *mut c_uchar) -> c_int = |handle, live| {
        // SAFETY: the callback is the caller's.
        let status = unsafe { deliver(handle, live, count, callback, user) };
        live.update_ready();
        status
    };
    fn pcap_loop(pcap: *mut Pcap, count: c_int, callback: Handler, user: *mut c_uchar) -> c_int = |handle, live| {
        let mut left = count;
        loop {
            // SAFETY: the callback is the caller's.
            let status = unsafe { deliver(handle, live, left, callback, user) };
            left -= if count > 0 { status.max(0) } else { 0 };
            if status < 0 || (count > 0 && left == 0) {
                live.update_ready();
                return status.min(0);
            }
        }
    };
    fn pcap_next(pcap: *mut Pcap, header: *mut PacketHeader) -> *const c_uchar = |handle, live| {
        if read_one(handle, live) != 1 {
            return std::ptr::null();
        }
        live.reader(|reader| {
            // SAFETY: the caller has room for the header.
            unsafe { *header = reader.kept.header };
            reader.kept.bytes.as_ptr()
        })
    };
    fn pcap_next_ex(pcap: *mut Pcap, header: *mut *mut PacketHeader, bytes: *mut *const c_uchar) -> c_int = |handle, live| {
        let status = read_one(handle, live);
        if status == 1 {
            live.reader(|reader| {
                // SAFETY: the caller has room for both pointers.
                unsafe {
                    *header = &raw mut reader.kept.header;
                    *bytes = reader.kept.bytes.as_ptr();
                }
            });
        }
        status
    };
}

/// See pcap_setnonblock(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_setnonblock(
    pcap: *mut Pcap,
    is_nonblocking: c_int,
    error: *mut c_char,
) -> c_int {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        if let Some((_, live)) = activated(pcap) {
            let _uncancellable = Uncancellable::new();
            let was_nonblocking = live.is_nonblocking.load(Ordering::Relaxed);
            // Fails without a free descriptor, as libpcap does: it needs an eventfd to wait.
            if is_nonblocking == 0
                && was_nonblocking
                && let Err(reason) = eventfd(0, EventfdFlags::CLOEXEC)
            {
                let reason = error_text::of_kernel(reason);
                error_text::write(error, &format!("Could not open eventfd: {reason}"));
                return ERROR;
            }
            live.is_nonblocking
                .store(is_nonblocking != 0, Ordering::Relaxed);
            return 0;
        }
        let status = system_function!(pcap_setnonblock: fn(*mut Pcap, c_int, *mut c_char) -> c_int)(
            pcap,
            is_nonblocking,
            error,
        );
        // Before the activation, libpcap notes the mode and returns that the handle is not activated.
        if let Some(handle) = handles::find(pcap) {
            lock(&handle.options).is_nonblocking = is_nonblocking != 0;
        }
        status
    }
}

/// See pcap_breakloop(3PCAP). A signal handler may call it.
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_breakloop(pcap: *mut Pcap) {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        if let Some(handle) = handles::find(pcap) {
            handle.is_broken.store(true, Ordering::Relaxed);
            let _ = rustix::io::write(&handle.wake, &1u64.to_ne_bytes());
        }
        system_breakloop()(pcap);
    }
}

/// The system's `pcap_breakloop`, looked up at the first call, which must not be in a signal
/// handler.
pub(super) fn system_breakloop() -> unsafe extern "C-unwind" fn(*mut Pcap) {
    // SAFETY: the function has this type in pcap/pcap.h.
    unsafe { system_function!(pcap_breakloop: fn(*mut Pcap)) }
}

/// Delivers up to `count_max` packets (below 1: those that wait, up to [`DISPATCH_MAX`]), and waits
/// for the first one. Returns what a `read_op` of libpcap returns.
///
/// `take` may call any function with the same handle. The thread may end in `take` and in the
/// waits, so at these calls there is nothing to drop.
fn read(
    handle: &Handle,
    live: &Live,
    count_max: c_int,
    take: &mut dyn FnMut(&PacketHeader, *const c_uchar),
) -> c_int {
    cancellation::test();
    let count_max = if count_max < 1 {
        DISPATCH_MAX
    } else {
        count_max
    };
    let mut taken = 0;
    let deadline = live.timeout.map(|timeout| Instant::now() + timeout);
    let mut nap = NAP;
    let mut may_wait = false;
    loop {
        let horizon_ns = live.horizon_ns();
        loop {
            // As libpcap on Linux, even after packets were taken. If `wake` is still set, it ends
            // one more wait.
            if handle.is_broken.load(Ordering::Relaxed) {
                handle.is_broken.store(false, Ordering::Relaxed);
                return ERROR_BREAK;
            }
            let Some((header, bytes)) = live.next(horizon_ns) else {
                break;
            };
            take(&header, bytes);
            taken += 1;
            if taken == count_max {
                return taken;
            }
        }
        if taken > 0 {
            return taken;
        }
        let is_nonblocking = live.is_nonblocking.load(Ordering::Relaxed);
        if !is_nonblocking && !may_wait && live.rearm_bell() {
            // A packet may have come in between.
            may_wait = true;
            continue;
        }
        may_wait = false;
        let wait = if is_nonblocking { Duration::ZERO } else { nap };
        // Called in non-blocking mode, too, since the keeper may have ended.
        if let Err(reason) = live.wait(wait, &handle.wake) {
            return fail(handle, &reason);
        }
        if is_nonblocking || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return 0;
        }
        nap = NAP_MAX;
    }
}

/// Delivers packets to a callback as [`read`] does.
///
/// # Safety
/// `callback` takes `user`.
unsafe fn deliver(
    handle: &Handle,
    live: &Live,
    count_max: c_int,
    callback: Handler,
    user: *mut c_uchar,
) -> c_int {
    read(handle, live, count_max, &mut |header, bytes| {
        // SAFETY: the caller vouches for the callback.
        unsafe { callback(user, header, bytes) }
    })
}

/// Reads a packet into the capture, where it stays until the next one.
fn read_one(handle: &Handle, live: &Live) -> c_int {
    let mut taken = None;
    let status = read(handle, live, 1, &mut |header, bytes| {
        taken = Some((*header, bytes));
    });
    if let Some((header, bytes)) = taken {
        // SAFETY: only this thread reads, and it has read nothing since.
        live.reader(|reader| unsafe { reader.keep(header, bytes) });
    }
    live.update_ready();
    status
}

fn ready_descriptor(live: &Live) -> c_int {
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
        if let Some(live) = handle.live.get() {
            live.restart_in_child();
        }
    }
}
