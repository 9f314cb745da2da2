//! Loads an emitted program into the kernel.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use libbpf_sys as sys;
use parshall_core::filter::ebpf::Instruction;
use parshall_core::filter::emit::{EmittedProgram, Hook, Map};

use crate::programs::calls;

/// Room for the verifier's log, in bytes: it keeps the end, where the reason stands.
const LOG_BYTES: usize = 1 << 20;
/// How much of that goes into a message, in lines.
const LOG_LINES: usize = 8;

/// The maps of a program.
#[derive(Clone, Copy, Debug)]
pub struct Maps<'fds> {
    /// `BPF_MAP_TYPE_PERCPU_ARRAY` with one `struct capture_verdict`.
    pub verdict: BorrowedFd<'fds>,
    /// `BPF_MAP_TYPE_PROG_ARRAY`. The kernel lets a program into slot 0 only when it was loaded
    /// with the same type, flags and expected attach type as this one: see [`load`].
    pub jumps: BorrowedFd<'fds>,
    /// `BPF_MAP_TYPE_ARRAY` with one word: subscribers, as bits, that get every packet.
    pub unfiltered: BorrowedFd<'fds>,
}

/// Why a program was not loaded.
#[derive(Debug, thiserror::Error)]
#[error(
    "merged filter of {instructions} instructions: the kernel refused it: {source}{}; see 'parshall doctor', and please report a filter that the verifier does not take",
    tail(log)
)]
pub struct LoadError {
    /// Instructions of the program.
    pub instructions: usize,
    /// What the system call returned.
    pub source: io::Error,
    /// The verifier's whole log.
    pub log: String,
}

impl LoadError {
    /// The kernel's reason: the verifier's last line before its statistics, or the error itself.
    pub fn reason(&self) -> String {
        let is_statistics = |line: &&str| line.starts_with("processed ") || line.trim().is_empty();
        match self.log.lines().rev().find(|line| !is_statistics(line)) {
            Some(line) => line.trim().to_owned(),
            None => self.source.to_string(),
        }
    }
}

/// Loads a program: XDP with attach type `BPF_XDP` and, when it may meet frames of several
/// buffers, `BPF_F_XDP_HAS_FRAGS`; a classifier with attach type 0. It can be attached to any
/// interface whose frames start as the target says.
///
/// # Errors
/// [`LoadError`] with the verifier's log.
pub fn load(program: &EmittedProgram, maps: Maps<'_>) -> Result<OwnedFd, LoadError> {
    let mut instructions = program.instructions.clone();
    for address in &program.map_addresses {
        let map = match address.map {
            Map::Verdict => maps.verdict,
            Map::Jumps => maps.jumps,
            Map::Unfiltered => maps.unfiltered,
        };
        instructions[address.position].immediate = map.as_raw_fd();
    }
    let mut log = Vec::new();
    // Without a log first: writing one costs the verifier time.
    attempt(program.target.hook, &instructions, &mut log)
        .or_else(|_| {
            log.resize(LOG_BYTES, 0);
            attempt(program.target.hook, &instructions, &mut log)
        })
        .map_err(|source| LoadError {
            instructions: instructions.len(),
            source,
            log: String::from_utf8_lossy(&log)
                .trim_end_matches('\0')
                .trim_end()
                .to_owned(),
        })
}

/// Type, type of attachment and flags of the programs of a hook.
fn load_options(hook: Hook) -> (sys::bpf_prog_type, sys::bpf_prog_load_opts) {
    let (kind, expected_attach_type, prog_flags) = match hook {
        Hook::Xdp { frags: true } => (
            sys::BPF_PROG_TYPE_XDP,
            sys::BPF_XDP,
            sys::BPF_F_XDP_HAS_FRAGS,
        ),
        Hook::Xdp { frags: false } => (sys::BPF_PROG_TYPE_XDP, sys::BPF_XDP, 0),
        Hook::SchedCls => (sys::BPF_PROG_TYPE_SCHED_CLS, 0, 0),
    };
    let options = sys::bpf_prog_load_opts {
        expected_attach_type,
        prog_flags,
        ..Default::default()
    };
    (kind, options)
}

fn attempt(hook: Hook, instructions: &[Instruction], log: &mut [u8]) -> io::Result<OwnedFd> {
    const _: () = assert!(size_of::<Instruction>() == size_of::<sys::bpf_insn>());
    let (kind, mut options) = load_options(hook);
    if !log.is_empty() {
        options.log_level = 1;
        options.log_size = log.len() as u32;
        options.log_buf = log.as_mut_ptr().cast();
    }
    // SAFETY: the instructions have the size and layout of the kernel's, and the count is theirs.
    let instructions =
        unsafe { std::slice::from_raw_parts(instructions.as_ptr().cast(), instructions.len()) };
    calls::load_program(kind, c"parshall_filter", instructions, options)
}

/// The last lines of a log, on one line.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
    if last.is_empty() {
        String::new()
    } else {
        format!("; the verifier's log ends: {}", last.join(" | "))
    }
}
