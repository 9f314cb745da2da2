//! What crosses between a program and libpcap, as `pcap/pcap.h` of libpcap 1.10 has it.

use libc::{c_char, c_int, c_uchar, c_uint, timeval};
use parshall_core::filter::classic::ClassicInstruction;

/// `pcap_t`, opaque to callers.
#[repr(C)]
pub struct Pcap {
    _opaque: [u8; 0],
}

/// `struct pcap_pkthdr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PacketHeader {
    /// `tv_usec` has nanoseconds in captures of that precision.
    pub time: timeval,
    /// Bytes that were captured.
    pub captured_bytes: u32,
    /// Bytes on the wire.
    pub wire_bytes: u32,
}

/// `struct pcap_stat`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// Packets that the filter accepted, including those dropped afterwards.
    pub received: c_uint,
    /// Of these, packets that were dropped because the buffer was full.
    pub dropped: c_uint,
    /// Packets that the interface dropped.
    pub interface_dropped: c_uint,
}

/// `struct bpf_program`.
#[repr(C)]
pub struct Program {
    pub length: c_uint,
    pub instructions: *mut ClassicInstruction,
}

/// The instructions of a program.
///
/// # Safety
/// The program comes from libpcap, and has as many instructions as its `length` says.
pub unsafe fn instructions<'program>(
    program: *const Program,
) -> Option<&'program [ClassicInstruction]> {
    // SAFETY: the caller vouches for the pointer.
    let program = unsafe { program.as_ref() }?;
    if program.instructions.is_null() {
        return None;
    }
    // SAFETY: the caller vouches for the length; `struct bpf_insn` has the layout of ours.
    Some(unsafe { std::slice::from_raw_parts(program.instructions, program.length as usize) })
}

/// The instructions of a program, to change them.
///
/// # Safety
/// As for [`instructions`], and nothing else refers to the instructions.
pub unsafe fn instructions_mut<'program>(
    program: *mut Program,
) -> Option<&'program mut [ClassicInstruction]> {
    // SAFETY: the caller vouches for the pointer.
    let program = unsafe { program.as_ref() }?;
    if program.instructions.is_null() {
        return None;
    }
    // SAFETY: as above.
    Some(unsafe { std::slice::from_raw_parts_mut(program.instructions, program.length as usize) })
}

/// `pcap_handler`.
pub type Handler = unsafe extern "C-unwind" fn(*mut c_uchar, *const PacketHeader, *const c_uchar);

/// Bytes of a buffer for an error.
pub const ERROR_BYTES: usize = 256;

pub const ERROR: c_int = -1;
pub const ERROR_BREAK: c_int = -2;
pub const ERROR_ACTIVATED: c_int = -4;

pub const DLT_EN10MB: c_int = 1;
/// Bare IP; files have another number for it (`LINKTYPE_RAW`, 101).
pub const DLT_RAW: c_int = 12;
pub const DLT_DOCSIS: c_int = 143;

pub const PRECISION_NANO: c_int = 1;

/// `pcap_direction_t`.
pub const DIRECTION_IN: c_int = 1;
pub const DIRECTION_OUT: c_int = 2;

/// `eproto_db`: names of Ethernet protocols. libpcap exports it without documentation.
#[repr(C)]
pub struct EthernetProtocol {
    name: *const c_char,
    number: u16,
}

// SAFETY: the names are constants.
unsafe impl Sync for EthernetProtocol {}

const fn protocol(name: &'static std::ffi::CStr, number: u16) -> EthernetProtocol {
    EthernetProtocol {
        name: name.as_ptr(),
        number,
    }
}

#[unsafe(no_mangle)]
pub static eproto_db: [EthernetProtocol; 13] = [
    protocol(c"aarp", 0x80f3),
    protocol(c"arp", 0x0806),
    protocol(c"atalk", 0x809b),
    protocol(c"decnet", 0x6003),
    protocol(c"ip", 0x0800),
    protocol(c"ip6", 0x86dd),
    protocol(c"lat", 0x6004),
    protocol(c"loopback", 0x9000),
    protocol(c"mopdl", 0x6001),
    protocol(c"moprc", 0x6002),
    protocol(c"rarp", 0x8035),
    protocol(c"sca", 0x6007),
    EthernetProtocol {
        name: std::ptr::null(),
        number: 0,
    },
];

/// Kept for old programs; the documented interface is `pcap_lib_version`.
#[unsafe(no_mangle)]
pub static pcap_version: [u8; 7] = *b"1.10.3\0";
