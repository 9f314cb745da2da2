//! The thread behind a measurement of paths: opens and closes windows, reads the ring, writes the log, draws up the
//! account.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use parshall_core::abi::{
    PATH_CODE_COUNT, PathReadRecord, PathRecord, RECORD_PATH, RECORD_READ, RecordHeader, view_plain,
};
use parshall_core::ledger::{Cost, HookAccount, Ledger, Lost};
use parshall_core::path_log::{CODE_NAMES, PathLogWriter, Row, TimeHistogram};
use parshall_core::queueing::interval;
use parshall_core::stage::{STAGE_PAD, Stage};
use parshall_core::tcp_log::LogError;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::account::{
    PathAccount, StageTimes, drops, noises, reads, stage_histogram, stage_times, waits,
};
use super::budget::{Budget, BudgetAccount, STEP};
use super::drop_reasons::DropReasons;
use super::estimates::{Estimates, Window};
use super::hooks::PathHooks;
use super::meter::Meter;
use super::request::{Group, PathRequest, enter};
use super::snapshot::Snapshot;
use super::stages::is_between;
use super::status::{PathProgress, ProbeCost, Summary};
use crate::clock::{monotonic_ns, realtime_ns, thread_cpu_s};
use crate::cost::CostSampler;
use crate::measurement_error::MeasurementError;
use crate::ring::HOLD_BACK_NS;
use crate::ring::merge::MergedLanes;
use crate::ring::reader::{LaneReader, Wanted};
use crate::session::{Control, InstrumentError as _};

const BLOCK_BYTES: usize = 64 << 10;
const NAP: Duration = Duration::from_millis(4);
const TICK: Duration = Duration::from_millis(800);
/// Of so many ticks without records only the last is written.
const TICKS_WHILE_QUIET: u32 = 12;
const SETTLE: Duration = Duration::from_secs(2);
/// A window while the programs are attached a share of the time only: attaching takes tens of milliseconds.
const WINDOW: Duration = Duration::from_millis(500);
/// A window while the cost of the probes is measured, and how many pairs there are.
const COST_WINDOW: Duration = Duration::from_millis(200);
const COST_WINDOWS: u64 = 40;

/// With fewer packets in a window its median says little.
const COST_PACKETS_MIN: u64 = 100;
const COST_CONFIDENCE: f64 = 0.95;
/// Code paths of packets whose end no stage shows.
const ENDS_UNKNOWN: [&str; 3] = ["unknown", "open", "displaced"];

pub(super) struct Run {
    request: PathRequest,
    pub hooks: PathHooks,
    pub writer: Option<PathLogWriter<File>>,
    pub started: Instant,
    lanes: MergedLanes,
    read: [u64; 2],
    /// Records read before the last tick that was written, and the ticks since.
    quiet: (u64, u32),
    /// Names that the kernel had at the start.
    reasons: DropReasons,
    rng: Pcg64,
    is_open: bool,
    window_until: Option<Instant>,
    window_started: Instant,
    attached: Duration,
    /// Time between windows, and since when there is none.
    paused: Duration,
    paused_from: Option<Instant>,
    windows: u64,
    whole_before: Vec<TimeHistogram>,
    ended_before: [u64; PATH_CODE_COUNT],
    /// When all programs of the window were attached.
    window_opened: Instant,
    estimates: Estimates,
    /// For which time without windows the window stands; see [`Estimates::add`].
    stands_for_s: f64,
    budget: Option<(Budget, Meter)>,
    /// CPU seconds of the programs and the reader when the window began.
    spent_before_s: f64,
    /// Windows that the log does not have yet: from and until, ns.
    unwritten_windows: Vec<[i64; 2]>,
    /// Histograms at the end of the last window with the probes.
    histograms_with_probes: Option<[Snapshot; 2]>,
    /// Median of the whole in the last window with the probes, ns, by code path.
    with_probes: [Option<f64>; PATH_CODE_COUNT],
    /// What that was more than in the window without them behind it, ns.
    probes_took: [Vec<f64>; PATH_CODE_COUNT],
}

