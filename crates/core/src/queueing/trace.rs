//! What happened to every packet, when that is asked for: two tables, written as the model runs.

/// How a visit or a packet ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fate {
    /// It was served, or reached a sink.
    Served,
    /// The queue was full.
    Lost,
}

/// One row per packet (or clone) and queue that it came to; times in ps.
#[derive(Clone, Debug, Default)]
pub struct VisitTable {
    /// Number of the packet, from 0, in the order of their births.
    pub packet: Vec<u64>,
    /// Whether it was a clone of the packet.
    pub clone: Vec<bool>,
    /// Number of its class.
    pub class: Vec<u16>,
    /// Number of the queue.
    pub queue: Vec<u32>,
    /// When it came; for a lost one also `started` and `left`.
    pub arrived: Vec<u64>,
    /// When its service first started.
    pub started: Vec<u64>,
    /// When its service ended.
    pub left: Vec<u64>,
    /// How it ended.
    pub fate: Vec<Fate>,
}

/// One row per packet (or clone) that left the network, in the order in which they did; times in ps.
#[derive(Clone, Debug, Default)]
pub struct PacketTable {
    /// Number of the packet.
    pub packet: Vec<u64>,
    /// Whether it was a clone.
    pub clone: Vec<bool>,
    /// Number of its class.
    pub class: Vec<u16>,
    /// Its length.
    pub bytes: Vec<u32>,
    /// When it came out of its source.
    pub born: Vec<u64>,
    /// When it left.
    pub left: Vec<u64>,
    /// The sink, counted on from the queues, or the queue that lost it.
    pub place: Vec<u32>,
    /// How it ended.
    pub fate: Vec<Fate>,
}

/// Both tables.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Visits of queues.
    pub visits: VisitTable,
    /// Packets that left.
    pub packets: PacketTable,
}
