//! A run of the generator from start to account.

use super::feeder::Feeder;
use super::plan_ring::PlanRing;
use super::report::{Progress, Report};
use super::sender::{Place, Sender, Sent};
use super::{BackendKind, GenerateError, Request};
use crate::clock::thread_cpu_s;
use parshall_core::workload::{Packets, Workload};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// 16 MiB of planned packets at most: 0.1 s of the fastest sender.
const PLACES_MAX: u64 = 1 << 20;
const PLACES_MIN: u64 = 1 << 12;
/// How often the feeder looks when it has nothing to do: it may share its CPU with who receives.
const LOOK: Duration = Duration::from_millis(2);

/// What the run's threads tell each other.
#[derive(Default)]
struct Board {
    packets: AtomicU64,
    bytes: AtomicU64,
    has_ended: AtomicBool,
}

/// A run. Dropped, it stops.
pub struct Session {
    ring: Arc<PlanRing>,
    board: Arc<Board>,
    feeder: Mutex<Option<JoinHandle<Result<Report, GenerateError>>>>,
}

impl Session {
    /// Starts to send.
    ///
    /// # Errors
    /// What is wrong with the request, the interface, or the kernel's side.
    pub fn start(request: &Request) -> Result<Self, GenerateError> {
        let workload = request.workload()?;
        if request.count == Some(0) {
            return Err(GenerateError::Option {
                option: "--count",
                found: "0".into(),
                expected: "1 packet or more".into(),
            });
        }
        let packets = Packets::of(&workload);
        let end = request.count.unwrap_or(u64::MAX);
        let places = end.clamp(PLACES_MIN, PLACES_MAX).next_power_of_two();
        let place = Place {
            interface: request.interface.clone(),
            namespace: request.namespace.clone(),
            cpu: request.cpu,
            backend: request.backend,
            count: request.count,
        };
        let (sender, ring) =
            Sender::start(place, workload.clone(), packets.clone(), places as u32)?;
        ring.set_end(end);
        let board = Arc::new(Board::default());
        let feeder = {
            let (ring, board) = (Arc::clone(&ring), Arc::clone(&board));
            let (count, backend) = (request.count, request.backend);
            std::thread::Builder::new()
                .name("parshall-plan".into())
                .spawn(move || {
                    let result = if backend == BackendKind::Pktgen {
                        wait(&workload, &packets, &ring, sender, count)
                    } else {
                        feed(&workload, &packets, &ring, &board, sender, count)
                    };
                    board.has_ended.store(true, Ordering::Release);
                    result
                })
                .map_err(|error| GenerateError::Thread {
                    reason: format!("{error}; the host has too many threads"),
                })?
        };
        Ok(Self {
            ring,
            board,
            feeder: Mutex::new(Some(feeder)),
        })
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        Progress {
            packets: self.board.packets.load(Ordering::Acquire),
            bytes: self.board.bytes.load(Ordering::Acquire),
            has_ended: self.board.has_ended.load(Ordering::Acquire),
        }
    }

    /// No packet more.
    pub fn stop(&self) {
        self.ring.stop();
    }

    /// The account; waits for the end.
    ///
    /// # Errors
    /// What went wrong on the way.
    pub fn finish(&self) -> Result<Report, GenerateError> {
        let gone = |reason: &str| GenerateError::Thread {
            reason: reason.into(),
        };
        let feeder = self
            .feeder
            .lock()
            .map_err(|_| gone("died; please report this"))?
            .take()
            .ok_or_else(|| gone("its account was already taken"))?;
        feeder
            .join()
            .unwrap_or_else(|_| Err(gone("died; please report this")))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop();
        if let Ok(mut feeder) = self.feeder.lock()
            && let Some(feeder) = feeder.take()
        {
            let _ = feeder.join();
        }
    }
}

fn feed(
    workload: &Workload,
    packets: &Packets,
    ring: &PlanRing,
    board: &Board,
    sender: Sender,
    asked: Option<u64>,
) -> Result<Report, GenerateError> {
    let mut feeder = Feeder::new(workload, packets, ring);
    // Whatever fits is drawn before the first packet leaves.
    while feeder.draw() {}
    sender.go();
    while !sender.has_ended() {
        let taken = ring.taken();
        let retired = feeder.retire(taken);
        let drew = feeder.draw();
        board.packets.store(feeder.retired(), Ordering::Release);
        board
            .bytes
            .store(feeder.account.frames_bytes(), Ordering::Release);
        if taken == ring.end() || ring.is_stopped() {
            sender.interrupt();
        }
        if !retired && !drew {
            std::thread::sleep(LOOK);
        }
    }
    let sent = sender.join()?;
    feeder.retire(ring.next());
    board.packets.store(feeder.retired(), Ordering::Release);
    Ok(report(workload, ring, &feeder, sent, asked))
}

