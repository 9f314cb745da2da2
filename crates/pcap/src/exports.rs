//! The functions of libpcap that know captures of ours from those of the system's.

use std::ffi::CStr;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, Once};
use std::time::Instant;

use libc::{FILE, c_char, c_int, c_uchar, c_void, size_t, timeval};
use parshall_core::filter::classic::ClassicInstruction;
use parshall_kernel::clock::monotonic_ns;
use parshall_kernel::net::interface::Interface;

use crate::abi::{
    DIRECTION_OUT, ERROR, ERROR_ACTIVATED, ERROR_BREAK, Handler, PacketHeader, Pcap, Program,
    Statistics,
};
use crate::error_text;
use crate::forwards::{bpf_validate, pcap_datalink_val_to_name, system_function};
use crate::handles::{self, Handle, Options};
use crate::live::{self, HOLD_BACK_NS, Live, NAP, NAP_MAX};

/// Texts of filters that are remembered for `parshall capture --list`.
const TEXTS_MAX: usize = 64;
/// Packets of one `pcap_dispatch` without a count: about what a block of a packet socket has.
const DISPATCH_MAX: c_int = 4096;

/// The handle and its capture, when it was activated on a ring.
///
/// # Safety
/// As of every function of libpcap: one thread uses a handle.
unsafe fn activated<'program>(pcap: *const Pcap) -> Option<(&'program Handle, &'program mut Live)> {
    // SAFETY: the caller vouches for it.
    let handle = unsafe { handles::find(pcap) }?;
    // SAFETY: as above.
    let live = unsafe { handle.inner() }.live.as_mut()?;
    Some((handle, live))
}

/// Notes an error; returns libpcap's status for it.
unsafe fn fail(handle: &Handle, reason: &str) -> c_int {
    // SAFETY: the caller's thread uses the handle.
    unsafe { handle.inner() }.error.set(reason);
    ERROR
}

/// The same for what libpcap refuses after the activation, in its words.
unsafe fn fail_activated(handle: &Handle) -> c_int {
    // SAFETY: the caller's thread uses the handle.
    unsafe { fail(handle, "can't perform  operation on activated capture") };
    ERROR_ACTIVATED
}

/// Exports functions that do one thing for our captures, and another, or the system's own, for all others.
macro_rules! export {
    ($(
        fn $name:ident($pcap:ident: *mut Pcap $(, $argument:ident: $type:ty)*) $(-> $result:ty)? = |$handle:pat_param, $live:pat_param| $ours:expr;
    )*) => {$(
        /// See the manual page of the same name.
        ///
        /// # Safety
        /// As libpcap documents.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($pcap: *mut Pcap $(, $argument: $type)*) $(-> $result)? {
            // SAFETY: the caller meets libpcap's requirements.
            match unsafe { activated($pcap) } {
                Some(($handle, $live)) => $ours,
                // SAFETY: as above.
                None => unsafe { system_function!($name: fn(*mut Pcap $(, $type)*) $(-> $result)?)($pcap $(, $argument)*) },
            }
        }
    )*};
}

