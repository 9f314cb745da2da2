//! libpcap asked directly: it knows nothing of our compiler, pieces, views and merging.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};

use parshall_core::filter::classic::{ClassicInstruction, Tag};
use parshall_core::filter::emit::LinkLayer;

const SNAPLEN_BYTES: c_int = 262_144;
/// `BPF_LD | BPF_ABS`, and `BPF_LD | BPF_IMM`.
const LOAD_ABSOLUTE: u16 = 0x20;
const LOAD_CONSTANT: u16 = 0x00;
/// Class and mode of an instruction.
const CLASS_AND_MODE: u16 = 0xe7;
/// `SKF_AD_OFF`, and behind it `SKF_AD_VLAN_TAG`, `SKF_AD_VLAN_TAG_PRESENT`, `SKF_AD_VLAN_TPID`.
const ANCILLARY: u32 = 0xffff_f000;
const TAG: u32 = ANCILLARY + 44;
const TAG_PRESENT: u32 = ANCILLARY + 48;
const TAG_PROTOCOL: u32 = ANCILLARY + 60;

#[repr(C)]
struct Program {
    length: c_uint,
    instructions: *mut ClassicInstruction,
}

unsafe extern "C" {
    fn pcap_open_dead(link_type: c_int, snaplen: c_int) -> *mut c_void;
    fn pcap_create(device: *const c_char, error: *mut c_char) -> *mut c_void;
    fn pcap_activate(handle: *mut c_void) -> c_int;
    fn pcap_close(handle: *mut c_void);
    fn pcap_compile(
        handle: *mut c_void,
        program: *mut Program,
        expression: *const c_char,
        optimize: c_int,
        netmask: u32,
    ) -> c_int;
    fn pcap_freecode(program: *mut Program);
    fn bpf_filter(
        instructions: *const ClassicInstruction,
        packet: *const u8,
        wire_bytes: c_uint,
        captured_bytes: c_uint,
    ) -> c_uint;
}

/// A handle of libpcap that compiles.
pub struct Handle(*mut c_void);

impl Handle {
    /// A handle for files: every tag stands in the frame.
    pub fn dead(link_layer: LinkLayer) -> Self {
        let link_type = match link_layer {
            LinkLayer::Ethernet => 1,
            LinkLayer::RawIp => 12,
        };
        // SAFETY: the function takes numbers only.
        Self(unsafe { pcap_open_dead(link_type, SNAPLEN_BYTES) })
    }

    /// A capture on a packet socket: the outer tag stands beside the frame. Needs root, and a loopback that is up.
    pub fn live() -> Self {
        let mut error = [0; 256];
        // SAFETY: the name ends with 0, and the buffer is as long as libpcap asks for.
        let handle = unsafe { pcap_create(c"lo".as_ptr(), error.as_mut_ptr()) };
        assert!(!handle.is_null());
        // SAFETY: the handle is open.
        let status = unsafe { pcap_activate(handle) };
        assert!(
            status >= 0,
            "a capture of libpcap on the loopback: {status}"
        );
        Self(handle)
    }

    /// The program of an expression; `None` when libpcap refuses it.
    pub fn compile(
        &self,
        expression: &str,
        is_optimized: bool,
        netmask: u32,
    ) -> Option<Vec<ClassicInstruction>> {
        let text = CString::new(expression).unwrap();
        let mut program = Program {
            length: 0,
            instructions: std::ptr::null_mut(),
        };
        let optimize = c_int::from(is_optimized);
        // SAFETY: the handle is open, and the text ends with 0.
        let status =
            unsafe { pcap_compile(self.0, &mut program, text.as_ptr(), optimize, netmask) };
        if status != 0 {
            return None;
        }
        // SAFETY: libpcap made the program, with so many instructions; nothing else refers to it.
        unsafe {
            let length = program.length as usize;
            let made = std::slice::from_raw_parts(program.instructions, length).to_vec();
            pcap_freecode(&mut program);
            Some(made)
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and closed only here.
        unsafe { pcap_close(self.0) };
    }
}

/// Whether libpcap's interpreter accepts a whole frame. The program is valid.
pub fn accepts(program: &[ClassicInstruction], frame: &[u8]) -> bool {
    let bytes = frame.len() as c_uint;
    // SAFETY: the frame has so many bytes; every path through a valid program ends with a return.
    unsafe { bpf_filter(program.as_ptr(), frame.as_ptr(), bytes, bytes) != 0 }
}

/// The same for a frame as a packet socket shows it, with its outer tag beside it. The interpreter knows no tags: they
/// stand in the program as numbers.
pub fn accepts_beside(program: &[ClassicInstruction], frame: &[u8], tag: Option<Tag>) -> bool {
    let number = |place| match place {
        TAG => Some(tag.map_or(0, |tag| u32::from(tag.control))),
        TAG_PRESENT => Some(u32::from(tag.is_some())),
        TAG_PROTOCOL => Some(tag.map_or(0, |tag| u32::from(tag.protocol))),
        _ => None,
    };
    let known = program.iter().map(|one| match number(one.k) {
        Some(k) if one.code & CLASS_AND_MODE == LOAD_ABSOLUTE => ClassicInstruction {
            code: LOAD_CONSTANT,
            k,
            ..*one
        },
        _ => *one,
    });
    accepts(&known.collect::<Vec<_>>(), frame)
}