impl Run {
    pub fn new(request: PathRequest, hooks: PathHooks) -> Self {
        let mut lanes = MergedLanes::new(BLOCK_BYTES, Wanted::default());
        for lane in &hooks.lanes {
            lanes.add(LaneReader::from_start(lane.clone()), None);
        }
        Self {
            rng: Pcg64::seed_from_u64(request.seed),
            budget: (request.budget).map(|share| (Budget::new(share), Meter::default())),
            request,
            hooks,
            writer: None,
            started: Instant::now(),
            lanes,
            read: [0; 2],
            quiet: (0, TICKS_WHILE_QUIET),
            reasons: DropReasons::of_this_kernel(),
            is_open: false,
            window_until: None,
            window_started: Instant::now(),
            attached: Duration::ZERO,
            paused: Duration::ZERO,
            paused_from: None,
            windows: 0,
            whole_before: vec![TimeHistogram::default(); PATH_CODE_COUNT],
            ended_before: [0; PATH_CODE_COUNT],
            window_opened: Instant::now(),
            estimates: Estimates::default(),
            stands_for_s: 0.0,
            spent_before_s: 0.0,
            unwritten_windows: Vec::new(),
            histograms_with_probes: None,
            with_probes: [None; PATH_CODE_COUNT],
            probes_took: Default::default(),
        }
    }

    fn measures_cost(&self) -> bool {
        self.request.probe_cost && self.windows < COST_WINDOWS
    }

    /// Whether the current window, or the next one, has the probes between the edges.
    fn has_middle(&self) -> bool {
        !self.measures_cost() || self.windows.is_multiple_of(2)
    }

    /// Attaches the programs.
    pub fn open_window(&mut self) -> Result<(), MeasurementError> {
        // On a busy machine attaching takes as long as a window, and what is attached first sees all of it.
        self.window_started = Instant::now();
        self.end_pause();
        if let Some((_, meter)) = &mut self.budget {
            meter.begin(&self.hooks);
        }
        let attached = self.hooks.attach(self.has_middle());
        if attached.is_err() {
            self.hooks.detach();
        }
        self.window_opened = attached?;
        self.is_open = true;
        if let Some((_, meter)) = &mut self.budget {
            meter.open(&self.hooks);
            self.spent_before_s = meter.spent_s() + thread_cpu_s();
        }
        self.window_until = if self.measures_cost() {
            Some(Instant::now() + COST_WINDOW)
        } else if self.request.share < 1.0 {
            Some(Instant::now() + WINDOW)
        } else {
            None
        };
        Ok(())
    }

    fn end_pause(&mut self) {
        self.paused += (self.paused_from.take()).map_or(Duration::ZERO, |from| from.elapsed());
    }

    /// Attaches the programs for the first time. Of a measurement in windows this is a trial: the first window, too,
    /// comes at a random time. What the programs see meanwhile counts, and so does the time.
    pub fn begin(&mut self) -> Result<(), MeasurementError> {
        let before_s = thread_cpu_s();
        self.open_window()?;
        if let Some((budget, _)) = &mut self.budget {
            budget.attached(thread_cpu_s() - before_s);
        }
        if self.request.share < 1.0 {
            self.close_window()?;
            self.windows = 0;
            self.estimates = Estimates::default();
        }
        Ok(())
    }

