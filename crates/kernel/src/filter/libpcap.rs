//! The few functions of libpcap that the filters need.
//!
//! The crates that wrap libpcap hide the instructions of a compiled program, which are all that is
//! wanted here.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::net::Ipv4Addr;
use std::ptr::NonNull;

use parshall_core::abi::CAPTURE_SNAPLEN_MAX;
use parshall_core::filter::classic::{ClassicInstruction, ClassicProgram};
use parshall_core::filter::emit::LinkLayer;
use parshall_core::filter::{MergedFilter, Subscription};

use super::live_words::WithoutLiveWords;

const DLT_EN10MB: c_int = 1;
const DLT_RAW: c_int = 12;
const PCAP_NETMASK_UNKNOWN: u32 = 0xffff_ffff;

#[repr(C)]
struct Handle {
    _opaque: [u8; 0],
}

#[repr(C)]
struct Program {
    length: c_uint,
    instructions: *mut ClassicInstruction,
}

unsafe extern "C" {
    fn pcap_open_dead(link_type: c_int, snaplen: c_int) -> *mut Handle;
    fn pcap_close(handle: *mut Handle);
    fn pcap_geterr(handle: *mut Handle) -> *const c_char;
    fn pcap_compile(
        handle: *mut Handle,
        program: *mut Program,
        expression: *const c_char,
        optimize: c_int,
        netmask: u32,
    ) -> c_int;
    fn pcap_lib_version() -> *const c_char;
    fn pcap_freecode(program: *mut Program);
    fn bpf_filter(
        instructions: *const ClassicInstruction,
        packet: *const u8,
        wire_length: c_uint,
        captured_length: c_uint,
    ) -> c_uint;
}

/// The version of libpcap, such as `1.10.3`, which its own text begins with words.
pub(crate) fn version() -> String {
    // SAFETY: libpcap returns a constant string.
    let text = unsafe { CStr::from_ptr(pcap_lib_version()) }.to_string_lossy();
    let is_number = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
    text.split(' ').find(is_number).unwrap_or(&text).into()
}

/// A handle without an interface, for one kind of link layer. Its compiler expects frames as they
/// were on the wire, with their VLAN tags.
pub(super) struct Compiler {
    handle: NonNull<Handle>,
    netmask: u32,
}

impl Compiler {
    /// `None` when there is no memory.
    pub fn new(link_layer: LinkLayer, netmask: Option<Ipv4Addr>) -> Option<Self> {
        let link_type = match link_layer {
            LinkLayer::Ethernet => DLT_EN10MB,
            LinkLayer::RawIp => DLT_RAW,
        };
        // SAFETY: the function takes numbers only.
        let handle = unsafe { pcap_open_dead(link_type, CAPTURE_SNAPLEN_MAX as c_int) };
        Some(Self {
            handle: NonNull::new(handle)?,
            // In host byte order: compiled code compares it with words that were loaded as numbers.
            netmask: netmask.map_or(PCAP_NETMASK_UNKNOWN, u32::from),
        })
    }

    /// The program of an expression without libpcap's optimizer, or what libpcap says of it.
    pub fn compile(&mut self, expression: &CString) -> Result<Vec<ClassicInstruction>, String> {
        self.compile_by(expression, false)
    }

    /// The program by libpcap's optimizer where that provably accepts the same frames, and otherwise without it: the
    /// optimizer drops and moves loads, which reject a frame that is too short, and mistakes some tests for others.
    pub fn compile_short(
        &mut self,
        expression: &CString,
    ) -> Result<Vec<ClassicInstruction>, String> {
        let plain = self.compile(expression)?;
        Ok(match self.compile_by(expression, true) {
            Ok(optimized) if have_one_verdict(&plain, &optimized) => optimized,
            _ => plain,
        })
    }

    fn compile_by(
        &mut self,
        expression: &CString,
        is_optimized: bool,
    ) -> Result<Vec<ClassicInstruction>, String> {
        self.compile_all_words(expression, is_optimized)
            .or_else(|complaint| {
                let text = expression.to_str().ok();
                let without = text.and_then(WithoutLiveWords::new).ok_or(complaint)?;
                let mut instructions = self.compile_all_words(&without.expression, false)?;
                without.restore(&mut instructions);
                Ok(instructions)
            })
    }

    fn compile_all_words(
        &mut self,
        expression: &CString,
        is_optimized: bool,
    ) -> Result<Vec<ClassicInstruction>, String> {
        let mut program = Program {
            length: 0,
            instructions: std::ptr::null_mut(),
        };
        // SAFETY: the handle is open, the expression ends with 0, and both outlive the call, which
        // fills in the program.
        let status = unsafe {
            pcap_compile(
                self.handle.as_ptr(),
                &mut program,
                expression.as_ptr(),
                is_optimized.into(),
                self.netmask,
            )
        };
        if status != 0 {
            // SAFETY: the handle is open; its message ends with 0 and is copied at once.
            let message = unsafe { CStr::from_ptr(pcap_geterr(self.handle.as_ptr())) };
            return Err(message.to_string_lossy().into_owned());
        }
        // SAFETY: libpcap has just filled in so many instructions; its `struct bpf_insn` has the
        // layout of ours.
        let instructions = unsafe {
            std::slice::from_raw_parts(program.instructions, program.length as usize).to_vec()
        };
        // SAFETY: the program is the one just filled in, and nothing refers to it any more.
        unsafe { pcap_freecode(&mut program) };
        Ok(instructions)
    }
}

/// Whether two programs provably accept the same frames.
fn have_one_verdict(one: &[ClassicInstruction], other: &[ClassicInstruction]) -> bool {
    let subscription = |subscriber, instructions| {
        Some(Subscription {
            subscriber,
            program: ClassicProgram::new(instructions).ok()?,
            snaplen_bytes: 1,
        })
    };
    let both = [subscription(0, one), subscription(1, other)];
    let [Some(one), Some(other)] = both else {
        return false;
    };
    MergedFilter::new(&[one, other]).is_ok_and(|merged| merged.agrees())
}

impl Drop for Compiler {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and closed only here.
        unsafe { pcap_close(self.handle.as_ptr()) };
    }
}

/// Runs a program by libpcap's own interpreter on a whole frame.
///
/// # Safety
/// The program is valid: every jump stays in it and its last instruction returns.
pub(super) unsafe fn run(instructions: &[ClassicInstruction], frame: &[u8]) -> u32 {
    let bytes = frame.len() as c_uint;
    // SAFETY: the frame has so many bytes; the caller vouches for the program.
    unsafe { bpf_filter(instructions.as_ptr(), frame.as_ptr(), bytes, bytes) }
}
