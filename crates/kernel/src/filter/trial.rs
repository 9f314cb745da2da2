//! Runs of a loaded program on given frames (`BPF_PROG_TEST_RUN`), without an interface.

use std::io;
use std::os::fd::BorrowedFd;

use libbpf_sys as sys;

use crate::programs::calls;

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// What the program returned.
    pub returned: u32,
    /// Mean time of a run, in nanoseconds.
    pub duration_ns: u32,
}

/// Runs a program on one frame, `repeat` times in a row.
///
/// `linear_bytes`, for an XDP program that takes frames of several buffers, is how much of the
/// frame lies in the first one; Linux 6.18 or newer.
///
/// # Errors
/// The kernel's error: it rejects frames of less than 14 bytes, and for a classifier those whose IP
/// header is cut short.
pub fn try_out(
    program: BorrowedFd<'_>,
    frame: &[u8],
    linear_bytes: Option<u32>,
    repeat: u32,
) -> io::Result<Trial> {
    let context = sys::xdp_md {
        data_end: linear_bytes.unwrap_or_default(),
        ..Default::default()
    };
    let mut options = sys::bpf_test_run_opts {
        repeat: repeat as i32,
        ..Default::default()
    };
    if linear_bytes.is_some() {
        options.ctx_in = std::ptr::from_ref(&context).cast();
        options.ctx_size_in = size_of_val(&context) as u32;
    }
    let ended = calls::test_run(program, frame, options)?;
    Ok(Trial {
        returned: ended.retval,
        duration_ns: ended.duration,
    })
}
