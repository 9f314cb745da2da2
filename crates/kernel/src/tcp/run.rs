//! The thread behind a log: reads the ring, writes the file, asks the hooks, and draws up the account.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use parshall_core::abi::{ENDING_OPEN, TCP_HOOK_COUNT, TcpFlowEndRecord};
use parshall_core::ledger::{Cost, HookAccount, Ledger, Lost, TCP_HOOK_NAMES};
use parshall_core::tcp_log::{LogError, LogWriter, ThinningRow};

use super::account::RunningAccount;
use super::budget::{self, Budget, Meter, Setting, Timed};
use super::collector::Collector;
use super::files::LogFiles;
use super::hooks::TcpHooks;
use super::listeners::ListenerTable;
use super::status::{LogProgress, Summary, THREAD};
use super::sweep::Sweep;
use crate::cgroup;
use crate::clock::{monotonic_ns, thread_cpu_s};
use crate::cost::{CostSampler, Window, program_cost};
use crate::measurement_error::MeasurementError;
use crate::programs::ProgramStatistics;
use crate::session::{Control, InstrumentError as _, SessionError};

/// How long to wait for what other threads and programs are about to finish.
const NAP: Duration = Duration::from_millis(4);
/// Bytes that a lane is taken to fill in a second when the reader's sleep is measured out: four
/// times what a CPU that does nothing but TCP was seen to write.
const LANE_BYTES_PER_S: u64 = 1_000_000_000;
/// The longest sleep: records become visible to readers of the log's progress this late.
const NAP_MAX: Duration = Duration::from_millis(10);
/// What is in the log is at most this old plus the time of one write.
const TICK: Duration = Duration::from_millis(800);
/// Of so many ticks without rows, flows or listeners only the last is written: a log to which nothing comes would grow by
/// 0.5 GB a day.
pub(super) const TICKS_WHILE_QUIET: u32 = 12;
/// Ticks between two sweeps for failed handshakes: each walks their whole table.
const TICKS_BETWEEN_SWEEPS: u32 = 8;
/// How long programs that were running at the detach may take to finish.
const SETTLE: Duration = Duration::from_secs(2);

/// The hooks whose records are rows, and all of them: those, and that of the flow ring.
const OBSERVERS: Range<usize> = 0..TCP_HOOK_COUNT - 1;
const ALL_HOOKS: Range<usize> = 0..TCP_HOOK_COUNT;
/// The first hooks see packets, which are thinned; the others see events, which are not.
pub(super) const PACKET_HOOKS: usize = 2;

/// For each hook, in the order of `enum tcp_hook`, the program whose skipped runs are its misses.
/// Closes have none: what one of their two programs misses, the other gets.
const HOOK_PROGRAMS: [&[&str]; TCP_HOOK_COUNT] = [
    &["tcp_ingress"],
    &["tcp_egress"],
    &["tcp_retransmit", "tcp_retransmit_synack"],
    &["tcp_congestion_state"],
    &[],
    &["tcp_destroy"],
];
/// The hook of closes, whose misses the flow table finds.
const CLOSE_HOOK: usize = 4;
/// The hook of the flow ring.
const FLOW_HOOK: usize = TCP_HOOK_COUNT - 1;

pub(super) struct Run {
    pub path: PathBuf,
    pub files: LogFiles,
    pub started: Instant,
    /// The same by the clock of the records.
    pub started_ns: u64,
    /// The account when the current file began, in a log that rotates.
    pub file_began: Option<Ledger>,
    pub rows_of_former_files: u64,
    /// Ticks since the last one that was written.
    pub quiet_ticks: u32,
    pub collector: Collector,
    pub listeners: ListenerTable,
    pub writer: LogWriter<File>,
    pub hooks: Arc<Mutex<TcpHooks>>,
    pub cgroup_paths: cgroup::Paths,
    /// For those who watch.
    pub account: Arc<Mutex<RunningAccount>>,
    pub lane_bytes: u64,
    pub thins: bool,
    pub budget: Option<Budget>,
    /// What was timed when the current window began.
    pub timed_from: Option<[Timed; TCP_HOOK_COUNT]>,
    /// Closes that no program was run for, as far as the end of the log shows.
    pub unseen_closes: u64,
}

