//! What a run reports at its end, and while it runs.

use super::BackendKind;
use super::feeder::Feeder;
use super::link::Fate;
use super::schedule::Schedule;
use super::sender::Sent;
use crate::clock::thread_cpu_s;
use crate::session::Progress;
use parshall_core::distributions::RNG_NAME;
use parshall_core::workload::{GapAccount, SizeAccount, Workload};
use serde::Serialize;

/// How far a run is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct GeneratorProgress {
    /// Packets sent and accounted for.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
}

impl Progress for GeneratorProgress {
    fn read(&mut self) -> Self {
        *self
    }
}

/// The account of a run: requested = sent + not_sent. Where the interface counts, and no other process sent from it,
/// sent = arrived + lost.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Packets that were requested, or due in the time that was; None: until stopped, or for a time without gaps.
    pub requested: Option<u64>,
    /// The back end.
    pub backend: BackendKind,
    /// Packets handed to the interface.
    pub sent: u64,
    /// Packets that were not sent: the run ended before.
    pub not_sent: u64,
    /// Packets that the interface counted as transmitted; of a veth: that its peer took. None when it did not count, or
    /// counted more than were sent: others sent from it, too, and may hide what was lost.
    pub arrived: Option<u64>,
    /// Packets that the interface did not count.
    pub lost: Option<u64>,
    /// Packets that the interface counted as dropped or as errors in this time, from any sender.
    pub lost_counted: Option<u64>,
    /// Frames' bytes, without check sequences.
    pub frame_bytes: u64,
    /// From the first packet to the last; without gaps: until the senders have ended.
    /// Of all senders together.
    pub elapsed_ns: u64,
    /// Packets per second.
    pub rate_pps: f64,
    /// Bits of frames per second.
    pub rate_bps: f64,
    /// Sizes beside their distribution.
    pub sizes: Option<SizeAccount>,
    /// Gaps beside their distribution; None when none were requested.
    pub gaps: Option<GapAccount>,
    /// The distribution of the gaps.
    pub gap_distribution: String,
    /// XXH3-128 over headers, payload and what varies of every packet of the plan that was sent, in their order: of
    /// what was handed to the interface, not of what arrived. None when the sender draws by itself.
    pub digest: Option<String>,
    /// Packets that the interface counted in this time, from any sender.
    pub transmitted: Option<u64>,
    /// The random generator.
    pub generator: &'static str,
    /// The seed.
    pub seed: u64,
    /// Runs of the program that found no packet due.
    pub waited_runs: u64,
    /// Runs of the program that found no packet drawn: the drawing was too slow.
    pub starved_runs: u64,
    /// How often the interface lost its carrier meanwhile, which does not end a run.
    pub carrier_losses: u64,
    /// Why it ended before its end, other than that it was stopped.
    pub error: Option<String>,
    /// CPU seconds of the threads that sent, the receiving side's on the same CPUs included.
    pub sender_cpu_s: f64,
    /// CPU seconds of the thread that drew.
    pub feeder_cpu_s: f64,
    /// What each sender did.
    pub senders: Vec<SenderReport>,
}

/// One sender's part of the account.
#[derive(Debug, Clone, Serialize)]
pub struct SenderReport {
    /// Its CPU; None: whichever the kernel gave it.
    pub cpu: Option<usize>,
    /// Packets handed to the interface.
    pub sent: u64,
    /// From its first packet to its last, with what the kernel needs to begin and to end.
    pub elapsed_ns: u64,
    /// CPU seconds of its thread.
    pub cpu_s: f64,
    /// What ended it before its end.
    pub error: Option<String>,
}

impl Report {
    /// Of a run by the plan, called by the thread that drew.
    pub(super) fn of(
        workload: &Workload,
        schedule: &Schedule,
        feeder: &Feeder<'_>,
        senders: &[Sent],
        requested: Option<u64>,
    ) -> Self {
        let (waited_runs, starved_runs) = schedule.idle();
        let sent = feeder.sent;
        let counted = Counted::by_the_interface(senders);
        let lost = counted.and_then(|counted| counted.lost_of(sent));
        // Paced, the last gap has no packet behind it.
        let (elapsed_ns, intervals) = if schedule.is_paced() {
            (feeder.account.departures_ns(), sent.saturating_sub(1))
        } else {
            (whole_run_ns(senders, schedule.begun_ns()), sent)
        };
        let rate_pps = if elapsed_ns == 0 {
            0.0
        } else {
            intervals as f64 * 1e9 / elapsed_ns as f64
        };
        let frame_bytes = feeder.account.frames_bytes();
        Self {
            requested,
            backend: senders
                .first()
                .map_or_else(BackendKind::default, |sender| sender.backend),
            sent,
            not_sent: requested.map_or(0, |requested| requested - sent),
            arrived: lost.map(|lost| sent - lost),
            lost,
            lost_counted: counted.map(|counted| counted.lost),
            frame_bytes,
            elapsed_ns,
            rate_pps,
            rate_bps: rate_pps * 8.0 * frame_bytes as f64 / sent.max(1) as f64,
            sizes: feeder.account.sizes(workload),
            gaps: feeder.account.gaps(&workload.gaps),
            gap_distribution: workload.gaps.to_string(),
            transmitted: counted.map(|counted| counted.transmitted),
            digest: Some(feeder.digest.text()),
            generator: RNG_NAME,
            seed: workload.seed,
            waited_runs,
            starved_runs,
            carrier_losses: 0,
            error: senders.iter().find_map(|sender| sender.error.clone()),
            sender_cpu_s: senders.iter().map(|sender| sender.cpu_s).sum(),
            feeder_cpu_s: thread_cpu_s(),
            senders: senders.iter().map(SenderReport::of).collect(),
        }
    }