    /// Detaches them, and ends what is under way; plans the next window.
    fn close_window(&mut self) -> Result<(), MeasurementError> {
        if !self.is_open {
            return Ok(());
        }
        self.is_open = false;
        let is_cost = self.measures_cost();
        let has_middle = self.has_middle();
        if is_cost {
            self.note_medians(has_middle);
        }
        if let Some((_, meter)) = &mut self.budget {
            meter.begin(&self.hooks);
        }
        let until = self.hooks.detach();
        let window = self.window_started.elapsed();
        self.attached += window;
        self.paused_from = Some(Instant::now());
        self.windows += 1;
        if let Some((_, meter)) = &mut self.budget {
            meter.close(&self.hooks);
        }
        // Programs that were running still put packets into the table.
        std::thread::sleep(NAP);
        self.hooks.sweep()?;
        self.window_until = Some(Instant::now());
        if self.has_windows() && !is_cost {
            self.note_window(until);
        }
        if !is_cost && self.request.share < 1.0 {
            // Times between windows without memory meet no period of the host.
            let mean_s = window.as_secs_f64() * (1.0 / self.request.share - 1.0);
            let random: f64 = self.rng.random();
            self.stands_for_s = mean_s;
            self.window_until =
                Some(Instant::now() + Duration::from_secs_f64(-mean_s * (1.0 - random).ln()));
        }
        if is_cost {
            // The tables are those with all probes.
            if has_middle {
                self.histograms_with_probes = Some(self.hooks.arrays.snapshot());
            } else if let Some(histograms) = self.histograms_with_probes.take() {
                self.hooks.arrays.restore(&histograms);
            }
            for (code, before) in self.whole_before.iter_mut().enumerate() {
                *before = stage_histogram(&self.hooks.arrays, code, STAGE_PAD);
            }
        }
        Ok(())
    }

    /// Whether the programs may be attached for a part of the time only.
    fn has_windows(&self) -> bool {
        self.request.share < 1.0 || self.budget.is_some()
    }

    /// Takes in what ended since the last window was noted.
    fn note_window(&mut self, until: Instant) {
        let ended = self.hooks.arrays.account().ended;
        let before = std::mem::replace(&mut self.ended_before, ended);
        let whole: Vec<_> = (0..PATH_CODE_COUNT)
            .map(|code| stage_histogram(&self.hooks.arrays, code, STAGE_PAD))
            .collect();
        let differences = whole.iter().zip(&self.whole_before);
        let window = Window {
            length_s: (until - self.window_opened).as_secs_f64(),
            packets: std::array::from_fn(|code| ended[code] - before[code]),
            whole: differences.map(|(now, then)| now.since(then)).collect(),
        };
        self.estimates
            .add(&window, std::mem::take(&mut self.stands_for_s));
        self.whole_before = whole;
        if self.writer.is_some() {
            let now_ns = realtime_ns() as i64;
            let times = [self.window_opened, until];
            let window = times.map(|time| now_ns - time.elapsed().as_nanos() as i64);
            self.unwritten_windows.push(window);
        }
        self.window_opened = until;
    }

    /// Ends a window of a budget, or begins the next one, when it is time to.
    fn keep_to_budget(&mut self) -> Result<(), MeasurementError> {
        let Some((budget, meter)) = &mut self.budget else {
            return Ok(());
        };
        if self.is_open {
            meter.update(&self.hooks);
        }
        let spent_s = meter.spent_s() + thread_cpu_s();
        budget.spend(self.started.elapsed().as_secs_f64(), spent_s, self.is_open);
        let window_s = self.window_opened.elapsed().as_secs_f64();
        let cost_s = spent_s - self.spent_before_s;
        if !self.is_open || !budget.ends(window_s, cost_s) {
            return Ok(());
        }
        self.spent_before_s = spent_s;
        let pause = budget.decide(window_s, cost_s, &mut self.rng);
        // A window that stands for others has the end of all its packets. What is delivered has none until the next
        // packet is in its buffer, or the programs are detached.
        if pause.length_s > 0.0 || self.stands_for_s > 0.0 {
            self.close_window()?;
            self.window_until = Some(Instant::now() + Duration::from_secs_f64(pause.length_s));
            self.stands_for_s = pause.stands_for_s;
        } else {
            self.note_window(Instant::now());
        }
        Ok(())
    }

