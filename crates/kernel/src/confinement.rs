//! Drops the privileges that a command needs only to attach its programs, in all threads of its process. From then on,
//! it parses what others sent.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;

use crate::capture::keeper::privileges::{FOR_PROGRAMS, FOR_TIMES, forbid_to_all_threads};

/// To send packets, and to lock the memory of AF_XDP.
const FOR_SOCKETS: CapabilitySet = CapabilitySet::NET_RAW.union(CapabilitySet::IPC_LOCK);
/// To create further output files in directories of other users.
const FOR_FILES: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER);
/// To end the measured command, which may belong to another user.
const FOR_CHILD: CapabilitySet = CapabilitySet::KILL;

/// Limit of the time in which all threads drop their capabilities: each does when it next runs.
const PATIENCE: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_millis(2);

/// The capabilities that threads keep. The signal handler reads them.
static KEPT: AtomicU64 = AtomicU64::new(u64::MAX);

/// What a command does after it has attached that needs more privileges than its instrument.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// It creates files in directories of other users.
    pub files: bool,
    /// It ends a command that it started.
    pub child: bool,
    /// It attaches in network namespaces again, and counts there.
    pub namespaces: bool,
}

/// Drops the privileges that no running instrument needs, in all threads and for good: capabilities, privileges that
/// execve(2) would give (`no_new_privs`), and system calls (seccomp).
///
/// # Errors
/// A thread has kept a capability for some seconds, or the kernel refuses a call.
pub fn confine(needs: Needs) -> io::Result<()> {
    let mut kept = FOR_PROGRAMS | FOR_TIMES | FOR_SOCKETS;
    kept.set(FOR_FILES, needs.files);
    kept.set(FOR_CHILD, needs.child);
    // Without seccomp filters, the dropped capabilities still hold.
    let allowed: &[libc::c_long] = match needs.namespaces {
        true => &[libc::SYS_setns],
        false => &[],
    };
    if forbid_to_all_threads(allowed).is_err() {
        rustix::thread::set_no_new_privs(true)?;
    }
    KEPT.store(kept.bits(), Ordering::Release);
    drop_in_this_thread();
    // A thread can change its own capabilities only, so each is interrupted; system calls go on.
    let handler = Handler::install()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let threads = threads_with_capabilities_beyond(kept.bits())?;
        if threads.is_empty() {
            break;
        }
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        for thread in threads {
            // SAFETY: the call has no memory; a thread that has ended is an error that does not matter.
            unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, handler.signal) };
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

/// Threads of this process that have a capability besides these.
fn threads_with_capabilities_beyond(kept: u64) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        let path = entry?.path();
        // The thread may have ended.
        let Ok(text) = std::fs::read_to_string(path.join("status")) else {
            continue;
        };
        let mut lines = text.lines();
        let permitted = lines
            .find_map(|line| line.strip_prefix("CapPrm:"))
            .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
        let number = path
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        if let (Some(permitted), Some(number)) = (permitted, number)
            && permitted & !kept != 0
        {
            found.push(number);
        }
    }
    Ok(found)
}

/// The signal at which a thread drops its capabilities. A thread that blocks signals must leave it unblocked.
pub(crate) fn signal() -> i32 {
    libc::SIGRTMAX() - 1
}

/// The installed handler of the signal. Dropping it makes the process ignore the signal.
struct Handler {
    signal: i32,
    before: libc::sigaction,
}

impl Handler {
    fn install() -> io::Result<Self> {
        let signal = signal();
        // SAFETY: all zeros is a valid value of this structure of numbers.
        let (mut action, mut before): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        action.sa_sigaction = on_signal as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        // SAFETY: both structures live during the call, and the handler is safe in every thread.
        if unsafe { libc::sigaction(signal, &action, &mut before) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { signal, before })
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // A late signal may still come, and its default action would end the process.
        self.before.sa_sigaction = libc::SIG_IGN;
        // SAFETY: as in `install`.
        unsafe { libc::sigaction(self.signal, &self.before, std::ptr::null_mut()) };
    }
}

extern "C" fn on_signal(_: i32) {
    // SAFETY: every thread has an errno of its own, and its interrupted code still needs it.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    drop_in_this_thread();
    // SAFETY: as above.
    unsafe { *errno = before };
}

/// Version 3 of capset(2): two words of 32 bits for each set.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityWords {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Makes system calls only, since it runs in signal handlers.
fn drop_in_this_thread() {
    let kept = KEPT.load(Ordering::Acquire);
    for number in (0..u64::BITS).filter(|number| kept >> number & 1 == 0) {
        // SAFETY: the call has no memory. Without CAP_SETPCAP it does nothing, and for unknown numbers, too.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(number), 0, 0, 0) };
    }
    let mut header = CapabilityHeader {
        version: CAPABILITY_VERSION,
        pid: 0,
    };
    let mut words = [CapabilityWords::default(); 2];
    // SAFETY: both structures are as version 3 has them, and live during the call.
    let read = unsafe { libc::syscall(libc::SYS_capget, &mut header, words.as_mut_ptr()) };
    if read != 0 {
        return;
    }
    for (number, words) in words.iter_mut().enumerate() {
        let kept = (kept >> (32 * number)) as u32;
        words.effective &= kept;
        words.permitted &= kept;
        words.inheritable = 0;
    }
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_capset, &mut header, words.as_ptr()) };
}