    /// The account of a back end that drew its packets itself, without the plan.
    pub(super) fn with_own_counts(
        mut self,
        workload: &Workload,
        sender: &Sent,
        requested: Option<u64>,
    ) -> Self {
        let counts = sender.own_counts;
        let sent = counts.map_or(0, |counts| counts.packets);
        let elapsed_ns = counts.and_then(|counts| counts.elapsed_ns);
        let elapsed_ns = elapsed_ns.unwrap_or(sender.ended_ns - sender.began_ns);
        let rate_pps = sent as f64 * 1e9 / elapsed_ns.max(1) as f64;
        // It counts no bytes; the mean of the distribution.
        let frame_bytes = sent as f64 * workload.mean_frame_bytes();
        self.requested = requested;
        self.not_sent = requested.map_or(counts.map_or(0, |counts| counts.errors), |requested| {
            requested.saturating_sub(sent)
        });
        self.sent = sent;
        self.senders[0].sent = sent;
        self.arrived = self.transmitted.filter(|transmitted| *transmitted <= sent);
        self.lost = self.arrived.map(|arrived| sent - arrived);
        self.frame_bytes = frame_bytes as u64;
        self.elapsed_ns = elapsed_ns;
        self.rate_pps = rate_pps;
        self.rate_bps = rate_pps * 8.0 * workload.mean_frame_bytes();
        self.digest = None;
        self
    }

    /// Adds what happened to the interface: if that ended the run, it explains more than the senders' errors.
    pub(super) fn with_fate(mut self, fate: Fate) -> Self {
        self.error = fate.error.or(self.error);
        self.carrier_losses = fate.carrier_losses;
        self
    }
}

impl SenderReport {
    fn of(sender: &Sent) -> Self {
        Self {
            cpu: sender.cpu,
            sent: sender.packets,
            elapsed_ns: sender.ended_ns - sender.began_ns,
            cpu_s: sender.cpu_s,
            error: sender.error.clone(),
        }
    }
}

/// From the first packet, or else the beginning of the first sender, to the end of the last, ns.
fn whole_run_ns(senders: &[Sent], begun_ns: Option<u64>) -> u64 {
    let began_ns = begun_ns.or_else(|| senders.iter().map(|sender| sender.began_ns).min());
    let ended_ns = senders.iter().map(|sender| sender.ended_ns).max();
    ended_ns.unwrap_or(0) - began_ns.unwrap_or(0)
}

/// What the interface counted while the senders sent.
#[derive(Clone, Copy)]
struct Counted {
    transmitted: u64,
    lost: u64,
}

impl Counted {
    fn by_the_interface(senders: &[Sent]) -> Option<Self> {
        // All senders read the counters before the first began, and the last to end reads them after all have sent.
        let before = senders.first()?.before?;
        let after = senders.iter().max_by_key(|sender| sender.ended_ns)?.after?;
        Some(Self {
            transmitted: after.transmitted.saturating_sub(before.transmitted),
            lost: (after.dropped + after.errors).saturating_sub(before.dropped + before.errors),
        })
    }

    /// How many of so many packets it did not count; None when others' are among those that it did.
    fn lost_of(self, sent: u64) -> Option<u64> {
        sent.checked_sub(self.transmitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_unknown_when_others_also_sent() {
        let lost = |sent, transmitted| {
            Counted {
                transmitted,
                lost: 0,
            }
            .lost_of(sent)
        };
        assert_eq!(lost(10, 10), Some(0));
        assert_eq!(lost(1 << 33, 5), Some((1 << 33) - 5));
        assert_eq!(lost((1 << 32) + 3, 3), Some(1 << 32));
        assert_eq!(lost(3950, 7799), None);
    }
}