    /// Notes the medians of a window with the probes, or how much shorter they are in one without them: the host drifts,
    /// so neighbours are compared.
    fn note_medians(&mut self, has_middle: bool) {
        for code in 0..PATH_CODE_COUNT {
            let now = stage_histogram(&self.hooks.arrays, code, STAGE_PAD);
            let before = &self.whole_before[code];
            let window = now.since(before);
            let median_ns = (window.total() >= COST_PACKETS_MIN).then(|| window.quantile_ns(0.5));
            if has_middle {
                self.with_probes[code] = median_ns;
            } else if let (Some(with), Some(without)) = (self.with_probes[code].take(), median_ns) {
                self.probes_took[code].push(with - without);
            }
        }
    }

    /// Reads until it is asked to stop or the file takes no more, and gives the account.
    pub fn read(mut self, control: &Control<PathProgress>) -> Result<Summary, MeasurementError> {
        let netns = self.hooks.netns.clone();
        let mut failure = enter(netns.as_deref())
            .and_then(|()| self.observe(control))
            .err();
        self.end_pause();
        if let Err(error) = self.close_window().and_then(|()| self.drain()) {
            failure.get_or_insert(error);
        }
        self.hooks.detach();
        let finished = self.finish();
        if let Err(error) = finished {
            failure.get_or_insert(error);
        }
        let summary = self.summary(failure.filter(|failure| !failure.is_reader_gone()));
        self.report(summary.ledger.clone(), control);
        Ok(summary)
    }

