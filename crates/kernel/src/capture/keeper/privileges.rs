//! What a keeper gives up once its ring is there: it works on requests of others from then on.

use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// To replace programs when readers come and go.
const FOR_PROGRAMS: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::NET_ADMIN);
/// Besides, for the run-time statistics of programs.
const FOR_TIMES: CapabilitySet = CapabilitySet::SYS_ADMIN;
/// What CAP_SYS_ADMIN and root's files would allow, and no keeper does: starting programs, entering or making
/// namespaces, mounting, looking into other processes, modules, keys, and what goes round a filter of calls.
const FORBIDDEN: [libc::c_long; 35] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_quotactl,
];

/// Keeps what a ring's programs need, leaves the creator's directory, and starts nothing.
pub(super) fn give_up() -> io::Result<()> {
    std::env::set_current_dir("/")?;
    set_no_new_privs(true)?;
    keep(FOR_PROGRAMS | FOR_TIMES)?;
    // A kernel or a processor without such filters keeps the rest of the promise.
    let _ = forbid();
    Ok(())
}

/// Has the kernel refuse the calls of [`FORBIDDEN`], to what this process starts, too.
fn forbid() -> Result<(), seccompiler::Error> {
    let filter = SeccompFilter::new(
        FORBIDDEN.iter().map(|&call| (call, Vec::new())).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        std::env::consts::ARCH.try_into()?,
    )?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)
}

/// The same for the process that works out what readers asked for: it times nothing.
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
