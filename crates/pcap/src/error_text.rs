//! Errors as C programs read them: 256 bytes that end with 0.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering};

use libc::c_char;

use crate::abi::ERROR_BYTES;

/// A buffer for an error. Any thread may set it while the program reads it, as in libpcap.
pub struct ErrorText([AtomicU8; ERROR_BYTES]);

impl ErrorText {
    /// No error.
    pub const fn new() -> Self {
        Self([const { AtomicU8::new(0) }; ERROR_BYTES])
    }

    /// Sets the text, truncated to what fits.
    pub fn set(&self, text: &str) {
        let text = &text.as_bytes()[..fitting_bytes(text)];
        // The last byte is never set, so that the text has an end at any time.
        let bytes = text.iter().copied().chain([0]);
        for (cell, byte) in self.0.iter().zip(bytes) {
            cell.store(byte, Ordering::Relaxed);
        }
    }

    /// The buffer, for C.
    pub fn as_mut_ptr(&self) -> *mut c_char {
        self.0[0].as_ptr().cast()
    }
}

/// The text of `strerror` for an error of the kernel.
pub fn of_kernel(error: rustix::io::Errno) -> String {
    let mut text = [0; ERROR_BYTES];
    // SAFETY: the buffer has ERROR_BYTES bytes; the text in it ends with 0.
    unsafe {
        libc::strerror_r(error.raw_os_error(), text.as_mut_ptr(), ERROR_BYTES);
        CStr::from_ptr(text.as_mut_ptr())
            .to_string_lossy()
            .into_owned()
    }
}

/// Writes a text into a caller's buffer, truncated to what fits.
///
/// # Safety
/// `buffer` is null, or has [`ERROR_BYTES`] bytes.
pub unsafe fn write(buffer: *mut c_char, text: &str) {
    if buffer.is_null() {
        return;
    }
    let end = fitting_bytes(text);
    // SAFETY: the text has at most ERROR_BYTES - 1 bytes, and the 0 follows: the buffer has room for both.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, end);
        *buffer.add(end) = 0;
    }
}

/// Bytes of a text that fit before the terminating 0, in whole characters.
fn fitting_bytes(text: &str) -> usize {
    (0..ERROR_BYTES)
        .rev()
        .find(|end| text.is_char_boundary((*end).min(text.len())))
        .unwrap_or(0)
        .min(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernels_error_has_no_number() {
        let text = of_kernel(rustix::io::Errno::MSGSIZE);
        assert_eq!(text, "Message too long");
    }

    #[test]
    fn a_long_text_is_truncated_between_characters() {
        let text = ErrorText::new();
        text.set(&"ü".repeat(200));
        // SAFETY: the text ends with 0.
        let read = unsafe { CStr::from_ptr(text.as_mut_ptr()) };
        assert_eq!(read.to_str().unwrap(), "ü".repeat(127));
    }
}
