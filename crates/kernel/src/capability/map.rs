//! The kinds of maps, each made once with one element.

use std::io;
use std::ptr;

use libbpf_sys as sys;

use super::{Privileges, Probe};
use crate::net::mapping::Mapping;
use crate::programs::calls;

const NEEDED: [&str; 1] = ["CAP_BPF"];

/// One probe for each kind of map that the instruments use, and the run-time statistics.
pub(super) fn probes(privileges: &Privileges) -> Vec<Probe> {
    vec![
        Probe::of_attempt(
            "map.array_mmapable",
            mmapable_array().map(|()| "made and mapped into this process".into()),
            privileges,
            &NEEDED,
            "Linux 5.5 or newer",
        ),
        Probe::of_attempt(
            "map.sk_storage",
            kind_exists(sys::BPF_MAP_TYPE_SK_STORAGE, privileges),
            privileges,
            &NEEDED,
            "Linux 5.2 or newer with BTF",
        ),
        Probe::of_attempt(
            "map.ringbuf",
            kind_exists(sys::BPF_MAP_TYPE_RINGBUF, privileges),
            privileges,
            &NEEDED,
            "Linux 5.8 or newer",
        ),
        Probe::of_attempt(
            "bpf.run_time_stats",
            calls::enable_run_time_statistics().map(|_| "can be switched on for a run".into()),
            privileges,
            &["CAP_SYS_ADMIN"],
            "Linux 5.8 or newer, or as root: sysctl kernel.bpf_stats_enabled=1",
        ),
    ]
}

fn mmapable_array() -> io::Result<()> {
    let page_bytes = rustix::param::page_size();
    let options = sys::bpf_map_create_opts {
        sz: size_of::<sys::bpf_map_create_opts>() as _,
        map_flags: sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    let (kind, name) = (sys::BPF_MAP_TYPE_ARRAY, c"parshall_probe".as_ptr());
    // SAFETY: name and options outlive the call. An error of `libbpf-rs` would have no number.
    let map = calls::owned(unsafe {
        sys::bpf_map_create(kind, name, 4, page_bytes as u32, 1, &options)
    })?;
    Mapping::of(&map, page_bytes, 0, false)?;
    Ok(())
}

/// Lets libbpf make a map of a kind that needs type information of its own.
fn kind_exists(kind: sys::bpf_map_type, privileges: &Privileges) -> io::Result<String> {
    // SAFETY: the options of this function are reserved and must be null.
    match unsafe { sys::libbpf_probe_bpf_map_type(kind, ptr::null()) } {
        1 => Ok("made".into()),
        // The call does not report whether privileges were missing.
        0 if !privileges.missing(&NEEDED).is_empty() => {
            Err(io::Error::from_raw_os_error(libc::EPERM))
        }
        0 => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}