impl Run {
    /// Reads until it is asked to stop or the file takes no more, and gives the account.
    pub fn read(mut self, control: &Control<LogProgress>) -> Result<Summary, MeasurementError> {
        // The programs that measure the reader's softirqs run at each softirq of the host. A reader that hardly runs has few,
        // and the programs would cost more than it does.
        let watched = match self.budget {
            Some(_) => Ok(()),
            None => self
                .with_hooks(TcpHooks::watch_reader)
                .and_then(|watched| watched),
        };
        let mut failure = watched.and_then(|()| self.observe(control)).err();
        self.with_hooks(TcpHooks::detach_observers)?;
        if let Err(error) = self.drain(&OBSERVERS) {
            failure.get_or_insert(error);
        }
        let sweeps = self
            .with_hooks(|hooks| hooks.sum_up_flows())
            .and_then(|sweeps| sweeps);
        let are_accounts_written = match sweeps {
            Ok(sweeps) => sweeps
                .walks
                .into_iter()
                .fold(sweeps.is_whole, |whole, walk| {
                    self.sweep(walk, true) && whole
                }),
            Err(error) => {
                failure.get_or_insert(error);
                false
            }
        };
        self.with_hooks(TcpHooks::detach)?;
        if let Err(error) = self.drain(&ALL_HOOKS) {
            failure.get_or_insert(error);
        }
        for open in self.with_hooks(|hooks| hooks.open_handshakes())? {
            self.collector.flows.note_end(&TcpFlowEndRecord {
                flow: open.flow,
                packets_seen: open.packets_seen,
                packets_thinned: if self.thins {
                    open.packets_seen - open.packets_due
                } else {
                    0
                },
                packets_dropped: open.packets_dropped,
                events_seen: open.events_seen,
                events_dropped: open.events_dropped,
                retransmits_total: open.retransmits_seen,
                retransmits_seen: open.retransmits_seen,
                ending: ENDING_OPEN,
                ..TcpFlowEndRecord::default()
            });
        }
        self.collector.settle();
        if are_accounts_written && self.ledger(true)?.hooks[FLOW_HOOK].lost.total() == 0 {
            self.unseen_closes = self.collector.flows.end_missing();
        }
        self.collector.flows.touch_all();
        // What cannot be flushed any more must be in the account that follows.
        if let Err(error) = self.writer.flush() {
            failure.get_or_insert(self.cut(error));
        }
        let mut ledger = self.ledger(true)?;
        let ticked = self.tick(&ledger, true);
        // Also after a failure: it counts what can no longer be written.
        let finished = self.writer.finish().map_err(|error| self.cut(error));
        if let Err(error) = ticked.and(finished) {
            failure.get_or_insert(error);
            ledger = self.ledger(true)?;
        }
        self.report(control);
        Ok(Summary {
            ledger,
            flows: self.collector.flows.total(),
            listeners: self.listeners.refusing(),
            segments_unlisted: self.with_hooks(|hooks| hooks.segments_unlisted())?,
            budget: self.budget.as_ref().map(Budget::account),
            failure: failure.filter(|failure| !failure.is_reader_gone()),
        })
    }

    /// Reads and writes until asked to stop, or until the file takes no more.
    fn observe(&mut self, control: &Control<LogProgress>) -> Result<(), MeasurementError> {
        if let Some(setting) = self.budget.as_ref().map(Budget::setting) {
            self.note_thinning(setting, 0.0);
        }
        let sweep = self.with_hooks(|hooks| hooks.find_flows())??;
        self.sweep(sweep, false);
        let mut sampler = match self.budget {
            Some(_) => CostSampler::often(),
            None => CostSampler::new(),
        };
        let mut next_step = Instant::now() + budget::STEP;
        let mut next_tick = Instant::now() + TICK;
        let mut ticks_to_sweep = TICKS_BETWEEN_SWEEPS;
        let (lane_bytes_per_s, nap_max) = match self.budget {
            Some(_) => (LANE_BYTES_PER_S / 3, budget::NAP_MAX),
            None => (LANE_BYTES_PER_S, NAP_MAX),
        };
        let nap =
            Duration::from_nanos(self.lane_bytes * 1_000_000_000 / lane_bytes_per_s).min(nap_max);
        while !control.should_stop() {
            self.collect(false)?;
            if let (Some(window), Some(_)) = (sampler.update(), &self.budget) {
                self.note_window(window)?;
            }
            if self.budget.is_some() && Instant::now() >= next_step {
                next_step = Instant::now() + budget::STEP;
                self.keep_budget()?;
            }
            let is_full = (self.files).is_full(
                self.writer.file_bytes(),
                self.writer.written_rows() > self.rows_of_former_files,
            );
            if is_full || Instant::now() >= next_tick {
                next_tick = Instant::now() + TICK;
                let ledger = self.ledger(false)?;
                self.tick(&ledger, is_full)?;
                if is_full {
                    self.begin_file(ledger)?;
                }
                self.report(control);
                ticks_to_sweep -= 1;
                if ticks_to_sweep == 0 {
                    let more = self.with_hooks(|hooks| hooks.end_silent_handshakes())??;
                    ticks_to_sweep = if more { 1 } else { TICKS_BETWEEN_SWEEPS };
                }
            }
            // Few long polls disturb what is measured less than many short ones.
            std::thread::sleep(nap);
        }
        Ok(())
    }

