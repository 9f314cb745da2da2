//! How filters are compiled and set.

use std::ffi::CStr;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Mutex;

use libc::{c_char, c_int};
use parshall_core::filter::classic::ClassicInstruction;

use super::dead::of_dead;
use super::{activated, fail};
use crate::abi::{Pcap, Program, instructions};
use crate::cancellation::Uncancellable;
use crate::forwards::{bpf_validate, system_function};

/// Texts of filters that are remembered for `parshall capture --list`.
const TEXTS_MAX: usize = 64;

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
pub unsafe extern "C-unwind" fn pcap_compile(
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
        let _uncancellable = Uncancellable::new();
        let status = of_dead(handle, live, |dead| {
            compile(dead, program, expression, optimize, netmask)
        });
        if status == 0
            && !expression.is_null()
            && let Some(instructions) = instructions(program)
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
pub unsafe extern "C-unwind" fn pcap_setfilter(pcap: *mut Pcap, program: *mut Program) -> c_int {
    // SAFETY: the caller keeps what libpcap asks for.
    unsafe {
        let Some((handle, live)) = activated(pcap) else {
            return system_function!(pcap_setfilter: fn(*mut Pcap, *mut Program) -> c_int)(
                pcap, program,
            );
        };
        let _uncancellable = Uncancellable::new();
        if program.is_null() {
            return fail(handle, "setfilter: No filter specified");
        }
        let Some(instructions) = instructions(program) else {
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