/// The run of a way of sending that draws by itself.
fn wait(
    workload: &Workload,
    packets: &Packets,
    ring: &PlanRing,
    sender: Sender,
    asked: Option<u64>,
) -> Result<Report, GenerateError> {
    sender.go();
    while !sender.has_ended() {
        if ring.is_stopped() {
            sender.interrupt();
        }
        std::thread::sleep(LOOK);
    }
    let run = sender.join()?;
    let told = run.told;
    let elapsed_ns = told
        .and_then(|told| told.elapsed_ns)
        .unwrap_or(run.elapsed_ns);
    let sent = told.map_or(0, |told| told.packets);
    let mut report = report(
        workload,
        ring,
        &Feeder::new(workload, packets, ring),
        run,
        None,
    );
    let rate_pps = sent as f64 * 1e9 / elapsed_ns.max(1) as f64;
    // It tells no bytes; those of the law, in the mean.
    let frame_bytes = sent as f64 * workload.mean_frame_bytes();
    report.asked = asked;
    report.not_sent = asked.map_or(told.map_or(0, |told| told.errors), |asked| {
        asked.saturating_sub(sent)
    });
    report.sent = sent;
    report.arrived = report.transmitted.map(|transmitted| transmitted.min(sent));
    report.lost = report.arrived.map(|arrived| sent - arrived);
    report.frame_bytes = frame_bytes as u64;
    report.elapsed_ns = elapsed_ns;
    report.rate_pps = rate_pps;
    report.rate_bps = rate_pps * 8.0 * workload.mean_frame_bytes();
    report.digest = None;
    Ok(report)
}

fn report(
    workload: &Workload,
    ring: &PlanRing,
    feeder: &Feeder<'_>,
    run: Sent,
    asked: Option<u64>,
) -> Report {
    let (waited_runs, starved_runs, failed) = ring.idle();
    let sent = feeder.retired() - failed;
    // The interface's counters have 32 bits: what is missing is counted with them, not what came.
    let lost = match (run.before, run.after) {
        (Some(before), Some(after)) => {
            let counted = after.transmitted.wrapping_sub(before.transmitted);
            let missing = (sent as u32).wrapping_sub(counted);
            // Others may send on the interface, too: then it has counted more than ours.
            Some(if missing > u32::MAX / 2 {
                0
            } else {
                u64::from(missing).min(sent)
            })
        }
        _ => None,
    };
    let lost_counted = match (run.before, run.after) {
        (Some(before), Some(after)) => Some(u64::from(
            after.dropped.wrapping_sub(before.dropped) + after.errors.wrapping_sub(before.errors),
        )),
        _ => None,
    };
    // Paced, the last gap has no packet behind it.
    let elapsed_ns = if ring.is_paced() {
        feeder.last_sent_ns
    } else {
        run.elapsed_ns
    };
    let intervals = if ring.is_paced() {
        sent.saturating_sub(1)
    } else {
        sent
    };
    let rate_pps = if elapsed_ns == 0 {
        0.0
    } else {
        intervals as f64 * 1e9 / elapsed_ns as f64
    };
    let frame_bytes = feeder.account.frames_bytes();
    let transmitted = match (run.before, run.after) {
        (Some(before), Some(after)) => Some(u64::from(
            after.transmitted.wrapping_sub(before.transmitted),
        )),
        _ => None,
    };
    Report {
        asked,
        sent,
        not_sent: asked.map_or(failed, |asked| asked - sent),
        arrived: lost.map(|lost| sent - lost),
        lost,
        lost_counted,
        frame_bytes,
        elapsed_ns,
        rate_pps,
        rate_bps: rate_pps * 8.0 * frame_bytes as f64 / sent.max(1) as f64,
        sizes: feeder.account.sizes(workload),
        gaps: feeder.account.gaps(&workload.gaps),
        gap_law: workload.gaps.to_string(),
        transmitted,
        digest: Some(feeder.digest.text()),
        generator: Report::GENERATOR,
        seed: workload.seed,
        waited_runs,
        starved_runs,
        error: run.error,
        sender_cpu_s: run.cpu_s,
        feeder_cpu_s: thread_cpu_s(),
    }
}