    /// Thins out as many packets as the budget asks for.
    fn keep_budget(&mut self) -> Result<(), MeasurementError> {
        let (is_on, counters) = self.with_hooks(|hooks| (hooks.is_on(), hooks.counters()))?;
        let Some(budget) = &mut self.budget else {
            return Ok(());
        };
        let mut meter = Meter {
            time_s: self.started.elapsed().as_secs_f64(),
            reader_cpu_s: thread_cpu_s(),
            ..Meter::default()
        };
        for (hook, count) in counters.iter().enumerate() {
            meter.seen[hook] = count.seen + count.unowned;
            if let Some(due) = meter.due.get_mut(hook) {
                *due = count.due;
            }
        }
        if !is_on {
            budget.skip(meter);
            return Ok(());
        }
        let Some((setting, cost_share)) = budget.decide(meter) else {
            return Ok(());
        };
        self.with_hooks(|hooks| {
            hooks.set_packets_per_log(setting.packets_per_log)?;
            hooks.pause(!setting.observes)
        })??;
        self.note_thinning(setting, cost_share);
        Ok(())
    }

    /// What was timed and counted so far, by hook.
    fn timed(&self) -> Result<[Timed; TCP_HOOK_COUNT], MeasurementError> {
        let (counters, statistics) =
            self.with_hooks(|hooks| (hooks.counters(), hooks.statistics()))?;
        Ok(std::array::from_fn(|hook| {
            let named = |one: &&ProgramStatistics| HOOK_PROGRAMS[hook].contains(&one.name.as_str());
            let programs = || statistics.iter().filter(named);
            let count = &counters[hook];
            let seen = count.seen + count.unowned;
            Timed {
                runs: programs().map(|one| one.runs).sum(),
                run_ns: programs().map(|one| one.run_ns).sum(),
                seen,
                due: if hook < PACKET_HOOKS { count.due } else { seen },
            }
        }))
    }

    /// Tells the budget what the programs took in a window in which the kernel timed them.
    fn note_window(&mut self, window: Window) -> Result<(), MeasurementError> {
        let timed = self.timed()?;
        let Some(budget) = &mut self.budget else {
            return Ok(());
        };
        match (window, self.timed_from.take()) {
            (Window::Opened, _) => self.timed_from = Some(timed),
            (Window::Closed, Some(from)) => budget.time(&std::array::from_fn(|hook| Timed {
                runs: timed[hook].runs.saturating_sub(from[hook].runs),
                run_ns: timed[hook].run_ns.saturating_sub(from[hook].run_ns),
                seen: timed[hook].seen.saturating_sub(from[hook].seen),
                due: timed[hook].due.saturating_sub(from[hook].due),
            })),
            (Window::Closed, None) => {}
        }
        Ok(())
    }

    /// Writes how packets are thinned from now on.
    fn note_thinning(&mut self, setting: Setting, cost_share: f64) {
        let packets_per_log = match setting.observes {
            true => setting.packets_per_log,
            false => 0,
        };
        self.writer.note_thinning(ThinningRow {
            time_ns: self.log_time_ns(monotonic_ns()),
            packets_per_log,
            cost_share,
        });
    }

