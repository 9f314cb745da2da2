//! Errors as C programs read them: 256 bytes that end with 0.

use std::ffi::CStr;

use libc::c_char;

use crate::abi::ERROR_BYTES;

/// A buffer for an error.
pub struct ErrorText([c_char; ERROR_BYTES]);

impl ErrorText {
    /// No error.
    pub const fn new() -> Self {
        Self([0; ERROR_BYTES])
    }

    /// Takes a text, cut to what fits.
    pub fn set(&mut self, text: &str) {
        // SAFETY: the buffer has ERROR_BYTES bytes.
        unsafe { write(self.0.as_mut_ptr(), text) };
    }

    /// The buffer, for C.
    pub fn as_mut_ptr(&mut self) -> *mut c_char {
        self.0.as_mut_ptr()
    }
}

/// A kernel's error as `strerror` says it.
pub fn of_kernel(error: rustix::io::Errno) -> String {
    let mut text = ErrorText::new();
    // SAFETY: the buffer has so many bytes; the text in it ends with 0.
    unsafe {
        libc::strerror_r(error.raw_os_error(), text.as_mut_ptr(), ERROR_BYTES);
        CStr::from_ptr(text.as_mut_ptr())
            .to_string_lossy()
            .into_owned()
    }
}

/// Writes a text into a caller's buffer, cut to what fits.
///
/// # Safety
/// `buffer` is null, or has [`ERROR_BYTES`] bytes.
pub unsafe fn write(buffer: *mut c_char, text: &str) {
    if buffer.is_null() {
        return;
    }
    let end = (0..ERROR_BYTES)
        .rev()
        .find(|end| text.is_char_boundary((*end).min(text.len())))
        .unwrap_or(0)
        .min(text.len());
    // SAFETY: at most ERROR_BYTES - 1 bytes and the 0, into a buffer of so many.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, end);
        *buffer.add(end) = 0;
    }
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
    fn a_long_text_is_cut_between_characters() {
        let mut text = ErrorText::new();
        text.set(&"ü".repeat(200));
        // SAFETY: the text ends with 0.
        let read = unsafe { CStr::from_ptr(text.as_mut_ptr()) };
        assert_eq!(read.to_str().unwrap(), "ü".repeat(127));
    }
}
