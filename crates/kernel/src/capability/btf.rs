//! The kernel's own type information, by which programs find fields and tracepoints.

use std::ffi::CString;
use std::path::Path;
use std::ptr::NonNull;

use super::{Cause, Probe};

/// The type information of the running kernel.
pub(super) struct KernelBtf(NonNull<libbpf_sys::btf>);

impl KernelBtf {
    /// Loads it; none when the kernel was built without.
    pub(super) fn load() -> Option<Self> {
        crate::libbpf_log::listen();
        // SAFETY: the function has no preconditions and returns null or an object that is ours.
        NonNull::new(unsafe { libbpf_sys::btf__load_vmlinux_btf() }).map(Self)
    }

    /// The identifier of the type of this name and kind.
    pub(super) fn id(&self, name: &str, kind: u32) -> Option<u32> {
        let name = CString::new(name).ok()?;
        // SAFETY: the object lives as long as self, the name as long as the call.
        let id =
            unsafe { libbpf_sys::btf__find_by_name_kind(self.0.as_ptr(), name.as_ptr(), kind) };
        u32::try_from(id).ok()
    }
}

impl Drop for KernelBtf {
    fn drop(&mut self) {
        // SAFETY: the object is ours and is not used again.
        unsafe { libbpf_sys::btf__free(self.0.as_ptr()) }
    }
}

/// Whether the kernel shows its types.
pub(super) fn probe() -> Probe {
    const FILE: &str = "/sys/kernel/btf/vmlinux";
    if Path::new(FILE).exists() {
        Probe::works("host.btf", FILE)
    } else {
        Probe::cannot(
            "host.btf",
            Cause::Unsupported,
            format!("{FILE} does not exist"),
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as all distributions do",
        )
    }
}
