//! `TPACKET_V3`: the kernel copies packets into blocks of a mapped ring, and hands over whole blocks.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parshall_core::trace::{LINK_TYPE_ETHERNET, Packet};

use super::error::BackendError;
use super::packet_socket::{FilteredSocket, direction};
use super::vlan;
use super::{Backend, Counts, Settings};
use crate::net::mapping::Mapping;
use crate::net::packet_receive::{TAG_BYTES, vlan_tag};

/// Bytes of a block, as libpcap 1.10 makes them.
const BLOCK_BYTES: usize = 256 << 10;
/// When a block is handed over that is not full, in milliseconds.
const RETIRE_MS: u32 = 10;
/// The kernel asks for a frame length, and does not use it with this version.
const FRAME_BYTES: usize = 2048;
/// Where the parts of a block's descriptor stand.
const HEADER_AT: usize = offset_of!(libc::tpacket_block_desc, hdr);
const STATUS_AT: usize = HEADER_AT + offset_of!(libc::tpacket_hdr_v1, block_status);

/// See [`super::Kind::MappedBlocks`].
pub(super) struct MappedBlocks {
    // Dropped before the socket, so that it is unmapped first.
    ring: Mapping,
    socket: FilteredSocket,
    snaplen_bytes: usize,
    /// The block that is read next.
    next: usize,
}

impl MappedBlocks {
    pub(super) fn open(settings: &Settings<'_>) -> Result<Self, BackendError> {
        let socket = FilteredSocket::open(settings)?;
        let version = libc::tpacket_versions::TPACKET_V3 as libc::c_int;
        socket.set(
            libc::PACKET_VERSION,
            &version,
            "asking for TPACKET_V3 (Linux 3.2)",
        )?;
        // Room before each packet, for a VLAN tag that the kernel took out.
        let reserve = TAG_BYTES as libc::c_int;
        socket.set(
            libc::PACKET_RESERVE,
            &reserve,
            "reserving room for VLAN tags",
        )?;
        // With one block, the kernel would wait while it is read.
        let blocks = (settings.buffer_bytes / BLOCK_BYTES).max(2);
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: FRAME_BYTES as u32,
            tp_frame_nr: (blocks * (BLOCK_BYTES / FRAME_BYTES)) as u32,
            tp_retire_blk_tov: RETIRE_MS,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        socket.set(
            libc::PACKET_RX_RING,
            &request,
            "making a ring (is it too large?)",
        )?;
        let ring = Mapping::of(&socket, blocks * BLOCK_BYTES, 0, true)
            .map_err(|errno| socket.failed("mapping the ring", errno.into()))?;
        socket.start()?;
        Ok(Self {
            ring,
            socket,
            snaplen_bytes: settings.snaplen_bytes() as usize,
            next: 0,
        })
    }

    /// Whether a block is the kernel's or ours.
    fn status(&self, block_at: usize) -> &AtomicU32 {
        self.ring.word32(block_at + STATUS_AT)
    }

    fn is_ours(&self, block_at: usize) -> bool {
        self.status(block_at).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Hands on the packets of a block that is ours; returns their number.
    fn packets(&mut self, block_at: usize, take: &mut dyn FnMut(&Packet<'_>)) -> usize {
        let header = self
            .ring
            .pointer::<libc::tpacket_hdr_v1>(block_at + HEADER_AT);
        // SAFETY: aligned and inside the mapping, as `pointer` has checked; the kernel leaves the block alone.
        let (count, first_at) = unsafe { ((*header).num_pkts, (*header).offset_to_first_pkt) };
        let block_end = block_at + BLOCK_BYTES;
        let mut at = block_at + first_at as usize;
        for _ in 0..count {
            let header = self.ring.pointer::<libc::tpacket3_hdr>(at);
            // SAFETY: aligned and inside the mapping, as `pointer` has checked; the kernel leaves the block alone.
            let header = unsafe { header.read() };
            // SAFETY: the address stands behind the header, as the kernel lays it out; `pointer` checks.
            let packet_type = unsafe {
                let address_at = at + libc::TPACKET_ALIGN(size_of::<libc::tpacket3_hdr>());
                (*self.ring.pointer::<libc::sockaddr_ll>(address_at)).sll_pkttype
            };
            let mut captured_bytes = header.tp_snaplen as usize;
            let mut wire_bytes = header.tp_len;
            let start = at + usize::from(header.tp_mac) - TAG_BYTES;
            debug_assert!(start + TAG_BYTES + captured_bytes <= block_end);
            // SAFETY: a part of the block, which the kernel leaves alone until it is given back.
            let bytes = unsafe { self.ring.bytes_mut(start, TAG_BYTES + captured_bytes) };
            let bytes = bytes.expect("the kernel puts packets inside their block");
            let tci = header.hv1.tp_vlan_tci as u16;
            let mut from = TAG_BYTES;
            if self.socket.link_type() == LINK_TYPE_ETHERNET
                && let Some(tag) = vlan_tag(header.tp_status, tci, header.hv1.tp_vlan_tpid)
                && vlan::put_back(bytes, tag)
            {
                from = 0;
                captured_bytes = (captured_bytes + TAG_BYTES).min(self.snaplen_bytes);
                wire_bytes += TAG_BYTES as u32;
            }
            take(&Packet {
                time_ns: u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec),
                direction: direction(packet_type),
                wire_bytes,
                captured: &bytes[from..from + captured_bytes],
                ..Packet::default()
            });
            at += header.tp_next_offset as usize;
        }
        count as usize
    }
}

impl Backend for MappedBlocks {
    fn link_type(&self) -> u16 {
        self.socket.link_type()
    }

    fn next_batch(
        &mut self,
        timeout: Duration,
        take: &mut dyn FnMut(&Packet<'_>),
    ) -> Result<usize, BackendError> {
        let block_at = self.next * BLOCK_BYTES;
        if !self.is_ours(block_at) && !timeout.is_zero() {
            self.socket.wait(timeout)?;
        }
        if !self.is_ours(block_at) {
            return Ok(0);
        }
        let packets = self.packets(block_at, take);
        self.socket.count_delivered(packets);
        self.status(block_at)
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % (self.ring.length_bytes() / BLOCK_BYTES);
        Ok(packets)
    }

    fn stop(&mut self) -> Result<(), BackendError> {
        self.socket.stop()
    }

    fn counts(&mut self) -> Result<Counts, BackendError> {
        self.socket.counts()
    }
}