    fn collect(&mut self, everything: bool) -> Result<usize, MeasurementError> {
        let writer = &mut self.writer;
        self.collector
            .collect(everything, &mut |records| writer.push_block(records))
            .map_err(|error| self.cut(error))
    }

    /// Lets the kernel walk over its sockets in a thread of its own and reads meanwhile; everything
    /// when the hooks are off, else what is old enough to be in order. Whether it came to the end.
    fn sweep(&mut self, sweep: Sweep, everything: bool) -> bool {
        let is_done = std::thread::scope(|scope| {
            let walk = scope.spawn(|| sweep.run());
            while !walk.is_finished() {
                // An error of the file shows again at the next write.
                if matches!(self.collect(everything), Ok(0)) {
                    std::thread::yield_now();
                }
            }
            matches!(walk.join(), Ok(Ok(_)))
        });
        let _ = self.collect(everything);
        is_done
    }

    /// Reads to the end after these hooks were detached: programs that were running still commit.
    fn drain(&mut self, hooks: &Range<usize>) -> Result<(), MeasurementError> {
        let deadline = Instant::now() + SETTLE;
        let mut result = Ok(());
        loop {
            let taken = match self.collect(true) {
                Ok(taken) => taken,
                // What the file does not take must still be counted.
                Err(error) => {
                    result = result.and(Err(error));
                    continue;
                }
            };
            if taken == 0 && self.collector.lanes().is_caught_up() && self.is_at_rest(hooks)? {
                return result;
            }
            if Instant::now() > deadline {
                return result; // the ledger will show what does not balance
            }
            if taken == 0 {
                std::thread::sleep(NAP);
            }
        }
    }

    /// The counters of these hooks stand still and agree with what was read and missed.
    fn is_at_rest(&mut self, hooks: &Range<usize>) -> Result<bool, MeasurementError> {
        self.collector.settle();
        let before = self.with_hooks(|hooks| hooks.counters())?;
        std::thread::sleep(NAP);
        let after = self.with_hooks(|hooks| hooks.counters())?;
        // While one of them still writes, the whole cannot be expected to balance.
        let balances = *hooks != ALL_HOOKS || self.ledger(true)?.imbalances().is_empty();
        Ok(before[hooks.clone()] == after[hooks.clone()] && balances)
    }

    fn tick(&mut self, ledger: &Ledger, is_final: bool) -> Result<(), MeasurementError> {
        let records = self.with_hooks(|hooks| hooks.listeners())?;
        let paths = &mut self.cgroup_paths;
        let (listeners, leaving) = self.listeners.update(&records, &mut |id| paths.path_of(id));
        self.writer.note_listeners(listeners);
        self.with_hooks(|hooks| hooks.forget_listeners(&leaving))?;
        let paths = &mut self.cgroup_paths;
        let rows = self
            .collector
            .flows
            .take_changed(self.writer.unwritten(), &mut |id| paths.path_of(id));
        let account = RunningAccount {
            ledger: ledger.clone(),
            flows_open: self.collector.flows.open(),
            flows_ended: self.collector.flows.endings().clone(),
            listeners: self.listeners.refusing(),
            segments_unlisted: self.with_hooks(|hooks| hooks.segments_unlisted())?,
            sent_again: self.collector.flows.sent_again(),
            srtt: self.collector.flows.srtt().clone(),
            budget: self.budget.as_ref().map(Budget::account),
        };
        if let Ok(mut shown) = self.account.lock() {
            *shown = account;
        }
        self.quiet_ticks += 1;
        let is_quiet = rows.is_empty() && !self.writer.has_news();
        if !is_final && is_quiet && self.quiet_ticks < TICKS_WHILE_QUIET {
            return Ok(());
        }
        self.quiet_ticks = 0;
        let of_file = (self.file_began.as_ref()).map(|began| ledger.since(began));
        self.writer
            .tick(rows, of_file.as_ref().unwrap_or(ledger), is_final)
            .map_err(|error| self.cut(error))
    }