export! {
    fn pcap_datalink(pcap: *mut Pcap) -> c_int = |_, live| live.link_type;
    fn pcap_datalink_ext(pcap: *mut Pcap) -> c_int = |_, live| live.link_type;
    fn pcap_snapshot(pcap: *mut Pcap) -> c_int = |_, live| live.snaplen;
    fn pcap_is_swapped(pcap: *mut Pcap) -> c_int = |_, _| 0;
    fn pcap_major_version(pcap: *mut Pcap) -> c_int = |_, _| 0;
    fn pcap_minor_version(pcap: *mut Pcap) -> c_int = |_, _| 0;
    fn pcap_bufsize(pcap: *mut Pcap) -> c_int = |_, live| live.ring_bytes();
    fn pcap_file(pcap: *mut Pcap) -> *mut FILE = |_, _| std::ptr::null_mut();
    fn pcap_get_required_select_timeout(pcap: *mut Pcap) -> *const timeval = |_, _| std::ptr::null();
    // The answer is the same before and after the activation.
    fn pcap_can_set_rfmon(pcap: *mut Pcap) -> c_int = |_, _| {
        // SAFETY: the caller keeps what libpcap asks for.
        unsafe { system_function!(pcap_can_set_rfmon: fn(*mut Pcap) -> c_int)(pcap) }
    };
    fn pcap_get_selectable_fd(pcap: *mut Pcap) -> c_int = |_, live| ready_descriptor(live);
    fn pcap_fileno(pcap: *mut Pcap) -> c_int = |_, live| ready_descriptor(live);
    fn pcap_geterr(pcap: *mut Pcap) -> *mut c_char = |handle, _| {
        // SAFETY: the calling thread uses the handle; the text stays with it.
        unsafe { handle.inner() }.error.as_mut_ptr()
    };
    fn pcap_perror(pcap: *mut Pcap, prefix: *const c_char) = |handle, _| {
        // SAFETY: the calling thread uses the handle; both texts end with 0.
        unsafe {
            let error = CStr::from_ptr(handle.inner().error.as_mut_ptr()).to_string_lossy();
            let prefix = CStr::from_ptr(prefix).to_string_lossy();
            let _ = writeln!(std::io::stderr(), "{prefix}: {error}");
        }
    };
    fn pcap_list_datalinks(pcap: *mut Pcap, list: *mut *mut c_int) -> c_int = |handle, live| {
        let link_types = live.link_types();
        // SAFETY: pcap_free_datalinks frees it; it has room for all; the caller has room for the pointer.
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
        // SAFETY: a name is a constant that ends with 0; the calling thread uses the handle.
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
            // SAFETY: the calling thread uses the handle.
            return unsafe { fail(handle, "Invalid direction") };
        }
        live.direction = direction;
        0
    };
    fn pcap_stats(pcap: *mut Pcap, statistics: *mut Statistics) -> c_int = |handle, live| {
        match live.statistics() {
            Ok(counted) => {
                // SAFETY: the caller has room for it.
                unsafe { *statistics = counted };
                0
            }
            // SAFETY: the calling thread uses the handle.
            Err(reason) => unsafe { fail(handle, &reason) },
        }
    };
    fn pcap_inject(pcap: *mut Pcap, frame: *const c_void, bytes: size_t) -> c_int = |handle, live| {
        // SAFETY: the caller's frame has so many bytes; its thread uses the handle.
        unsafe { inject(handle, live, frame.cast(), bytes) }
    };
    fn pcap_sendpacket(pcap: *mut Pcap, frame: *const c_uchar, bytes: c_int) -> c_int = |handle, live| {
        // SAFETY: the caller's frame has so many bytes; its thread uses the handle.
        unsafe { inject(handle, live, frame, usize::try_from(bytes).unwrap_or(0)).min(0) }
    };
    fn pcap_dump_open(pcap: *mut Pcap, name: *const c_char) -> *mut c_void = |handle, live| {
        // SAFETY: the caller keeps what libpcap asks for.
        unsafe { of_dead(handle, live.dead, |dead| system_function!(pcap_dump_open: fn(*mut Pcap, *const c_char) -> *mut c_void)(dead, name)) }
    };
    fn pcap_dump_open_append(pcap: *mut Pcap, name: *const c_char) -> *mut c_void = |handle, live| {
        // SAFETY: the caller keeps what libpcap asks for.
        unsafe { of_dead(handle, live.dead, |dead| system_function!(pcap_dump_open_append: fn(*mut Pcap, *const c_char) -> *mut c_void)(dead, name)) }
    };
    fn pcap_dump_fopen(pcap: *mut Pcap, file: *mut FILE) -> *mut c_void = |handle, live| {
        // SAFETY: the caller keeps what libpcap asks for.
        unsafe { of_dead(handle, live.dead, |dead| system_function!(pcap_dump_fopen: fn(*mut Pcap, *mut FILE) -> *mut c_void)(dead, file)) }
    };
}

/// Exports functions that set an option: the system's handle checks and keeps it, we note it.
macro_rules! export_options {
    ($(fn $name:ident($value:ident: c_int) = |$options:ident| $note:expr;)*) => {$(
        /// See the manual page of the same name.
        ///
        /// # Safety
        /// As libpcap documents.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(pcap: *mut Pcap, $value: c_int) -> c_int {
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
    // A ring delivers at once anyway.
    fn pcap_set_immediate_mode(_value: c_int) = |_options| ();
}

unsafe fn set(
    pcap: *mut Pcap,
    system: impl FnOnce(*mut Pcap) -> c_int,
    note: impl FnOnce(&mut Options),
) -> c_int {
    // SAFETY: the caller's thread uses the handle.
    unsafe {
        if let Some((handle, _)) = activated(pcap) {
            return fail_activated(handle);
        }
        let status = system(pcap);
        // A warning means that libpcap ignored the value.
        if status == 0
            && let Some(handle) = handles::find(pcap)
        {
            note(&mut handle.inner().options);
        }
        status
    }
}

/// See pcap_create(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_create(device: *const c_char, error: *mut c_char) -> *mut Pcap {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        let pcap = system_function!(pcap_create: fn(*const c_char, *mut c_char) -> *mut Pcap)(
            device, error,
        );
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
pub unsafe extern "C" fn pcap_activate(pcap: *mut Pcap) -> c_int {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        if let Some((handle, _)) = activated(pcap) {
            return fail_activated(handle);
        }
        let ours = handles::find(pcap).map(|handle| handle.inner());
        let reason = match ours.and_then(activate_on_ring) {
            Some(Ok(())) => return 0,
            Some(Err(reason)) => Some(reason),
            None => None,
        };
        let status = system_function!(pcap_activate: fn(*mut Pcap) -> c_int)(pcap);
        if status >= 0 {
            notice(reason.as_deref());
            handles::remove(pcap);
        }
        status
    }
}

