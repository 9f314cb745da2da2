//! Socket capture, to compare the ring with: plain receiving from a packet socket, a mapped ring of
//! blocks, AF_XDP. One capture has one socket, one filter, one reader.
//!
//! | kind | sees | what stays in the stack |
//! |---|---|---|
//! | [`Kind::Receive`] | what comes and goes | all |
//! | [`Kind::MappedBlocks`] | what comes and goes | all |
//! | [`Kind::AfXdp`] | what comes, on one queue | all but what it sees: it takes packets away |

mod af_xdp;
mod error;
mod mapped_blocks;
mod packet_socket;
mod receive;
pub(crate) mod redirect;
mod vlan;

use std::time::Duration;

use parshall_core::filter::classic::ClassicInstruction;
use parshall_core::trace::Packet;
use serde::Deserialize;

pub use error::BackendError;

/// Maximum bytes of a packet when no limit is requested.
pub const SNAPLEN_MAX_BYTES: u32 = 262_144;

/// A capture method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
pub enum Kind {
    /// `AF_PACKET`, one system call and one copy a packet: the Linux Socket Filter, as libpcap read it
    /// before there were mapped rings.
    #[serde(rename = "af-packet")]
    Receive,
    /// `AF_PACKET` with `TPACKET_V3`: the kernel copies into blocks that are mapped, as libpcap reads today.
    #[serde(rename = "tpacket-v3")]
    MappedBlocks,
    /// `AF_XDP`: the driver hands over packets before the stack sees them; where it cannot do that without a
    /// copy, with one. Packets that the filter accepts do not reach the stack. Sent packets are not seen.
    /// Times are those of the reader.
    #[serde(rename = "af-xdp")]
    AfXdp,
}

/// What to capture.
#[derive(Clone, Debug)]
pub struct Settings<'a> {
    /// Name of the interface, in the network namespace of the calling thread.
    pub interface: &'a str,
    /// A program of the classic filter machine; without one all packets are wanted.
    pub filter: Option<&'a [ClassicInstruction]>,
    /// Maximum bytes of a packet; 0: no limit.
    pub snaplen_bytes: u32,
    /// Bytes of the buffer in the kernel: of the socket, of the ring, of the frames.
    pub buffer_bytes: usize,
    /// Whether packets for other hosts are captured, too.
    pub promiscuous: bool,
}

impl Settings<'_> {
    fn snaplen_bytes(&self) -> u32 {
        match self.snaplen_bytes {
            0 => SNAPLEN_MAX_BYTES,
            bytes => bytes.min(SNAPLEN_MAX_BYTES),
        }
    }
}

/// The account of a capture since it was opened. `seen = dropped + delivered + waiting`, and
/// nothing waits after [`Backend::stop`] and a batch of no packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that the filter accepted, counted by the kernel. It does not count the others.
    pub seen: u64,
    /// Of those, dropped because the buffer was full, counted by the kernel.
    pub dropped: u64,
    /// Packets handed on, counted by the reader.
    pub delivered: u64,
}

/// A running capture.
pub trait Backend: Send {
    /// Link type of the packets, from libpcap's registry.
    fn link_type(&self) -> u16;

    /// Hands the packets that are there to `take`, at most a batch; waits for the first of them no longer than
    /// `timeout`. Returns their number. The bytes are valid until `take` returns.
    fn next_batch(
        &mut self,
        timeout: Duration,
        take: &mut dyn FnMut(&Packet<'_>),
    ) -> Result<usize, BackendError>;

    /// Stops receiving; packets in the buffer can still be read.
    fn stop(&mut self) -> Result<(), BackendError>;

    /// The account so far.
    fn counts(&mut self) -> Result<Counts, BackendError>;
}

/// Starts a capture. Every captured packet has passed the filter, also at the start.
///
/// # Errors
/// [`BackendError`] names what the host or the caller lacks.
pub fn open(kind: Kind, settings: &Settings<'_>) -> Result<Box<dyn Backend>, BackendError> {
    Ok(match kind {
        Kind::Receive => Box::new(receive::Receive::open(settings)?),
        Kind::MappedBlocks => Box::new(mapped_blocks::MappedBlocks::open(settings)?),
        Kind::AfXdp => Box::new(af_xdp::AfXdp::open(settings)?),
    })
}
