//! One packet as a capture file has it.

/// Which way a packet went, seen from the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Not told (classic pcap never tells).
    #[default]
    Unknown,
    /// Received by the interface.
    In,
    /// Sent by the interface.
    Out,
}

/// A captured packet. It borrows its bytes, so that nothing is copied on the way to a file or out of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Position of its interface in the list of interfaces of the file.
    pub interface: u32,
    /// Nanoseconds since 1970-01-01 UTC, `CLOCK_REALTIME`.
    pub time_ns: u64,
    /// Which way it went.
    pub direction: Direction,
    /// Bytes that it had on the wire, without the frame check sequence unless the interface gives it.
    pub wire_bytes: u32,
    /// Its first bytes, as many as were captured.
    pub captured: &'a [u8],
    /// Packets of this interface that were lost since the one before (pcapng's `epb_dropcount`); 0 is
    /// not written.
    pub lost_before: u64,
    /// A remark that Wireshark shows with the packet (pcapng only).
    pub comment: Option<&'a str>,
}
