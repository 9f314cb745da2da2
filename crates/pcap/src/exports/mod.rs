//! The functions of libpcap that do one thing for our captures and another for the system's.
//!
//! | module | exports |
//! |---|---|
//! | `activation` | how a capture is created, configured, activated and closed |
//! | `reading` | how packets are waited for and read |
//! | `filters` | how filters are compiled and set |
//! | `properties` | what a capture is and has counted, its errors |
//! | `sending` | how frames are sent |
//! | `dump_files` | how files are opened for packets of a capture |

use libc::c_int;

use crate::abi::{ERROR, Pcap};
use crate::handles::{self, Handle};
use crate::live::Live;

/// Exports functions that do one thing for our captures; for all others, they are the system's. A thread may be cancelled
/// in them, so `$ours` has nothing to drop where it waits or calls the program: see `cancellation`.
macro_rules! export_cancellation_points {
    ($(
        fn $name:ident($pcap:ident: *mut Pcap $(, $argument:ident: $type:ty)*) $(-> $result:ty)? = |$handle:pat_param, $live:pat_param| $ours:expr;
    )*) => {$(
        /// See the manual page of the same name.
        ///
        /// # Safety
        /// As libpcap documents.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($pcap: *mut $crate::abi::Pcap $(, $argument: $type)*) $(-> $result)? {
            // SAFETY: the caller meets libpcap's requirements.
            match unsafe { $crate::exports::activated($pcap) } {
                Some(($handle, $live)) => $ours,
                // SAFETY: as above.
                None => unsafe { $crate::forwards::system_function!($name: fn(*mut $crate::abi::Pcap $(, $type)*) $(-> $result)?)($pcap $(, $argument)*) },
            }
        }
    )*};
}

/// As `export_cancellation_points`, for functions in which no thread is cancelled.
macro_rules! export {
    ($(
        fn $name:ident($pcap:ident: *mut Pcap $(, $argument:ident: $type:ty)*) $(-> $result:ty)? = |$handle:pat_param, $live:pat_param| $ours:expr;
    )*) => {
        export_cancellation_points! {$(
            fn $name($pcap: *mut Pcap $(, $argument: $type)*) $(-> $result)? = |$handle, $live| {
                let _uncancellable = $crate::cancellation::Uncancellable::new();
                $ours
            };
        )*}
    };
}

mod activation;
mod borrowed;
mod dump_files;
mod filters;
mod properties;
mod reading;
mod sending;

/// The handle and its capture, when it was activated on a ring.
///
/// # Safety
/// The program does not close the handle during the call, as libpcap requires.
unsafe fn activated<'program>(pcap: *const Pcap) -> Option<(&'program Handle, &'program Live)> {
    // SAFETY: the caller vouches for it.
    let handle = unsafe { handles::find(pcap) }?;
    Some((handle, handle.live.get()?))
}

/// Notes an error; returns libpcap's status for it.
fn fail(handle: &Handle, reason: &str) -> c_int {
    handle.error.set(reason);
    ERROR
}
