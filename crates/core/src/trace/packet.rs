//! One packet of a capture file.

/// Direction of a packet, seen from the interface; the numbers are those of pcapng.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Classic pcap has no directions.
    #[default]
    Unknown = 0,
    /// Received by the interface.
    In = 1,
    /// Sent by the interface.
    Out = 2,
}

/// A captured packet. It borrows its bytes, so that writing and reading copy nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Position of its interface in the list of interfaces of the file.
    pub interface: u32,
    /// Nanoseconds since 1970-01-01 UTC, `CLOCK_REALTIME`.
    pub time_ns: u64,
    /// Its direction.
    pub direction: Direction,
    /// Bytes that it had on the wire, without the frame check sequence unless the interface delivers it.
    pub wire_bytes: u32,
    /// Its first bytes, as many as were captured.
    pub captured: &'a [u8],
    /// Packets of this interface that were lost since the one before (pcapng's `epb_dropcount`); 0 is
    /// not written.
    pub lost_before: u64,
    /// A remark that Wireshark shows with the packet (pcapng only).
    pub comment: Option<&'a str>,
}
