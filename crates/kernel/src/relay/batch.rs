//! The buffers of batched socket calls.

use std::marker::PhantomData;

/// Frames of one system call.
pub const BATCH: usize = 64;

/// Words of control data a frame: a time stamp (32 bytes) and the packet socket's auxiliary data
/// (40 bytes), with room to spare.
const CONTROL_WORDS: usize = 16;

/// A frame as it was read.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// From the Ethernet header on; a VLAN tag that the kernel took out is missing here.
    pub bytes: &'a [u8],
    /// The four bytes of the VLAN tag that belong behind the two addresses.
    pub vlan_tag: Option<[u8; 4]>,
    /// When it came, on the real-time clock, by the kernel's stamp.
    pub arrival_realtime_ns: Option<u64>,
    /// It was longer than the buffer.
    pub truncated: bool,
    /// Its checksum was left to hardware that does not exist.
    pub unfinished_checksum: bool,
}

/// Buffers for one `recvmmsg`.
pub struct ReceiveBatch {
    frames: Vec<u8>,
    frame_bytes: usize,
    control: Vec<[u64; CONTROL_WORDS]>,
    vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

impl ReceiveBatch {
    /// Buffers for frames of at most `frame_bytes`.
    pub fn new(frame_bytes: usize) -> Self {
        // SAFETY: mmsghdr and iovec are plain data for which zeros (null pointers, no length) are
        // valid; prepare fills them before every use.
        let (header, vector) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        Self {
            frames: vec![0; frame_bytes * BATCH],
            frame_bytes,
            control: vec![[0; CONTROL_WORDS]; BATCH],
            vectors: vec![vector; BATCH],
            headers: vec![header; BATCH],
        }
    }

    /// Points every header to its own buffers: the kernel changes lengths, and the batch may have
    /// moved since the last call.
    pub(super) fn prepare(&mut self) -> &mut [libc::mmsghdr] {
        let buffers = self.frames.chunks_exact_mut(self.frame_bytes);
        for (((header, vector), buffer), control) in self
            .headers
            .iter_mut()
            .zip(&mut self.vectors)
            .zip(buffers)
            .zip(&mut self.control)
        {
            vector.iov_base = buffer.as_mut_ptr().cast();
            vector.iov_len = buffer.len();
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = std::mem::size_of_val(control) as _;
            header.msg_hdr.msg_flags = 0;
        }
        &mut self.headers
    }

    /// A frame of the last call; `position` is below the count which that call gave.
    pub fn frame(&self, position: usize) -> Received<'_> {
        let header = &self.headers[position];
        let length = (header.msg_len as usize).min(self.frame_bytes);
        let start = position * self.frame_bytes;
        let mut received = Received {
            bytes: &self.frames[start..start + length],
            vlan_tag: None,
            arrival_realtime_ns: None,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            unfinished_checksum: false,
        };
        // SAFETY: the header's control pointer and length describe self.control[position], which
        // the kernel filled with whole control messages; CMSG_NXTHDR stays inside that length.
        let mut message = unsafe { libc::CMSG_FIRSTHDR(&raw const header.msg_hdr) };
        while !message.is_null() {
            // SAFETY: not null, so it points to a whole, aligned (8 bytes) control header.
            let (level, kind) = unsafe { ((*message).cmsg_level, (*message).cmsg_type) };
            // SAFETY: the data follows the header inside the same control message.
            let data = unsafe { libc::CMSG_DATA(message) };
            if level == libc::SOL_SOCKET && kind == libc::SCM_TIMESTAMPNS {
                // SAFETY: this kind of message carries one timespec.
                let stamp: libc::timespec =
                    unsafe { data.cast::<libc::timespec>().read_unaligned() };
                received.arrival_realtime_ns =
                    Some(stamp.tv_sec as u64 * 1_000_000_000 + stamp.tv_nsec as u64);
            } else if level == libc::SOL_PACKET && kind == libc::PACKET_AUXDATA {
                // SAFETY: this kind of message carries one tpacket_auxdata.
                let auxiliary: libc::tpacket_auxdata =
                    unsafe { data.cast::<libc::tpacket_auxdata>().read_unaligned() };
                received.unfinished_checksum =
                    auxiliary.tp_status & libc::TP_STATUS_CSUMNOTREADY != 0;
                if auxiliary.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
                    let [tpid_high, tpid_low] = auxiliary.tp_vlan_tpid.to_be_bytes();
                    let [tci_high, tci_low] = auxiliary.tp_vlan_tci.to_be_bytes();
                    received.vlan_tag = Some([tpid_high, tpid_low, tci_high, tci_low]);
                }
            }
            // SAFETY: as for CMSG_FIRSTHDR.
            message = unsafe { libc::CMSG_NXTHDR(&raw const header.msg_hdr, message) };
        }
        received
    }
}

/// Frames for one `sendmmsg`, borrowed until they are sent.
pub struct SendBatch<'a> {
    vectors: [libc::iovec; BATCH],
    headers: [libc::mmsghdr; BATCH],
    length: usize,
    frames: PhantomData<&'a [u8]>,
}

impl<'a> SendBatch<'a> {
    /// At most [`BATCH`] frames; what is beyond is left out.
    pub fn new(frames: impl Iterator<Item = &'a [u8]>) -> Self {
        // SAFETY: mmsghdr and iovec are plain data for which zeros are valid.
        let (headers, vectors) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let mut batch = Self {
            vectors,
            headers,
            length: 0,
            frames: PhantomData,
        };
        for (vector, frame) in batch.vectors.iter_mut().zip(frames) {
            // The kernel only reads; the interface wants a pointer to mutable bytes all the same.
            vector.iov_base = frame.as_ptr().cast_mut().cast();
            vector.iov_len = frame.len();
            batch.length += 1;
        }
        batch
    }

    pub(super) fn prepare(&mut self) -> &mut [libc::mmsghdr] {
        let filled = &mut self.headers[..self.length];
        for (header, vector) in filled.iter_mut().zip(&mut self.vectors) {
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
        }
        filled
    }
}
