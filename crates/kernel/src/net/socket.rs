//! What all sockets have: options, waiting, and the error that names the failed step.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

/// A step on a socket that failed.
#[derive(Debug, thiserror::Error)]
#[error("{action} failed ({source})")]
pub struct SocketError {
    /// The step, as in "opening a packet socket".
    pub action: &'static str,
    /// The kernel's error.
    pub source: io::Error,
}

/// Names the step in the error of a system call.
pub(crate) fn failed<E: Into<io::Error>>(action: &'static str) -> impl Fn(E) -> SocketError {
    move |source| SocketError {
        action,
        source: source.into(),
    }
}

/// Sets an option that `rustix` does not have.
pub(crate) fn set_option<T>(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: value points to size_of::<T>() initialised bytes, which the kernel only reads.
    let status = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sets the receive buffer: beyond `net.core.rmem_max` with `CAP_NET_ADMIN`, up to it without. The kernel reserves
/// twice as much, for its own data.
pub(crate) fn set_receive_buffer(socket: impl AsFd, bytes: usize) -> Result<(), SocketError> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes)
        .or_else(|_| set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes))
        .map_err(failed("setting the receive buffer"))
}

/// Packets that a socket dropped because its receive buffer was full.
pub(crate) fn receive_drops(socket: impl AsFd) -> io::Result<u64> {
    /// `SO_MEMINFO` of asm-generic/socket.h, and the counters that it gives (linux/sock_diag.h).
    const SO_MEMINFO: libc::c_int = 55;
    const DROPS: usize = 8;
    let mut values = [0_u32; DROPS + 1];
    let mut length = size_of_val(&values) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to the values, which outlive the call.
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::from(values[DROPS]))
}

/// Waits until a socket can be read, or until the time is over.
///
/// # Errors
/// The error of `poll(2)`; a signal is none.
pub(crate) fn wait_readable(socket: impl AsFd, timeout: Duration) -> Result<(), SocketError> {
    let timeout = Timespec::try_from(timeout).ok();
    match poll(&mut [PollFd::new(&socket, PollFlags::IN)], timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(failed("waiting")(errno)),
    }
}