/// Reports that a capture does not use the ring.
fn notice(reason: Option<&str>) {
    if let Some(reason) = reason {
        let _ = writeln!(
            std::io::stderr(),
            "parshall: {reason}; capturing by a packet socket, without the ring"
        );
    }
}

/// None when the system's libpcap is to capture, which also reports errors.
fn activate_on_ring(inner: &mut handles::Inner) -> Option<Result<(), String>> {
    let options = &inner.options;
    let interface = Interface::find(&options.device).ok()?;
    if !live::can_serve(options) || !interface.is_up {
        return None;
    }
    let name = interface.name.clone();
    Some(match Live::activate(options, interface) {
        Ok(live) => {
            inner.live = Some(live);
            Ok(())
        }
        Err(reason) => Err(format!("interface {name}: {reason}")),
    })
}

/// See pcap_open_live(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_open_live(
    device: *const c_char,
    snaplen: c_int,
    promiscuous: c_int,
    timeout_ms: c_int,
    error: *mut c_char,
) -> *mut Pcap {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        let pcap = pcap_create(device, error);
        if pcap.is_null() {
            return pcap;
        }
        pcap_set_snaplen(pcap, snaplen);
        pcap_set_promisc(pcap, promiscuous);
        pcap_set_timeout(pcap, timeout_ms);
        let ours = handles::find(pcap).map(|handle| handle.inner());
        let reason = match ours.and_then(activate_on_ring) {
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
        if !pcap.is_null() {
            notice(reason.as_deref());
        }
        pcap
    }
}

/// See pcap_close(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_close(pcap: *mut Pcap) {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        handles::remove(pcap);
        system_function!(pcap_close: fn(*mut Pcap))(pcap);
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
        system_function!(pcap_breakloop: fn(*mut Pcap))(pcap);
    }
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
        let wait = if is_nonblocking {
            std::time::Duration::ZERO
        } else {
            nap
        };
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

/// See pcap_dispatch(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_dispatch(
    pcap: *mut Pcap,
    count: c_int,
    callback: Handler,
    user: *mut c_uchar,
) -> c_int {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        let Some((handle, _)) = activated(pcap) else {
            return system_function!(pcap_dispatch: fn(*mut Pcap, c_int, Handler, *mut c_uchar) -> c_int)(
                pcap, count, callback, user,
            );
        };
        let status = read(handle, count, &mut |header, bytes| {
            callback(user, header, bytes)
        });
        taken(handle, status)
    }
}

/// See pcap_loop(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_loop(
    pcap: *mut Pcap,
    count: c_int,
    callback: Handler,
    user: *mut c_uchar,
) -> c_int {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        let Some((handle, _)) = activated(pcap) else {
            return system_function!(pcap_loop: fn(*mut Pcap, c_int, Handler, *mut c_uchar) -> c_int)(
                pcap, count, callback, user,
            );
        };
        let mut left = count;
        loop {
            let status = read(handle, left, &mut |header, bytes| {
                callback(user, header, bytes)
            });
            if status < 0 {
                return taken(handle, status);
            }
            left -= if count > 0 { status } else { 0 };
            if count > 0 && left == 0 {
                return taken(handle, 0);
            }
        }
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

/// See pcap_next(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_next(pcap: *mut Pcap, header: *mut PacketHeader) -> *const c_uchar {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        let Some((handle, _)) = activated(pcap) else {
            return system_function!(pcap_next: fn(*mut Pcap, *mut PacketHeader) -> *const c_uchar)(
                pcap, header,
            );
        };
        match (read_one(handle), activated(pcap)) {
            (1, Some((_, live))) => {
                *header = live.kept.header;
                live.kept.bytes.as_ptr()
            }
            _ => std::ptr::null(),
        }
    }
}

/// See pcap_next_ex(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_next_ex(
    pcap: *mut Pcap,
    header: *mut *mut PacketHeader,
    bytes: *mut *const c_uchar,
) -> c_int {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        let Some((handle, _)) = activated(pcap) else {
            return system_function!(pcap_next_ex: fn(*mut Pcap, *mut *mut PacketHeader, *mut *const c_uchar) -> c_int)(
                pcap, header, bytes,
            );
        };
        let status = read_one(handle);
        if status == 1
            && let Some((_, live)) = activated(pcap)
        {
            *header = &raw mut live.kept.header;
            *bytes = live.kept.bytes.as_ptr();
        }
        status
    }
}

