//! What a packet socket receives: bytes, and the control data beside them.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

use super::packet_socket::PacketSocket;
use super::socket::{SocketError, failed};

/// Frames of one system call.
pub(crate) const BATCH: usize = 64;
/// Bytes of the two Ethernet addresses, behind which a VLAN tag stands.
pub(crate) const ADDRESSES_BYTES: usize = 12;
/// Bytes of a VLAN tag.
pub(crate) const TAG_BYTES: usize = 4;
/// Words of control data: a time stamp (32 bytes) and the socket's auxiliary data (40 bytes), with room to spare.
const CONTROL_WORDS: usize = 16;
const TPID_8021Q: u16 = 0x8100;

type Control = [u64; CONTROL_WORDS];

/// The control data of a frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ControlData {
    /// When it came, on the real-time clock.
    pub arrival_realtime_ns: Option<u64>,
    /// Its length on the wire, bytes.
    pub wire_bytes: u32,
    /// The VLAN tag that the kernel took out. It belongs behind the two addresses.
    pub vlan_tag: Option<[u8; TAG_BYTES]>,
    /// Its checksum was left to hardware that does not exist.
    pub is_checksum_unfinished: bool,
}

impl ControlData {
    /// Reads the control data of a message.
    ///
    /// # Safety
    /// A receiving system call must have filled the message, and its control data must still be there.
    unsafe fn of(message: &libc::msghdr) -> Self {
        let mut beside = Self::default();
        // SAFETY: pointer and length of the control data are those that the kernel filled.
        let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
        while !header.is_null() {
            // SAFETY: not null, so it points to a whole, aligned control header.
            let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
            // SAFETY: as above; the data follow the header.
            let data = unsafe { libc::CMSG_DATA(header) };
            match (level, kind) {
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                    // SAFETY: this kind of message has a timespec, maybe not aligned.
                    let time = unsafe { data.cast::<libc::timespec>().read_unaligned() };
                    let time_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
                    beside.arrival_realtime_ns = Some(time_ns);
                }
                (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                    // SAFETY: this kind of message has a tpacket_auxdata, maybe not aligned.
                    let data = unsafe { data.cast::<libc::tpacket_auxdata>().read_unaligned() };
                    beside.wire_bytes = data.tp_len;
                    beside.vlan_tag = vlan_tag(data.tp_status, data.tp_vlan_tci, data.tp_vlan_tpid);
                    beside.is_checksum_unfinished =
                        data.tp_status & libc::TP_STATUS_CSUMNOTREADY != 0;
                }
                _ => {}
            }
            // SAFETY: header is one of this message's.
            header = unsafe { libc::CMSG_NXTHDR(message, header) };
        }
        beside
    }
}

/// The VLAN tag that the kernel took out of a frame, from its control data.
pub(crate) fn vlan_tag(status: u32, tci: u16, tpid: u16) -> Option<[u8; TAG_BYTES]> {
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let tpid = match status & libc::TP_STATUS_VLAN_TPID_VALID {
        0 => TPID_8021Q,
        _ => tpid,
    };
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
    Some([a, b, c, d])
}

/// A frame that was received alone.
pub(crate) struct Frame {
    /// Bytes of it that are in the buffer.
    pub captured_bytes: usize,
    /// Its `PACKET_...` of `linux/if_packet.h`: incoming, outgoing, and to whom.
    pub packet_type: u8,
    /// Its control data.
    pub control: ControlData,
}

impl PacketSocket {
    /// Receives one frame into a buffer; `None` when there is none.
    pub(crate) fn receive_frame(&self, buffer: &mut [u8]) -> Result<Option<Frame>, SocketError> {
        let mut vector = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        let mut control: Control = [0; CONTROL_WORDS];
        // SAFETY: plain data for which zeros are valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        // SAFETY: plain data for which zeros (null pointers, no lengths) are valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut address).cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        message.msg_iov = &mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: the message points to an address, a vector, a buffer and control data that outlive the call.
        let returned =
            unsafe { libc::recvmsg(self.as_fd().as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
        let Some(captured_bytes) = received(returned).map_err(failed("receiving"))? else {
            return Ok(None);
        };
        Ok(Some(Frame {
            captured_bytes,
            packet_type: address.sll_pkttype,
            // SAFETY: the kernel has just filled the message, whose control data are above.
            control: unsafe { ControlData::of(&message) },
        }))
    }

    /// Receives what is there, at most one batch; returns its size, 0 when nothing is there.
    pub(crate) fn receive_batch(&self, batch: &mut ReceiveBatch) -> io::Result<usize> {
        let headers = batch.prepare();
        // SAFETY: the headers point into buffers that the batch owns and that outlive the call.
        let count = unsafe {
            libc::recvmmsg(
                self.as_fd().as_raw_fd(),
                headers.as_mut_ptr(),
                headers.len() as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        Ok(received(count as isize)?.unwrap_or(0))
    }
}

/// What a receiving system call returned; `None` when nothing was there.
fn received(returned: isize) -> io::Result<Option<usize>> {
    if let Ok(count) = usize::try_from(returned) {
        return Ok(Some(count));
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
        _ => Err(error),
    }
}

/// A frame of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received<'a> {
    /// From the Ethernet header on, without a VLAN tag that the kernel took out.
    pub bytes: &'a [u8],
    /// Its control data.
    pub control: ControlData,
    /// It was longer than the buffer.
    pub is_truncated: bool,
}

/// Buffers for [`BATCH`] frames that one system call receives.
pub(crate) struct ReceiveBatch {
    frames: Vec<u8>,
    frame_bytes: usize,
    control: Vec<Control>,
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
    fn prepare(&mut self) -> &mut [libc::mmsghdr] {
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
            header.msg_hdr.msg_controllen = size_of_val(control) as _;
            header.msg_hdr.msg_flags = 0;
        }
        &mut self.headers
    }

    /// A frame of the last call; `position` is below the count which that call returned.
    pub fn frame(&self, position: usize) -> Received<'_> {
        let header = &self.headers[position];
        let bytes = (header.msg_len as usize).min(self.frame_bytes);
        let start = position * self.frame_bytes;
        Received {
            bytes: &self.frames[start..start + bytes],
            // SAFETY: the kernel filled this header in the last call, and its control data are in the batch, which
            // cannot have moved: it was borrowed for that call and is borrowed here, and vectors keep their memory.
            control: unsafe { ControlData::of(&header.msg_hdr) },
            is_truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_without_a_type_is_8021q() {
        let valid = libc::TP_STATUS_VLAN_VALID;
        assert_eq!(vlan_tag(0, 5, 0x88a8), None);
        assert_eq!(vlan_tag(valid, 5, 0), Some([0x81, 0, 0, 5]));
        let typed = valid | libc::TP_STATUS_VLAN_TPID_VALID;
        assert_eq!(vlan_tag(typed, 0x1005, 0x88a8), Some([0x88, 0xa8, 0x10, 5]));
    }
}
