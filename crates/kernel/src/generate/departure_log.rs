//! What was sent when: one entry a packet, in the order of the plan, written when the run has ended.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;

use parshall_core::workload::Packet;

/// Packets for which memory is reserved before the run; a longer log grows.
const RESERVED_MAX: u64 = 1 << 22;

/// A packet that was sent.
struct Entry {
    due_ns: u64,
    sent_ns: u64,
    ip_bytes: u32,
    flow: u32,
}

/// The log of a run.
pub(super) struct DepartureLog {
    path: PathBuf,
    entries: Vec<Entry>,
}

impl DepartureLog {
    /// An empty log of a run of so many packets.
    pub fn new(path: PathBuf, count: Option<u64>) -> Self {
        let reserved = count.unwrap_or(0).min(RESERVED_MAX) as usize;
        Self {
            path,
            entries: Vec::with_capacity(reserved),
        }
    }

    /// A packet was sent `sent_ns` after the start.
    pub fn add(&mut self, packet: &Packet, sent_ns: u64) {
        self.entries.push(Entry {
            due_ns: packet.due_ns,
            sent_ns,
            ip_bytes: packet.ip_bytes,
            flow: packet.flow,
        });
    }

    /// Writes the entries in the machine's byte order, 24 bytes each: due and sent (`CLOCK_MONOTONIC`, ns, 8 bytes each),
    /// size of the IP packet and flow (4 bytes each).
    pub fn write(&self, start_ns: u64) -> io::Result<()> {
        let in_file = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
        };
        let file = File::create(&self.path).map_err(in_file)?;
        let mut out = BufWriter::new(file);
        for entry in &self.entries {
            for time_ns in [entry.due_ns, entry.sent_ns] {
                out.write_all(&(start_ns + time_ns).to_ne_bytes())
                    .map_err(in_file)?;
            }
            for number in [entry.ip_bytes, entry.flow] {
                out.write_all(&number.to_ne_bytes()).map_err(in_file)?;
            }
        }
        out.flush().map_err(in_file)
    }
}
