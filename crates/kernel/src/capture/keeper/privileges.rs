//! What a keeper gives up once its ring is there: it works on requests of others from then on.

use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

/// To replace programs when readers come and go.
const FOR_PROGRAMS: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::NET_ADMIN);
/// Besides, to have the kernel time programs, which it lets nobody else.
const FOR_TIMES: CapabilitySet = CapabilitySet::SYS_ADMIN;

/// Keeps what a ring's programs need, stays in no directory of the founder's, and starts nothing that is
/// privileged.
///
/// # Errors
/// What the kernel says.
pub(super) fn give_up() -> io::Result<()> {
    std::env::set_current_dir("/")?;
    set_no_new_privs(true)?;
    keep(FOR_PROGRAMS | FOR_TIMES)
}

/// The same for the process that works out what readers asked for: it times nothing.
///
/// # Errors
/// What the kernel says.
pub(in crate::capture) fn give_up_all_but_programs() -> io::Result<()> {
    keep(FOR_PROGRAMS)
}

fn keep(kept: CapabilitySet) -> io::Result<()> {
    let now = rustix::thread::capabilities(None)?;
    if now.permitted.contains(CapabilitySet::SETPCAP) {
        for gone in CapabilitySet::all().difference(kept).iter() {
            // Of a capability that this kernel does not know.
            let _ = remove_capability_from_bounding_set(gone);
        }
    }
    // Where CAP_BPF has not been split from it, or was not given apart, this is what the programs need.
    let kept = if now.permitted.contains(CapabilitySet::BPF) {
        kept
    } else {
        kept | CapabilitySet::SYS_ADMIN
    };
    set_capabilities(
        None,
        CapabilitySets {
            effective: now.effective & kept,
            permitted: now.permitted & kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}
