//! libpcap without its optimizer, asked directly: it knows nothing of our compiler, pieces and merging.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};

use parshall_core::filter::emit::LinkLayer;

const SNAPLEN_BYTES: c_int = 262_144;

#[repr(C)]
struct Program {
    length: c_uint,
    instructions: *mut c_void,
}

unsafe extern "C" {
    fn pcap_open_dead(link_type: c_int, snaplen: c_int) -> *mut c_void;
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
        instructions: *const c_void,
        packet: *const u8,
        wire_bytes: c_uint,
        captured_bytes: c_uint,
    ) -> c_uint;
}

/// What libpcap makes of an expression.
pub struct Witness(Program);

impl Witness {
    /// `None` when libpcap refuses it.
    pub fn of(expression: &str, link_layer: LinkLayer, netmask: u32) -> Option<Self> {
        let link_type = match link_layer {
            LinkLayer::Ethernet => 1,
            LinkLayer::RawIp => 12,
        };
        let text = CString::new(expression).unwrap();
        let mut program = Program {
            length: 0,
            instructions: std::ptr::null_mut(),
        };
        // SAFETY: the handle lives as long as the call, and the text ends with 0.
        let status = unsafe {
            let handle = pcap_open_dead(link_type, SNAPLEN_BYTES);
            let status = pcap_compile(handle, &mut program, text.as_ptr(), 0, netmask);
            pcap_close(handle);
            status
        };
        (status == 0).then_some(Self(program))
    }

    /// Whether it accepts a whole frame.
    pub fn accepts(&self, frame: &[u8]) -> bool {
        let bytes = frame.len() as c_uint;
        // SAFETY: libpcap made the program, and the frame has so many bytes.
        unsafe { bpf_filter(self.0.instructions, frame.as_ptr(), bytes, bytes) != 0 }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // SAFETY: libpcap made the program, which nothing else refers to.
        unsafe { pcap_freecode(&mut self.0) };
    }
}
