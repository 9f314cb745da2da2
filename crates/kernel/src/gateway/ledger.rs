//! What a gateway did with every packet.

use serde::Serialize;

use crate::session::Progress;

/// The account: read = sent + oversized + send_failed, received = written + tampered + replayed + write_failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GatewayLedger {
    /// Packets read from the TUN device.
    pub read: u64,
    /// Bytes of these.
    pub read_bytes: u64,
    /// Datagrams sent to the peer.
    pub sent: u64,
    /// Of those, refused by the peer's host (no socket on the port); it does not report each.
    pub refused: u64,
    /// Not sent: longer than a datagram may be.
    pub oversized: u64,
    /// Not sent: the kernel refused otherwise.
    pub send_failed: u64,
    /// Datagrams received.
    pub received: u64,
    /// Packets written to the TUN device.
    pub written: u64,
    /// Bytes of these.
    pub written_bytes: u64,
    /// Dropped: not authentic, be it changed on its way, too short or of another secret.
    pub tampered: u64,
    /// Dropped: authentic, but received before, or too old to know.
    pub replayed: u64,
    /// Dropped: the TUN device refused it.
    pub write_failed: u64,
    /// Datagrams that the socket dropped before they were received: its buffer was full.
    pub socket_dropped: u64,
    /// CPU time of the thread, ns, with the kernel's work for it.
    pub cpu_ns: u64,
}

impl Progress for GatewayLedger {
    fn read(&mut self) -> Self {
        *self
    }
}
