//! The program that is attached: it counts the packet, decides who wants it, and goes on to the copy.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_sys as sys;

use super::CaptureError;
use super::request::Subscription;

/// What a decider is connected with.
pub(super) struct Connections<'maps> {
    /// `struct capture_verdict` for each CPU.
    pub verdict: BorrowedFd<'maps>,
    /// The jump table whose slot `CAPTURE_JUMP_COPY` has the copying program.
    pub jumps: BorrowedFd<'maps>,
}

/// Loads the program for these subscribers, each with its bit.
///
/// # Errors
/// [`CaptureError::Filter`] for a filter that is none, [`CaptureError::Load`].
pub(super) fn load(
    is_xdp: bool,
    subscribers: &[(usize, &Subscription)],
    connections: &Connections<'_>,
) -> Result<OwnedFd, CaptureError> {
    let pass = if is_xdp { 2 } else { -1 };
    if let Some((_, odd)) = subscribers.iter().find(|(_, one)| !one.filter.is_empty()) {
        return Err(CaptureError::Filter {
            filter: odd.filter.clone(),
            reason: "not yet".into(),
        });
    }
    let mask = subscribers.iter().fold(0u64, |mask, (bit, _)| mask | 1 << bit);
    let snaplen = subscribers.iter().map(|(_, one)| one.snaplen).max();
    let mut code = Vec::new();
    if let Some(snaplen) = snaplen {
        code.extend([
            instruction(0xbf, 6, 1, 0, 0),
            instruction(0x62, 10, 0, -4, 0),
            instruction(0xbf, 2, 10, 0, 0),
            instruction(0x07, 2, 0, 0, -4),
        ]);
        code.extend(wide(1, 1, connections.verdict.as_raw_fd() as u64));
        code.extend([
            instruction(0x85, 0, 0, 0, 1),
            instruction(0x15, 0, 0, 13, 0),
            instruction(0x79, 1, 0, 0, 0),
            instruction(0x07, 1, 0, 0, 1),
            instruction(0x7b, 0, 1, 0, 0),
        ]);
        code.extend(wide(1, 0, mask));
        code.extend([
            instruction(0x7b, 0, 1, 8, 0),
            instruction(0x62, 0, 0, 16, snaplen as i32),
            instruction(0xbf, 1, 6, 0, 0),
        ]);
        code.extend(wide(2, 1, connections.jumps.as_raw_fd() as u64));
        code.extend([
            instruction(0xb7, 3, 0, 0, 0),
            instruction(0x85, 0, 0, 0, 12),
        ]);
    }
    code.extend([
        instruction(0xb7, 0, 0, 0, pass),
        instruction(0x95, 0, 0, 0, 0),
    ]);
    let (kind, attach, flags) = if is_xdp {
        (sys::BPF_PROG_TYPE_XDP, sys::BPF_XDP, sys::BPF_F_XDP_HAS_FRAGS)
    } else {
        (sys::BPF_PROG_TYPE_SCHED_CLS, 0, 0)
    };
    let mut options = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as _,
        expected_attach_type: attach,
        prog_flags: flags,
        ..Default::default()
    };
    // SAFETY: names, instructions and options outlive the call, and the count is theirs.
    let descriptor = unsafe {
        sys::bpf_prog_load(
            kind,
            c"parshall_filter".as_ptr(),
            c"Dual MIT/GPL".as_ptr(),
            code.as_ptr(),
            code.len() as _,
            &mut options,
        )
    };
    if descriptor < 0 {
        return Err(CaptureError::load(std::io::Error::last_os_error()));
    }
    // SAFETY: the kernel has just opened the descriptor for us; nobody else holds it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn instruction(code: u8, destination: u8, source: u8, off: i16, imm: i32) -> sys::bpf_insn {
    sys::bpf_insn {
        code,
        _bitfield_1: sys::bpf_insn::new_bitfield_1(destination, source),
        off,
        imm,
        ..Default::default()
    }
}

fn wide(register: u8, source: u8, value: u64) -> [sys::bpf_insn; 2] {
    [
        instruction(0x18, register, source, 0, value as u32 as i32),
        instruction(0, 0, 0, 0, (value >> 32) as i32),
    ]
}
