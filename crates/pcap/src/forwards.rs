//! Functions that a capture of ours does not change: each passes its call on to the system's libpcap. Options are set
//! on the system's handle, too, so these functions return what a program has set.

use libc::{FILE, addrinfo, c_char, c_int, c_long, c_uchar, c_uint, c_void};
use parshall_core::filter::classic::ClassicInstruction;

use crate::abi::{PacketHeader, Pcap, Program};

/// The system's function with this name, resolved once. The caller's `unsafe` vouches for its type, as in pcap/pcap.h.
macro_rules! system_function {
    ($name:ident: fn($($type:ty),*) $(-> $result:ty)?) => {{
        static ADDRESS: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        let name = const {
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zero byte"),
            }
        };
        let address = *ADDRESS.get_or_init(|| $crate::system::symbol(name) as usize);
        std::mem::transmute::<usize, unsafe extern "C-unwind" fn($($type),*) $(-> $result)?>(address)
    }};
}
pub(crate) use system_function;

macro_rules! forward {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {$(
        /// See the manual page of the same name.
        ///
        /// # Safety
        /// As libpcap documents.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: the caller meets libpcap's requirements.
            unsafe { system_function!($name: fn($($type),*) $(-> $result)?)($($argument),*) }
        }
    )*};
}

forward! {
    fn bpf_dump(program: *const Program, option: c_int);
    fn bpf_filter(instructions: *const ClassicInstruction, packet: *const c_uchar, wire_bytes: c_uint, bytes: c_uint) -> c_uint;
    fn bpf_image(instruction: *const ClassicInstruction, number: c_int) -> *mut c_char;
    fn bpf_validate(instructions: *const ClassicInstruction, length: c_int) -> c_int;
    fn pcap_can_set_rfmon(pcap: *mut Pcap) -> c_int;
    fn pcap_compile_nopcap(snaplen: c_int, link_type: c_int, program: *mut Program, expression: *const c_char, optimize: c_int, netmask: u32) -> c_int;
    fn pcap_datalink_name_to_val(name: *const c_char) -> c_int;
    fn pcap_datalink_val_to_description(link_type: c_int) -> *const c_char;
    fn pcap_datalink_val_to_description_or_dlt(link_type: c_int) -> *const c_char;
    fn pcap_datalink_val_to_name(link_type: c_int) -> *const c_char;
    fn pcap_dump(file: *mut c_uchar, header: *const PacketHeader, packet: *const c_uchar);
    fn pcap_dump_close(file: *mut c_void);
    fn pcap_dump_file(file: *mut c_void) -> *mut FILE;
    fn pcap_dump_flush(file: *mut c_void) -> c_int;
    fn pcap_dump_ftell(file: *mut c_void) -> c_long;
    fn pcap_dump_ftell64(file: *mut c_void) -> i64;
    fn pcap_ether_aton(text: *const c_char) -> *mut c_uchar;
    fn pcap_ether_hostton(name: *const c_char) -> *mut c_uchar;
    fn pcap_findalldevs(devices: *mut *mut c_void, error: *mut c_char) -> c_int;
    fn pcap_fopen_offline(file: *mut FILE, error: *mut c_char) -> *mut Pcap;
    fn pcap_fopen_offline_with_tstamp_precision(file: *mut FILE, precision: c_uint, error: *mut c_char) -> *mut Pcap;
    fn pcap_free_datalinks(list: *mut c_int);
    fn pcap_free_tstamp_types(list: *mut c_int);
    fn pcap_freealldevs(devices: *mut c_void);
    fn pcap_freecode(program: *mut Program);
    fn pcap_get_tstamp_precision(pcap: *mut Pcap) -> c_int;
    fn pcap_init(options: c_uint, error: *mut c_char) -> c_int;
    fn pcap_lib_version() -> *const c_char;
    fn pcap_list_tstamp_types(pcap: *mut Pcap, list: *mut *mut c_int) -> c_int;
    fn pcap_lookupdev(error: *mut c_char) -> *mut c_char;
    fn pcap_lookupnet(device: *const c_char, network: *mut u32, mask: *mut u32, error: *mut c_char) -> c_int;
    fn pcap_nametoaddr(name: *const c_char) -> *mut *mut u32;
    fn pcap_nametoaddrinfo(name: *const c_char) -> *mut addrinfo;
    fn pcap_nametoeproto(name: *const c_char) -> c_int;
    fn pcap_nametollc(name: *const c_char) -> c_int;
    fn pcap_nametonetaddr(name: *const c_char) -> u32;
    fn pcap_nametoport(name: *const c_char, port: *mut c_int, protocol: *mut c_int) -> c_int;
    fn pcap_nametoportrange(name: *const c_char, first: *mut c_int, last: *mut c_int, protocol: *mut c_int) -> c_int;
    fn pcap_nametoproto(name: *const c_char) -> c_int;
    fn pcap_next_etherent(file: *mut FILE) -> *mut c_void;
    fn pcap_offline_filter(program: *const Program, header: *const PacketHeader, packet: *const c_uchar) -> c_int;
    fn pcap_open_dead(link_type: c_int, snaplen: c_int) -> *mut Pcap;
    fn pcap_open_dead_with_tstamp_precision(link_type: c_int, snaplen: c_int, precision: c_uint) -> *mut Pcap;
    fn pcap_open_offline(name: *const c_char, error: *mut c_char) -> *mut Pcap;
    fn pcap_open_offline_with_tstamp_precision(name: *const c_char, precision: c_uint, error: *mut c_char) -> *mut Pcap;
    fn pcap_statustostr(status: c_int) -> *const c_char;
    fn pcap_strerror(number: c_int) -> *const c_char;
    fn pcap_tstamp_type_name_to_val(name: *const c_char) -> c_int;
    fn pcap_tstamp_type_val_to_description(kind: c_int) -> *const c_char;
    fn pcap_tstamp_type_val_to_name(kind: c_int) -> *const c_char;
}
