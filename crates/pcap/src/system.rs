//! The system's own libpcap, loaded beside ours.

use std::ffi::{CStr, CString, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use libc::c_void;

/// Environment variable with the library's path, where it is not at a usual one.
const VARIABLE: &str = "PARSHALL_PCAP_SYSTEM";

/// Usual paths: Debian, Fedora, Arch.
const PLACES: [&str; 5] = [
    concat!("/usr/lib/", env!("MULTIARCH"), "/libpcap.so.0.8"),
    "/usr/lib64/libpcap.so.1",
    "/usr/lib/libpcap.so.1",
    "/usr/lib64/libpcap.so.0.8",
    "/usr/lib/libpcap.so.0.8",
];

struct Library(*mut c_void);

// SAFETY: it is a handle of the loader's, which any thread may use.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// The address of one of its functions. Aborts when it is missing, as the loader would without the library.
pub fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: the handle is the loader's, the name ends with 0.
    let address = unsafe { libc::dlsym(library().0, name.as_ptr()) };
    if address.is_null() {
        exit_with(&format!(
            "the system's libpcap has no function {}",
            name.to_string_lossy()
        ));
    }
    address
}

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let named = std::env::var_os(VARIABLE).map(PathBuf::from);
        let places = PLACES.iter().map(PathBuf::from);
        for place in named.into_iter().chain(places) {
            let Ok(path) = CString::new(place.as_os_str().as_bytes()) else {
                continue;
            };
            // Calls inside that library must not resolve to ours, which have the same names.
            let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND;
            // SAFETY: the path ends with 0.
            let handle = unsafe { libc::dlopen(path.as_ptr(), flags) };
            if !handle.is_null() {
                return Library(handle);
            }
        }
        let named = std::env::var_os(VARIABLE).unwrap_or_else(|| OsString::from("not set"));
        exit_with(&format!(
            "the system's libpcap was not found (tried {}, and {VARIABLE}: {}); install it, or name it there",
            PLACES.join(", "),
            named.display()
        ))
    })
}

fn exit_with(reason: &str) -> ! {
    eprintln!("parshall: {reason}");
    std::process::exit(1)
}