/// See pcap_getnonblock(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_getnonblock(pcap: *mut Pcap, error: *mut c_char) -> c_int {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        match activated(pcap) {
            Some((_, live)) => c_int::from(live.is_nonblocking),
            None => {
                system_function!(pcap_getnonblock: fn(*mut Pcap, *mut c_char) -> c_int)(pcap, error)
            }
        }
    }
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

/// See pcap_get_tstamp_precision(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_get_tstamp_precision(pcap: *mut Pcap) -> c_int {
    // SAFETY: the caller keeps what libpcap asks for; the option is the same before and after the activation.
    unsafe { system_function!(pcap_get_tstamp_precision: fn(*mut Pcap) -> c_int)(pcap) }
}

/// See pcap_list_tstamp_types(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_list_tstamp_types(pcap: *mut Pcap, list: *mut *mut c_int) -> c_int {
    // SAFETY: the caller keeps what libpcap asks for; the list is the same before and after the activation.
    unsafe {
        system_function!(pcap_list_tstamp_types: fn(*mut Pcap, *mut *mut c_int) -> c_int)(
            pcap, list,
        )
    }
}

/// Texts of compiled filters, by a hash of their instructions: for display only.
static TEXTS: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());

fn hash(instructions: &[ClassicInstruction]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(instructions)
}

/// See pcap_compile(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_compile(
    pcap: *mut Pcap,
    program: *mut Program,
    expression: *const c_char,
    optimize: c_int,
    netmask: u32,
) -> c_int {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        let compile = system_function!(pcap_compile: fn(*mut Pcap, *mut Program, *const c_char, c_int, u32) -> c_int);
        let Some((handle, live)) = activated(pcap) else {
            return compile(pcap, program, expression, optimize, netmask);
        };
        let status = of_dead(handle, live.dead, |dead| {
            compile(dead, program, expression, optimize, netmask)
        });
        if status == 0
            && !expression.is_null()
            && let Some(instructions) = live::instructions(program)
            && let Ok(mut texts) = TEXTS.lock()
        {
            let first = usize::from(texts.len() >= TEXTS_MAX);
            texts.drain(..first);
            let text = CStr::from_ptr(expression).to_string_lossy().into_owned();
            texts.push((hash(instructions), text));
        }
        status
    }
}

/// See pcap_setfilter(3PCAP).
///
/// # Safety
/// As libpcap documents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setfilter(pcap: *mut Pcap, program: *mut Program) -> c_int {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        let Some((handle, live)) = activated(pcap) else {
            return system_function!(pcap_setfilter: fn(*mut Pcap, *mut Program) -> c_int)(
                pcap, program,
            );
        };
        if program.is_null() {
            return fail(handle, "setfilter: No filter specified");
        }
        let Some(instructions) = live::instructions(program) else {
            return fail(handle, "BPF program is not valid");
        };
        if bpf_validate(instructions.as_ptr(), instructions.len() as c_int) == 0 {
            return fail(handle, "BPF program is not valid");
        }
        let hash = hash(instructions);
        let known = TEXTS.lock().ok().and_then(|texts| {
            let mut texts = texts.iter().rev();
            texts
                .find(|(one, _)| *one == hash)
                .map(|(_, text)| text.clone())
        });
        let text =
            known.unwrap_or_else(|| format!("a program of {} instructions", instructions.len()));
        match live.set_filter(instructions, &text) {
            Ok(()) => 0,
            Err(reason) => fail(handle, &reason),
        }
    }
}

/// Calls a function of the system's libpcap with the dead handle, and takes over its error.
unsafe fn of_dead<T: Failure>(
    handle: &Handle,
    dead: *mut Pcap,
    call: impl FnOnce(*mut Pcap) -> T,
) -> T {
    let result = call(dead);
    if result.is_failure() {
        // SAFETY: the handle is open; its message ends with 0 and is copied at once.
        let text = unsafe {
            CStr::from_ptr(system_function!(pcap_geterr: fn(*mut Pcap) -> *mut c_char)(
                dead,
            ))
        };
        // SAFETY: the caller's thread uses the handle.
        unsafe { fail(handle, &text.to_string_lossy()) };
    }
    result
}

/// The value by which a function of libpcap reports a failure.
trait Failure {
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

unsafe fn inject(handle: &Handle, live: &mut Live, frame: *const c_uchar, bytes: usize) -> c_int {
    // SAFETY: the caller vouches for so many bytes.
    match live.inject(unsafe { std::slice::from_raw_parts(frame, bytes) }) {
        Ok(sent) => sent as c_int,
        // SAFETY: the caller's thread uses the handle.
        Err(reason) => unsafe { fail(handle, &reason) },
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
