//! Calls of libbpf that `libbpf-rs` does not wrap, each once.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::{MapHandle, MapType};
use libbpf_sys as sys;

/// Takes over a descriptor that libbpf returned, or the error in its place.
pub(crate) fn owned(descriptor: i32) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::from_raw_os_error(-descriptor));
    }
    // SAFETY: libbpf has just opened the descriptor for us, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Creates a map with keys of 4 bytes.
pub(crate) fn create_map(
    kind: MapType,
    name: &str,
    value_bytes: usize,
    entries: usize,
    options: sys::bpf_map_create_opts,
) -> libbpf_rs::Result<MapHandle> {
    let options = sys::bpf_map_create_opts {
        sz: size_of::<sys::bpf_map_create_opts>() as _,
        ..options
    };
    let (value_bytes, entries) = (value_bytes as u32, entries as u32);
    MapHandle::create(kind, Some(name), 4, value_bytes, entries, &options)
}

/// Two instructions that return `verdict`, whatever the packet.
pub(crate) fn return_constant(verdict: i32) -> [sys::bpf_insn; 2] {
    let move_immediate_to_r0 = sys::bpf_insn {
        code: 0xb7,
        imm: verdict,
        ..Default::default()
    };
    let exit = sys::bpf_insn {
        code: 0x95,
        ..Default::default()
    };
    [move_immediate_to_r0, exit]
}

/// Runs a program on a frame, or on nothing (`BPF_PROG_TEST_RUN`). `options` has all but frame and size.
pub(crate) fn test_run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    options: sys::bpf_test_run_opts,
) -> io::Result<sys::bpf_test_run_opts> {
    let mut options = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as _,
        ..options
    };
    if !frame.is_empty() {
        options.data_in = frame.as_ptr().cast();
        options.data_size_in = frame.len() as u32;
    }
    // SAFETY: the frame outlives the call and has this size; nothing is written back into it.
    let status = unsafe { sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    if status < 0 {
        return Err(io::Error::from_raw_os_error(-status));
    }
    Ok(options)
}

/// Loads a program; `options` may give an attach type, flags and a log buffer.
pub(crate) fn load_program(
    kind: sys::bpf_prog_type,
    name: &CStr,
    instructions: &[sys::bpf_insn],
    options: sys::bpf_prog_load_opts,
) -> io::Result<OwnedFd> {
    let mut options = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as _,
        ..options
    };
    // SAFETY: names, instructions and options outlive the call, and the count is that of the instructions.
    owned(unsafe {
        sys::bpf_prog_load(
            kind,
            name.as_ptr(),
            c"Dual MIT/GPL".as_ptr(),
            instructions.as_ptr(),
            instructions.len() as _,
            &mut options,
        )
    })
}

/// Attaches a program to an interface, a cgroup, or what its attach type expects.
pub(crate) fn create_link(
    program: BorrowedFd<'_>,
    target: i32,
    attachment: sys::bpf_attach_type,
    options: sys::bpf_link_create_opts,
) -> io::Result<OwnedFd> {
    let options = sys::bpf_link_create_opts {
        sz: size_of::<sys::bpf_link_create_opts>() as _,
        ..options
    };
    // SAFETY: the options outlive the call.
    owned(unsafe { sys::bpf_link_create(program.as_raw_fd(), target, attachment, &options) })
}

/// Begins a walk of the iterator behind a link.
pub(crate) fn create_iterator(link: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the call takes a descriptor.
    owned(unsafe { sys::bpf_iter_create(link.as_raw_fd()) })
}

/// The kernel's information about a program, with its run-time statistics.
pub(crate) fn program_info(program: BorrowedFd<'_>) -> Option<sys::bpf_prog_info> {
    let mut info = sys::bpf_prog_info::default();
    let mut length = size_of::<sys::bpf_prog_info>() as u32;
    // SAFETY: `info` is a zeroed structure of `length` bytes: no pointers in it that the kernel would follow, and it
    // writes at most `length` bytes.
    let status = unsafe {
        sys::bpf_obj_get_info_by_fd(
            program.as_raw_fd(),
            std::ptr::from_mut(&mut info).cast(),
            &mut length,
        )
    };
    (status == 0).then_some(info)
}

/// Switches the kernel's run-time statistics on while the descriptor is open. They cost every run of every program
/// some tens of ns.
pub(crate) fn enable_run_time_statistics() -> io::Result<OwnedFd> {
    // SAFETY: the call takes a number.
    owned(unsafe { sys::bpf_enable_stats(sys::BPF_STATS_RUN_TIME) })
}
