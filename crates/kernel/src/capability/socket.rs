//! Packet sockets with a receive ring, AF_XDP sockets, and the processor's cycle counter.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::{Cause, Privileges, Probe};
use crate::net::af_xdp::open_with_memory;
use crate::net::socket::set_option;

/// One probe for each kind.
pub(super) fn probes(privileges: &Privileges) -> Vec<Probe> {
    vec![
        Probe::of_attempt(
            "socket.af_packet_v3",
            af_packet_v3().map(|()| "opened, with a receive ring".into()),
            privileges,
            &["CAP_NET_RAW"],
            "a kernel with CONFIG_PACKET",
        ),
        Probe::of_attempt(
            "socket.af_xdp",
            af_xdp().map(|()| "opened, with memory for frames".into()),
            privileges,
            &["CAP_NET_RAW"],
            "a kernel with CONFIG_XDP_SOCKETS=y",
        ),
        cycle_counter(privileges),
    ]
}

/// The processor's cycle counter. No instrument reads it, which the probe says even where there is one.
fn cycle_counter(privileges: &Privileges) -> Probe {
    const NAME: &str = "counter.cycles";
    match open_cycle_counter() {
        Ok(()) => Probe::works(NAME, "there is one; `parshall path` measures time only"),
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP)
            ) =>
        {
            Probe::cannot(
                NAME,
                Cause::Unsupported,
                "none on this machine: `parshall path` measures time only",
                "no command needs it",
            )
        }
        Err(error) => Probe::of_attempt(
            NAME,
            Err(error),
            privileges,
            &["CAP_PERFMON"],
            "no command needs it",
        ),
    }
}

fn af_packet_v3() -> io::Result<()> {
    // Protocol 0: the socket receives nothing.
    let socket = socket_with(
        AddressFamily::PACKET,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let version = libc::tpacket_versions::TPACKET_V3 as libc::c_int;
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
    let block_bytes = rustix::param::page_size() as u32;
    let ring = libc::tpacket_req3 {
        tp_block_size: block_bytes,
        tp_block_nr: 1,
        tp_frame_size: block_bytes,
        tp_frame_nr: 1,
        tp_retire_blk_tov: 10,
        tp_sizeof_priv: 0,
        tp_feature_req_word: 0,
    };
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &ring)
}

fn af_xdp() -> io::Result<()> {
    open_with_memory(rustix::param::page_size())
        .map(drop)
        .map_err(|error| error.source)
}

fn open_cycle_counter() -> io::Result<()> {
    // struct perf_event_attr in its first version, 64 bytes: type 0 is hardware, config 0 is
    // cycles, bits 5 and 6 leave the kernel and the hypervisor out.
    const SIZE_BYTES: u64 = 64;
    const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
    let attributes: [u64; 8] = [SIZE_BYTES << 32, 0, 0, 0, 0, (1 << 5) | (1 << 6), 0, 0];
    // SAFETY: the attributes outlive the call and say their own size; the event counts this
    // thread on any processor.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_ptr(),
            0,
            -1,
            -1,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened the descriptor for us, and nothing else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor as libc::c_int) });
    Ok(())
}
