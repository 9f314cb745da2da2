//! How filters are compiled and set.

use std::ffi::CStr;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Mutex;

use libc::{c_char, c_int};
use parshall_core::filter::classic::{ClassicInstruction, FrameView};
use parshall_kernel::filter::WithoutLiveWords;

use super::borrowed::{Compiling, with, with_dead};
use super::{activated, fail};
use crate::abi::{DLT_EN10MB, Pcap, Program, instructions, instructions_mut};
use crate::cancellation::Uncancellable;
use crate::forwards::{bpf_validate, system_function};
use crate::live::Live;
use crate::subscription::Wanted;

/// Maximum number of compiled filters that are remembered.
const COMPILED_MAX: usize = 64;

/// What a compiled filter has besides its instructions.
struct Compiled {
    /// Hash of the instructions.
    hash: u64,
    /// For `parshall capture --list`.
    text: String,
    view: FrameView,
}

static COMPILED: Mutex<Vec<Compiled>> = Mutex::new(Vec::new());

fn hash(instructions: &[ClassicInstruction]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(instructions)
}

fn remember(instructions: &[ClassicInstruction], text: &CStr, view: FrameView) {
    let Ok(mut compiled) = COMPILED.lock() else {
        return;
    };
    if compiled.len() >= COMPILED_MAX {
        // `recall` assumes this view, so only the text of such a filter is lost.
        let first = compiled
            .iter()
            .position(|one| one.view == FrameView::Untagged);
        compiled.remove(first.unwrap_or(0));
    }
    compiled.push(Compiled {
        hash: hash(instructions),
        text: text.to_string_lossy().into_owned(),
        view,
    });
}

/// Text and view of a filter. A filter that is not remembered sees frames as on a packet socket.
fn recall(instructions: &[ClassicInstruction]) -> (String, FrameView) {
    let hash = hash(instructions);
    let known = COMPILED.lock().ok().and_then(|compiled| {
        let mut latest_first = compiled.iter().rev();
        latest_first
            .find(|one| one.hash == hash)
            .map(|one| (one.text.clone(), one.view))
    });
    known.unwrap_or_else(|| {
        let text = format!("a program of {} instructions", instructions.len());
        (text, FrameView::Untagged)
    })
}

/// The handle that compiles an expression as on a packet socket; `None` when the dead handle
/// compiles it alike. An error: there is only the dead handle, whose program for `vlan` looks for
/// every tag in the frame.
fn compiling(live: &Live, expression: &CStr) -> Result<Option<Compiling>, ()> {
    let has_vlan = expression.to_bytes().windows(4).any(|word| word == b"vlan");
    if !has_vlan || live.link_type() != DLT_EN10MB {
        return Ok(None);
    }
    let opened = live
        .device()
        .and_then(|device| Compiling::open(&device, live.snaplen));
    opened.map(Some).ok_or(())
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
        let text = match expression.is_null() {
            true => c"",
            false => CStr::from_ptr(expression),
        };
        let (borrowed, view) = match compiling(live, text) {
            Ok(borrowed) => (borrowed, FrameView::Untagged),
            Err(()) => (None, FrameView::Whole),
        };
        let status = match &borrowed {
            Some(borrowed) => with(handle, borrowed.0, |system| {
                compile(system, program, expression, optimize, netmask)
            }),
            None => with_dead(handle, live, |dead| {
                let status = compile(dead, program, expression, optimize, netmask);
                let without =
                    (status != 0).then(|| text.to_str().ok().and_then(WithoutLiveWords::new));
                let Some(without) = without.flatten() else {
                    return status;
                };
                let status = compile(dead, program, without.expression.as_ptr(), 0, netmask);
                if status == 0
                    && let Some(instructions) = instructions_mut(program)
                {
                    without.restore(instructions);
                }
                status
            }),
        };
        if status == 0
            && let Some(instructions) = instructions(program)
        {
            remember(instructions, text, view);
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
        let (text, view) = recall(instructions);
        let wanted = Wanted {
            instructions,
            view,
            text: &text,
        };
        match live.set_filter(wanted) {
            Ok(()) => 0,
            Err(reason) => fail(handle, &reason),
        }
    }
}
