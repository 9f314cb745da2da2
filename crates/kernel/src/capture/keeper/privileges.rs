//! Privileges that a keeper drops once its ring exists: from then on it serves requests of other users.

use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Needed to replace programs when readers join and leave.
pub(crate) const FOR_PROGRAMS: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::NET_ADMIN);
/// Needed for the run-time statistics of programs.
pub(crate) const FOR_TIMES: CapabilitySet = CapabilitySet::SYS_ADMIN;
/// System calls that CAP_SYS_ADMIN and root's files would allow and no keeper needs: start programs, enter or make
/// namespaces, mount, inspect other processes, load modules, use keys, and bypass a seccomp filter.
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
    // Without seccomp filters the dropped capabilities still hold.
    let _ = forbid();
    Ok(())
}

/// Has the kernel refuse the calls of [`FORBIDDEN`] to this process and its children.
fn forbid() -> Result<(), seccompiler::Error> {
    seccompiler::apply_filter(&refusal(&[])?)
}

/// The same for all threads of this process, which get no new privileges, either.
/// Calls in `except` stay allowed.
pub(crate) fn forbid_to_all_threads(except: &[libc::c_long]) -> Result<(), seccompiler::Error> {
    seccompiler::apply_filter_all_threads(&refusal(except)?)
}

fn refusal(except: &[libc::c_long]) -> Result<BpfProgram, seccompiler::Error> {
    let forbidden = FORBIDDEN.iter().filter(|call| !except.contains(call));
    let filter = SeccompFilter::new(
        forbidden.map(|&call| (call, Vec::new())).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        std::env::consts::ARCH.try_into()?,
    )?;
    Ok(BpfProgram::try_from(filter)?)
}

/// The same for the process that prepares programs: it needs no run-time statistics.
pub(in crate::capture) fn give_up_all_but_programs() -> io::Result<()> {
    keep(FOR_PROGRAMS)
}

fn keep(kept: CapabilitySet) -> io::Result<()> {
    let now = rustix::thread::capabilities(None)?;
    if now.permitted.contains(CapabilitySet::SETPCAP) {
        for gone in CapabilitySet::all().difference(kept).iter() {
            // This kernel does not know the capability.
            let _ = remove_capability_from_bounding_set(gone);
        }
    }
    // Programs need CAP_SYS_ADMIN where CAP_BPF does not exist or was not granted.
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
