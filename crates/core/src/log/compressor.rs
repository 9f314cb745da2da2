//! A zstd compression context with the settings of our columns.
//!
//! The `zstd` crate has no way to keep entropy coding of literals while the search for matches is all
//! but switched off, and that is what most columns want: numbers that differ in every row have no
//! repeats worth the search, but their upper bytes are skewed.

use std::io;
use std::ptr::NonNull;
use zstd::zstd_safe::zstd_sys::{
    ZSTD_CCtx, ZSTD_CCtx_setParameter, ZSTD_cParameter, ZSTD_compress2, ZSTD_createCCtx,
    ZSTD_freeCCtx, ZSTD_getErrorName, ZSTD_isError,
};

/// `ZSTD_c_literalCompressionMode`, and its value "always".
const LITERAL_COMPRESSION_MODE: ZSTD_cParameter = ZSTD_cParameter::ZSTD_c_experimentalParam5;
const LITERAL_COMPRESSION_ALWAYS: i32 = 1;
/// The fastest level: the search skips ahead as fast as it can.
const LEVEL_WITHOUT_SEARCH: i32 = -131_072;

/// A context that is used again and again.
pub struct ColumnCompressor {
    context: NonNull<ZSTD_CCtx>,
}

// SAFETY: the context is owned, is only used through `&mut self`, and is not tied to a thread.
unsafe impl Send for ColumnCompressor {}

impl ColumnCompressor {
    /// Searches for repeats with the effort of `level` (negative ones are the fast ones).
    pub fn with_level(level: i32) -> io::Result<Self> {
        let mut compressor = Self::new()?;
        compressor.set(ZSTD_cParameter::ZSTD_c_compressionLevel, level)?;
        Ok(compressor)
    }

    /// Codes the bytes by their frequency and hardly searches for repeats.
    pub fn entropy_only() -> io::Result<Self> {
        let mut compressor = Self::with_level(LEVEL_WITHOUT_SEARCH)?;
        compressor.set(LITERAL_COMPRESSION_MODE, LITERAL_COMPRESSION_ALWAYS)?;
        Ok(compressor)
    }

    fn new() -> io::Result<Self> {
        // SAFETY: no arguments; a null pointer is the only failure and is checked.
        let context =
            NonNull::new(unsafe { ZSTD_createCCtx() }).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { context })
    }

    fn set(&mut self, parameter: ZSTD_cParameter, value: i32) -> io::Result<()> {
        // SAFETY: the context is alive; zstd checks parameter and value itself.
        checked(unsafe { ZSTD_CCtx_setParameter(self.context.as_ptr(), parameter, value) })
            .map(|_| ())
    }

    /// Writes one frame with all of `raw` to the start of `out`; returns its length.
    pub fn compress(&mut self, raw: &[u8], out: &mut [u8]) -> io::Result<usize> {
        // SAFETY: both slices are valid for their lengths and do not overlap, as one is borrowed
        // mutably; the context is alive and not in use elsewhere.
        checked(unsafe {
            ZSTD_compress2(
                self.context.as_ptr(),
                out.as_mut_ptr().cast(),
                out.len(),
                raw.as_ptr().cast(),
                raw.len(),
            )
        })
    }
}

impl Drop for ColumnCompressor {
    fn drop(&mut self) {
        // SAFETY: the context came from ZSTD_createCCtx and is freed once.
        unsafe { ZSTD_freeCCtx(self.context.as_ptr()) };
    }
}

/// A result of zstd: a number, or an error with a name.
fn checked(code: usize) -> io::Result<usize> {
    // SAFETY: both functions take any number; the name is a constant, zero-terminated text.
    unsafe {
        if ZSTD_isError(code) == 0 {
            return Ok(code);
        }
        let name = std::ffi::CStr::from_ptr(ZSTD_getErrorName(code));
        Err(io::Error::other(name.to_string_lossy().into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::ColumnCompressor;

    fn frame(compressor: &mut ColumnCompressor, raw: &[u8]) -> Vec<u8> {
        let mut out = vec![0; raw.len() + 1000];
        let bytes = compressor.compress(raw, &mut out).unwrap();
        out.truncate(bytes);
        out
    }

    /// Pseudo-random 16 bit numbers in 32 bits: no repeats to find, half of the bytes are 0. If a
    /// new zstd gave the experimental parameter another meaning, this would not shrink.
    #[test]
    fn entropy_coding_works_without_repeats() {
        let mut state = 1u32;
        let raw: Vec<u8> = (0..8192)
            .flat_map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16).to_le_bytes()
            })
            .collect();
        let coded = frame(&mut ColumnCompressor::entropy_only().unwrap(), &raw);
        assert!(
            coded.len() < raw.len() * 7 / 10,
            "{} of {}",
            coded.len(),
            raw.len()
        );
        assert_eq!(zstd::bulk::decompress(&coded, raw.len()).unwrap(), raw);
    }

    #[test]
    fn too_little_room_is_an_error_with_a_name() {
        let mut compressor = ColumnCompressor::with_level(1).unwrap();
        let error = compressor
            .compress(b"abcdefgh12345678", &mut [0; 4])
            .unwrap_err();
        assert!(error.to_string().contains("too small"), "{error}");
    }
}
