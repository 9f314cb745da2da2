//! The longest frame that the kernel's program sends.

/// Frames that the kernel makes for a run lie in a page with their head- and tailroom. This is what
/// 6.1 and older leave for the frame. Later kernels take at least 3400 bytes, but no kernel reports
/// its limit, and all drop longer frames.
pub(super) const BUFFER_BYTES_MAX: usize = 3368;
/// No packet is as long as the buffer, so that each is cut: see the program.
pub(crate) const FRAME_BYTES_MAX: usize = BUFFER_BYTES_MAX - 1;
