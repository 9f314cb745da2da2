//! The allocator's free pages.

/// Returns free pages to the kernel. After a flood of small allocations most of its pages are free,
/// but glibc keeps them between the few that are in use.
pub(crate) fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes a number, and touches nothing but what the allocator itself has free, under its locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
