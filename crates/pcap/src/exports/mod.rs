//! The functions of libpcap that know captures of ours from those of the system's.
//!
//! | module | exports |
//! |---|---|
//! | `activation` | how a capture is created, set, activated and closed |
//! | `reading` | how packets are waited for and read |
//! | `filters` | how filters are compiled and set |
//! | `properties` | what a capture is and has counted, its errors |
//! | `sending` | how frames are sent |
//! | `dump_files` | how files are opened for packets of a capture |

use libc::c_int;

use crate::abi::{ERROR, Pcap};
use crate::handles::{self, Handle};
use crate::live::Live;

/// Exports functions that do one thing for our captures; for all others, they are the system's.
macro_rules! export {
    ($(
        fn $name:ident($pcap:ident: *mut Pcap $(, $argument:ident: $type:ty)*) $(-> $result:ty)? = |$handle:pat_param, $live:pat_param| $ours:expr;
    )*) => {$(
        /// See the manual page of the same name.
        ///
        /// # Safety
        /// As libpcap documents.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($pcap: *mut $crate::abi::Pcap $(, $argument: $type)*) $(-> $result)? {
            // SAFETY: the caller meets libpcap's requirements.
            match unsafe { $crate::exports::activated($pcap) } {
                Some(($handle, $live)) => $ours,
                // SAFETY: as above.
                None => unsafe { $crate::forwards::system_function!($name: fn(*mut $crate::abi::Pcap $(, $type)*) $(-> $result)?)($pcap $(, $argument)*) },
            }
        }
    )*};
}

mod activation;
mod dead;
mod dump_files;
mod filters;
mod properties;
mod reading;
mod sending;

/// The handle and its capture, when it was activated on a ring.
///
/// # Safety
/// As of every function of libpcap: one thread uses a handle.
unsafe fn activated<'program>(pcap: *const Pcap) -> Option<(&'program Handle, &'program mut Live)> {
    // SAFETY: the caller vouches for it.
    let handle = unsafe { handles::find(pcap) }?;
    // SAFETY: as above.
    let live = unsafe { handle.inner() }.live.as_mut()?;
    Some((handle, live))
}

/// Notes an error; returns libpcap's status for it.
unsafe fn fail(handle: &Handle, reason: &str) -> c_int {
    // SAFETY: the caller's thread uses the handle.
    unsafe { handle.inner() }.error.set(reason);
    ERROR
}
