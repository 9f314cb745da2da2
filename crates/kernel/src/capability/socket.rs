//! Packet sockets with shared rings, and the processor's counters: what is opened by a file
//! descriptor of its own kind.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{Privileges, Probe};

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
        Probe::of_attempt(
            "counter.cycles",
            cycles().map(|()| "opened: cycles and instructions can be counted".into()),
            privileges,
            &["CAP_PERFMON"],
            "a machine, or a virtual machine, with a PMU; without it time alone is measured",
        ),
    ]
}

fn checked(status: libc::c_int) -> io::Result<libc::c_int> {
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(status)
}

fn open_socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the descriptor is taken over at once.
    unsafe {
        let descriptor = libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        checked(descriptor).map(|descriptor| OwnedFd::from_raw_fd(descriptor))
    }
}

fn set_option<T>(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the value outlives the call, and the length is its own.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    checked(status).map(drop)
}

fn af_packet_v3() -> io::Result<()> {
    // Protocol 0: the socket receives nothing.
    let socket = open_socket(libc::AF_PACKET)?;
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
    let socket = open_socket(libc::AF_XDP)?;
    let page_bytes = rustix::param::page_size();
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no other memory.
    let frames = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            page_bytes,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::PRIVATE,
        )
    }?;
    let registered = set_option(
        &socket,
        libc::SOL_XDP,
        libc::XDP_UMEM_REG,
        // The first version of the structure, which every kernel takes.
        &[frames as u64, page_bytes as u64, page_bytes as u64],
    );
    drop(socket);
    // SAFETY: the socket that shared the mapping is closed, and nothing else refers to it.
    unsafe { rustix::mm::munmap(frames, page_bytes) }?;
    registered
}

fn cycles() -> io::Result<()> {
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
    let descriptor = checked(descriptor as libc::c_int)?;
    // SAFETY: the kernel has just opened the descriptor for us; nobody else holds it.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    Ok(())
}
