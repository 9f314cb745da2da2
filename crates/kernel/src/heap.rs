//! The allocator's free pages.

/// Gives the kernel the pages back in which nothing lies any more. After a flood of small allocations these are
/// most of what the flood took, and glibc keeps them between the few that are left.
pub(crate) fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes a number, and touches nothing but what the allocator itself has free, under its locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