    /// Ends the current file, after its last tick with this account, and goes on in the next one.
    fn begin_file(&mut self, ledger: Ledger) -> Result<(), MeasurementError> {
        self.writer.finish().map_err(|error| self.cut(error))?;
        self.files.make_room()?;
        let (file, place) = self.files.create(ledger.until_time_ns, &mut || true)?;
        (self.writer)
            .begin_file(file, self.files.header())
            .map_err(|error| self.cut(error))?;
        if let Some(mut place) = place {
            self.files.take(&mut place)?;
        }
        self.rows_of_former_files = self.writer.written_rows();
        self.file_began = Some(ledger);
        self.quiet_ticks = 0;
        if let Some(budget) = &self.budget {
            // Each file says by itself how its packets are thinned.
            let (setting, share) = (budget.setting(), budget.account().cost_share);
            self.note_thinning(setting, share);
        }
        Ok(())
    }

    fn cut(&self, error: LogError) -> MeasurementError {
        MeasurementError::log(&self.path, error)
    }

    fn ledger(&self, complete: bool) -> Result<Ledger, MeasurementError> {
        let (counters, statistics, softirq_ns) = self.with_hooks(|hooks| {
            let softirq_ns = hooks.reader_softirq_ns();
            (hooks.counters(), hooks.statistics(), softirq_ns)
        })?;
        let softirq_s = softirq_ns as f64 / 1e9;
        let unwritten = self.writer.unwritten_by_hook();
        let hooks = (0..TCP_HOOK_COUNT)
            .map(|hook| {
                let count = &counters[hook];
                let missed = if hook == CLOSE_HOOK {
                    self.unseen_closes
                } else {
                    missed_of(&statistics, HOOK_PROGRAMS[hook])
                };
                let read = self.collector.read[hook];
                let kept_back = count.filtered + count.failed;
                let thinned = if self.thins && hook < PACKET_HOOKS {
                    count.seen.saturating_sub(kept_back + count.due)
                } else {
                    0
                };
                let kept_back = kept_back + thinned + count.dropped;
                HookAccount {
                    hook: TCP_HOOK_NAMES[hook].into(),
                    seen: count.seen + missed,
                    filtered: count.filtered,
                    thinned,
                    logged: read.saturating_sub(unwritten[hook]),
                    lost: Lost {
                        overwritten: count.seen.saturating_sub(kept_back + read),
                        dropped: count.dropped,
                        missed,
                        failed: count.failed,
                        unwritten: unwritten[hook],
                    },
                    unowned: count.unowned,
                }
            })
            .collect();
        let mut ledger = Ledger {
            hooks,
            sequence_gaps: self.collector.lanes().sequence_gaps(),
            cost: Cost {
                programs: statistics
                    .iter()
                    .map(|program| program_cost(&program.name, program.runs, program.run_ns))
                    .collect(),
                reader_cpu_s: thread_cpu_s() - softirq_s,
                reader_softirq_s: softirq_s,
                wall_s: self.started.elapsed().as_secs_f64(),
                log_bytes: self.writer.written_bytes(),
            },
            complete,
            from_time_ns: self.log_time_ns(self.started_ns),
            until_time_ns: self.log_time_ns(self.collector.taken_until_ns.max(self.started_ns)),
        };
        if !complete {
            ledger.exclude_unread();
        }
        Ok(ledger)
    }

    fn log_time_ns(&self, time_ns: u64) -> i64 {
        (time_ns as i64).wrapping_add(self.writer.monotonic_offset_ns())
    }

    fn report(&self, control: &Control<LogProgress>) {
        let progress = LogProgress {
            records: self.collector.read.iter().take(OBSERVERS.end).sum(),
            flows: self.collector.flows.total(),
            overwritten: self.collector.lanes().sequence_gaps(),
            log_bytes: self.writer.written_bytes(),
        };
        control.update(|shown| *shown = progress);
    }

    fn with_hooks<T>(&self, act: impl FnOnce(&mut TcpHooks) -> T) -> Result<T, MeasurementError> {
        match self.hooks.lock() {
            Ok(mut hooks) => Ok(act(&mut hooks)),
            // Another thread panicked while it changed the hooks.
            Err(_) => Err(MeasurementError::Session(SessionError::Died {
                name: THREAD.into(),
            })),
        }
    }
}

fn missed_of(statistics: &[ProgramStatistics], programs: &[&str]) -> u64 {
    statistics
        .iter()
        .filter(|one| programs.contains(&one.name.as_str()))
        .map(|one| one.missed)
        .sum()
}