    fn observe(&mut self, control: &Control<PathProgress>) -> Result<(), MeasurementError> {
        let mut sampler = CostSampler::new();
        let mut next_tick = Instant::now() + TICK;
        while !control.should_stop() {
            self.collect(false)?;
            if self.budget.is_some() {
                self.keep_to_budget()?;
            } else if self.is_open {
                sampler.update();
            }
            if self
                .window_until
                .is_some_and(|until| Instant::now() >= until)
            {
                match self.is_open {
                    true => self.close_window()?,
                    false => self.open_window()?,
                }
            }
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + TICK;
                let ledger = self.ledger(false);
                self.tick(&ledger, false)?;
                self.report(ledger, control);
            }
            std::thread::sleep(if self.budget.is_some() { STEP } else { NAP });
        }
        Ok(())
    }

    fn collect(&mut self, everything: bool) -> Result<usize, MeasurementError> {
        let horizon_ns = match everything {
            true => u64::MAX,
            false => monotonic_ns().saturating_sub(HOLD_BACK_NS),
        };
        let mut taken = 0;
        let mut failure = None;
        self.lanes.refill();
        // Packets have the time of their beginning, and come at their end: order holds within a lane only.
        while let Some((lane, _)) = self.lanes.oldest(horizon_ns) {
            let block = self.lanes.block(lane);
            let Some(record) = block.peek() else { break };
            let kind = view_plain::<RecordHeader>(record).map_or(0, |header| header.kind);
            let row = match kind {
                RECORD_PATH => view_plain::<PathRecord>(record).map(Row::Packet),
                RECORD_READ => view_plain::<PathReadRecord>(record).map(Row::Read),
                _ => None,
            };
            if let Some(row) = row {
                self.read[usize::from(kind == RECORD_READ)] += 1;
                if let Some(writer) = &mut self.writer
                    && let Err(error) = writer.push(row)
                {
                    failure.get_or_insert(error);
                }
            }
            self.lanes.block(lane).advance();
            taken += 1;
        }
        match failure {
            Some(error) => Err(self.log_error(error)),
            None => Ok(taken),
        }
    }

    /// Reads to the end after everything was detached.
    fn drain(&mut self) -> Result<(), MeasurementError> {
        let deadline = Instant::now() + SETTLE;
        loop {
            // What began while the last sweep ran.
            self.hooks.sweep()?;
            let taken = self.collect(true)?;
            if taken == 0 && self.lanes.is_caught_up() {
                self.lanes.settle();
                let before = self.hooks.arrays.account();
                std::thread::sleep(NAP);
                let is_at_rest = before == self.hooks.arrays.account();
                if (is_at_rest && self.ledger(true).imbalances().is_empty())
                    || Instant::now() > deadline
                {
                    return Ok(());
                }
            }
        }
    }

    fn tick(&mut self, ledger: &Ledger, is_final: bool) -> Result<(), MeasurementError> {
        let records = self.read.iter().sum();
        let (ticked_records, quiet_ticks) = self.quiet;
        if !is_final && records == ticked_records && quiet_ticks + 1 < TICKS_WHILE_QUIET {
            self.quiet.1 += 1;
            return Ok(());
        }
        self.quiet = (records, 0);
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        let text = serde_json::to_string(ledger).unwrap_or_default();
        let mut values = vec![("parshall.ledger", text.as_str())];
        let windows = serde_json::to_string(&self.unwritten_windows).unwrap_or_default();
        if !self.unwritten_windows.is_empty() {
            values.push(("parshall.windows", windows.as_str()));
        }
        if is_final {
            values.push(("parshall.final", "true"));
        }
        let written = writer.tick(&values);
        written.map_err(|error| self.log_error(error))?;
        self.unwritten_windows.clear();
        Ok(())
    }

    fn finish(&mut self) -> Result<(), MeasurementError> {
        if let Some(writer) = &mut self.writer {
            let flushed = writer.flush();
            flushed.map_err(|error| self.log_error(error))?;
        }
        let ledger = self.ledger(true);
        self.tick(&ledger, true)?;
        if let Some(writer) = &mut self.writer {
            let finished = writer.finish();
            finished.map_err(|error| self.log_error(error))?;
        }
        Ok(())
    }

    fn log_error(&self, error: LogError) -> MeasurementError {
        MeasurementError::log(
            self.request.path.as_deref().unwrap_or(Path::new("-")),
            error,
        )
    }

    fn ledger(&self, complete: bool) -> Ledger {
        let account = self.hooks.arrays.account();
        let ended: u64 = account.ended.iter().sum();
        let has_log = self.writer.is_some();
        let unwritten = self
            .writer
            .as_ref()
            .map_or([0; 2], PathLogWriter::unwritten);
        let of = |hook: &str, index: usize, seen: u64, counted: u64, dropped: u64| {
            let read = self.read[index];
            HookAccount {
                hook: hook.into(),
                seen,
                logged: if has_log {
                    read - unwritten[index]
                } else {
                    counted
                },
                lost: Lost {
                    dropped: if has_log { dropped } else { 0 },
                    overwritten: if has_log {
                        counted.saturating_sub(dropped + read)
                    } else {
                        0
                    },
                    unwritten: unwritten[index],
                    ..Lost::default()
                },
                ..HookAccount::default()
            }
        };
        let mut packets = of("packets", 0, account.seen, ended, account.dropped);
        packets.filtered = account.filtered;
        packets.thinned = account.thinned;
        packets.lost.failed = account.failed;
        let reads = of(
            "reads",
            1,
            account.reads,
            account.reads,
            account.reads_dropped,
        );
        let until_ns = realtime_ns() as i64;
        let wall = self.started.elapsed();
        let mut ledger = Ledger {
            hooks: vec![packets, reads],
            sequence_gaps: self.lanes.sequence_gaps(),
            cost: Cost {
                programs: self.hooks.costs(),
                reader_cpu_s: thread_cpu_s(),
                reader_softirq_s: 0.0,
                wall_s: wall.as_secs_f64(),
                log_bytes: self.writer.as_ref().map_or(0, PathLogWriter::written_bytes),
            },
            complete,
            from_time_ns: until_ns - wall.as_nanos() as i64,
            until_time_ns: until_ns,
        };
        if !complete {
            ledger.exclude_unread();
        }
        ledger
    }

    fn report(&self, ledger: Ledger, control: &Control<PathProgress>) {
        let account = self.hooks.arrays.account();
        let times = stage_times(&self.hooks, Group::None);
        let without_buckets = times.iter().cloned().map(|row| StageTimes {
            buckets: Vec::new(),
            ..row
        });
        let progress = PathProgress {
            packets: account.seen,
            ended: account.ended.iter().sum(),
            lost: account.failed
                + account.dropped
                + account.reads_dropped
                + self.lanes.sequence_gaps(),
            rows: self.read.iter().sum(),
            log_bytes: self.writer.as_ref().map_or(0, PathLogWriter::written_bytes),
            stages: without_buckets.collect(),
            account: PathAccount {
                ledger,
                paths: by_path(account.ended),
                times,
                drops: drops(&self.hooks, &self.reasons),
                uncounted_drops: account.uncounted_drops,
                without_histogram: account.without_histogram,
                reads: reads(&self.hooks.arrays),
                attached_s: self.attached_s(),
                budget: self.budget_account(),
            },
        };
        control.update(|shown| *shown = progress);
    }

    fn summary(&self, failure: Option<MeasurementError>) -> Summary {
        let account = self.hooks.arrays.account();
        Summary {
            ledger: self.ledger(true),
            failure,
            stages: (Stage::ALL.iter())
                .filter(|stage| stage.is_in(self.hooks.stages))
                .map(|stage| stage.name())
                .collect(),
            unavailable: self.hooks.unavailable.clone(),
            paths: by_path(account.ended),
            times: stage_times(&self.hooks, self.request.group),
            waits: waits(&self.hooks.arrays),
            ungrouped: account.ungrouped,
            // With the names of modules that were loaded since.
            drops: drops(&self.hooks, &DropReasons::of_this_kernel()),
            uncounted_drops: account.uncounted_drops,
            without_histogram: account.without_histogram,
            noise: noises(&self.hooks.arrays),
            reads: reads(&self.hooks.arrays),
            missed: self.hooks.missed(),
            probe_cost: self.probe_cost(),
            measures_probe_cost: self.request.probe_cost,
            attached_s: self.attached.as_secs_f64(),
            paused_s: self.paused.as_secs_f64(),
            windows: self.windows,
            budget: self.budget_account(),
            estimates: (self.estimates).finish(self.started.elapsed().as_secs_f64()),
        }
    }

    fn budget_account(&self) -> Option<BudgetAccount> {
        self.budget.as_ref().map(|(budget, _)| budget.account())
    }

    /// Seconds during which the programs have been attached.
    fn attached_s(&self) -> f64 {
        let open = self.is_open.then(|| self.window_started.elapsed());
        (self.attached + open.unwrap_or_default()).as_secs_f64()
    }

    fn probe_cost(&self) -> Vec<ProbeCost> {
        let mut costs = Vec::new();
        for (code, path) in CODE_NAMES.into_iter().enumerate() {
            let took = &self.probes_took[code];
            let probes = (Stage::ALL.iter())
                .filter(|stage| {
                    stage.is_in(self.hooks.stages) && is_between(**stage, self.hooks.stages)
                })
                .map(|stage| stage_histogram(&self.hooks.arrays, code, stage.number()))
                .filter(|times| times.total() > 0)
                .count();
            // Where the end is not known, the last stage differs with the programs that are attached.
            if took.len() < 5 || probes == 0 || ENDS_UNKNOWN.contains(&path) {
                continue;
            }
            let interval = interval(took, COST_CONFIDENCE);
            let half_ns = interval.half_width.unwrap_or(f64::INFINITY);
            costs.push(ProbeCost {
                path,
                probes,
                windows: took.len(),
                ns_per_probe: interval.mean / probes as f64,
                interval_ns: half_ns / probes as f64,
                is_distinguishable: interval.mean > half_ns,
            });
        }
        costs
    }
}

fn by_path(packets: [u64; PATH_CODE_COUNT]) -> BTreeMap<&'static str, u64> {
    CODE_NAMES.into_iter().zip(packets).collect()
}
