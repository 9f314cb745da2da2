//! What a run tells at its end, and on its way.

use parshall_core::laws::GENERATOR;
use parshall_core::workload::{GapAccount, SizeAccount};
use serde::Serialize;

/// How far a run is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Packets sent and accounted for.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Whether it has ended.
    pub has_ended: bool,
}

/// The account of a run: asked = sent + not_sent, sent = arrived + lost, where the interface tells.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Packets that were asked for; None: until stopped.
    pub asked: Option<u64>,
    /// Packets handed to the interface.
    pub sent: u64,
    /// Packets that were not sent: the run was stopped, or frames could not be cut.
    pub not_sent: u64,
    /// Packets that the interface counted as transmitted; of a veth: that its peer took.
    pub arrived: Option<u64>,
    /// Packets that the interface did not count.
    pub lost: Option<u64>,
    /// Of these, packets that it counted as dropped or as errors.
    pub lost_counted: Option<u64>,
    /// Frames' bytes, without check sequences.
    pub frame_bytes: u64,
    /// From the first packet to the last; without gaps: the whole run, its beginning in the kernel included.
    pub elapsed_ns: u64,
    /// Packets per second.
    pub rate_pps: f64,
    /// Bits of frames per second.
    pub rate_bps: f64,
    /// Sizes beside their law.
    pub sizes: Option<SizeAccount>,
    /// Gaps beside their law; None when none were asked for.
    pub gaps: Option<GapAccount>,
    /// The law of the gaps.
    pub gap_law: String,
    /// XXH3-128 over headers, payload and what varies of every packet that was sent, in their order.
    /// None when the sender draws by itself.
    pub digest: Option<String>,
    /// Packets that the interface counted in this time, whoever sent them; modulo 2^32.
    pub transmitted: Option<u64>,
    /// The random generator.
    pub generator: &'static str,
    /// The seed.
    pub seed: u64,
    /// Runs of the program that found no packet due.
    pub waited_runs: u64,
    /// Runs of the program that found no packet drawn: the drawing was too slow.
    pub starved_runs: u64,
    /// Why it ended before its end, other than that it was stopped.
    pub error: Option<String>,
    /// CPU seconds of the thread that sent, the receiving side's on the same CPU included.
    pub sender_cpu_s: f64,
    /// CPU seconds of the thread that drew.
    pub feeder_cpu_s: f64,
}

impl Report {
    /// Name of the generator that draws.
    pub(super) const GENERATOR: &'static str = GENERATOR;
}
