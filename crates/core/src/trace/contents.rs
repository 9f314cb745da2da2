//! The content of a capture file: a packet in its bytes, and what stands beside the packets.

use super::interface::Interface;
use super::packet::Direction;
use super::section::Section;

/// Numbers of an interface statistics block; `None` if the file lacks one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Start of the capture, nanoseconds since 1970-01-01 UTC.
    pub start_ns: Option<u64>,
    /// End of the capture, or of the time of these numbers.
    pub end_ns: Option<u64>,
    /// Packets that the interface received (`isb_ifrecv`).
    pub received: Option<u64>,
    /// Packets that the interface dropped (`isb_ifdrop`).
    pub dropped_by_interface: Option<u64>,
    /// Packets that the filter accepted (`isb_filteraccept`).
    pub accepted: Option<u64>,
    /// Packets that the operating system dropped (`isb_osdrop`).
    pub dropped_by_os: Option<u64>,
    /// Packets that were delivered (`isb_usrdeliv`).
    pub delivered: Option<u64>,
    /// Remarks; Parshall's ledger is among them.
    pub comments: Vec<String>,
}

/// Content of a file so far, other than packets.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) section: Section,
    pub(super) interfaces: Vec<Interface>,
    pub(super) counters: Vec<Option<Counters>>,
    /// Memory of the interfaces and counters, bytes.
    pub(super) kept_bytes: usize,
}

/// A packet in the bytes that were just consumed.
#[derive(Default)]
pub(super) struct Found {
    pub(super) interface: u32,
    pub(super) time_ns: u64,
    pub(super) direction: Direction,
    pub(super) wire_bytes: u32,
    pub(super) lost_before: u64,
    pub(super) captured_bytes: usize,
    /// Bytes from the start of the packet to the end of the consumed bytes.
    pub(super) behind_bytes: usize,
    /// The comment, counted from the start of the packet's bytes: where it starts, how long it is.
    pub(super) comment: Option<(usize, usize)>,
}
