//! The thread behind a run: feeds the senders, begins and ends with all of them, and draws up the account.

use super::GenerateError;
use super::affinity::Affinity;
use super::departure_log::DepartureLog;
use super::error::failed;
use super::feeder::Feeder;
use super::link::LinkWatch;
use super::report::{GeneratorProgress, Report};
use super::schedule::Schedule;
use super::team::Team;
use crate::clock::monotonic_ns;
use crate::session::Control;
use parshall_core::workload::{Packets, Workload};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Between two polls when there is nothing to do: the receiver may need the same CPU.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The same when nothing is left to draw. To take account of packets at once would keep a CPU busy, most often that of
/// the receiver.
const POLL_INTERVAL_DRAWN: Duration = Duration::from_millis(10);
/// A paced run whose host does not keep up goes on for so long after its duration: what is a little late is still sent.
const LATE_AT_THE_END_NS: u64 = 50_000_000;
/// How long senders that are stopped may send nothing of what the first of them has already passed.
const CATCH_UP: Duration = Duration::from_secs(2);

/// What is done to end a run before its end.
enum Ending {
    /// Nothing: it goes on.
    NotYet,
    /// All senders halt, so that it is known how far each is.
    Halting,
    /// Senders that are behind send what another has already passed, so that what was sent is the
    /// beginning of the plan.
    CatchingUp { deadline: Instant, sent: u64 },
    /// No sender sends.
    Stopped,
}

impl Ending {
    fn catching_up(team: &Team) -> Self {
        Self::CatchingUp {
            deadline: Instant::now() + CATCH_UP,
            sent: team.sent().sum(),
        }
    }
}

/// What a run is made of.
pub(super) struct Run<'a> {
    pub workload: &'a Workload,
    pub packets: &'a Packets,
    pub team: Team,
    pub link: LinkWatch,
    pub control: &'a Control<GeneratorProgress>,
    /// Packets in all; none: until it is stopped or the time is over.
    pub requested: Option<u64>,
    /// From the first packet on; none: until all are sent.
    pub duration_ns: Option<u64>,
    /// File of what was sent when; none: it is not kept.
    pub departure_log: Option<PathBuf>,
}

/// Whether the duration of a run is over.
fn is_over(schedule: &Schedule, duration_ns: Option<u64>) -> bool {
    let (Some(duration_ns), Some(begun_ns)) = (duration_ns, schedule.begun_ns()) else {
        return false;
    };
    // Paced, the plan ends in time by itself, with the same packet on every host that keeps up.
    let late_ns = if schedule.is_paced() {
        LATE_AT_THE_END_NS
    } else {
        0
    };
    let end_ns = begun_ns.saturating_add(duration_ns).saturating_add(late_ns);
    monotonic_ns() >= end_ns
}

fn report_progress(control: &Control<GeneratorProgress>, feeder: &Feeder<'_>) {
    control.update(|progress| {
        *progress = GeneratorProgress {
            packets: feeder.sent,
            bytes: feeder.account.frames_bytes(),
        };
    });
}

impl Run<'_> {
    /// Runs the plan.
    pub fn feed(self) -> Result<Report, GenerateError> {
        let Self {
            workload,
            packets,
            team,
            mut link,
            control,
            requested,
            duration_ns,
            departure_log,
        } = self;
        let schedule = team.schedule();
        let until_ns = duration_ns
            .filter(|_| schedule.is_paced())
            .unwrap_or(u64::MAX);
        let mut feeder = Feeder::new(workload, packets, &schedule, team.size(), until_ns)
            .with_departure_log(departure_log.map(|path| DepartureLog::new(path, requested)));
        // Whatever fits is drawn before the first packet leaves.
        while feeder.draw() {}
        team.go();
        let mut affinity = Affinity::beside(&team.cpus());
        let mut is_started = false;
        let mut ending = Ending::NotYet;
        let mut next_poll = Instant::now();
        while !team.has_ended() {
            if !is_started && team.is_ready() {
                schedule.start(monotonic_ns());
                is_started = true;
            }
            let retired = feeder.retire();
            let drew = matches!(ending, Ending::NotYet) && feeder.draw();
            report_progress(control, &feeder);
            let is_lost = Instant::now() >= next_poll && {
                next_poll = Instant::now() + POLL_INTERVAL;
                link.is_lost()
            };
            ending = match ending {
                Ending::NotYet if is_lost || team.has_failed() => {
                    // Halted senders resume, and find that they are still stopped.
                    schedule.set_stopped(true);
                    team.go();
                    Ending::Stopped
                }
                Ending::NotYet if control.should_stop() || is_over(&schedule, duration_ns) => {
                    schedule.set_stopped(true);
                    Ending::Halting
                }
                Ending::Halting if team.is_at_rest() => {
                    schedule.set_end(schedule.sent_by_any());
                    schedule.set_stopped(false);
                    team.go();
                    Ending::catching_up(&team)
                }
                // A CPU that others keep busy takes its time.
                Ending::CatchingUp { sent, .. } if team.sent().sum::<u64>() > sent => {
                    Ending::catching_up(&team)
                }
                Ending::CatchingUp { deadline, .. } if Instant::now() >= deadline => {
                    schedule.set_stopped(true);
                    Ending::Stopped
                }
                as_it_was => as_it_was,
            };
            team.interrupt();
            affinity.settle(team.sent());
            if schedule.is_paced() && feeder.is_drawn() {
                std::thread::sleep(POLL_INTERVAL_DRAWN);
            } else if !retired && !drew {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        let sent = team.join()?;
        feeder.retire_rest();
        if let Some(log) = feeder.take_departure_log() {
            log.write(schedule.begun_ns().unwrap_or(0))
                .map_err(failed("write the times of sending"))?;
        }
        report_progress(control, &feeder);
        // What a late sender left out was requested, too.
        let in_time = (until_ns < u64::MAX).then(|| feeder.due());
        let requested = [requested, in_time].into_iter().flatten().min();
        let report = Report::of(workload, &schedule, &feeder, &sent, requested);
        Ok(report.with_fate(link.fate()))
    }

    /// Runs a back end that draws by itself.
    pub fn wait(mut self) -> Result<Report, GenerateError> {
        let schedule = self.team.schedule();
        self.team.go();
        let began = Instant::now();
        let duration = self.duration_ns.map_or(Duration::MAX, Duration::from_nanos);
        while !self.team.has_ended() {
            let should_stop = self.control.should_stop() || began.elapsed() >= duration;
            if self.link.is_lost() || should_stop {
                schedule.set_stopped(true);
                self.team.go();
                self.team.interrupt();
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let sent = self.team.join()?;
        let nothing = Feeder::new(self.workload, self.packets, &schedule, 1, u64::MAX);
        let report = Report::of(self.workload, &schedule, &nothing, &sent, None).with_own_counts(
            self.workload,
            &sent[0],
            self.requested,
        );
        Ok(report.with_fate(self.link.fate()))
    }
}
