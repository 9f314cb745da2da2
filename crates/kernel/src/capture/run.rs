//! The thread behind a capture: reads the ring, hands packets to the files, asks the keeper for the counts
//! of the hooks, and draws up the account.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parshall_core::abi::{CaptureRecord, DIRECTION_OUT};
use parshall_core::ledger::Cost;
use parshall_core::trace::{Direction, Packet, Statistics, TraceError, Written};

use super::CaptureError;
use super::client::{Client, KeeperMessage, Left};
use super::collector::Collector;
use super::generation::RunTime;
use super::keeper::message::Event;
use super::kept_ring::HookCount;
use super::ledger::{CaptureLedger, SubscriberAccount};
use super::output::Opened;
use super::sink::Sink;
use super::status::{CaptureAccount, CaptureProgress, Summary};
use super::tagged::Retag;
use super::tally::Tally;
use crate::clock::{monotonic_ns, realtime_offset_ns, thread_cpu_s};
use crate::cost::program_cost;
use crate::ring::HOLD_BACK_NS;
use crate::session::Control;

/// Interval at which the keeper is asked for counts, and the files are flushed.
const TICK: Duration = Duration::from_millis(500);
/// Interval between polls of the ring while packets come, so that each poll finds many. From 1 to 8
/// ms, the cost of a packet is the same; at 0.3 ms, a packet of 64 bytes costs a quarter more.
const NAP: Duration = Duration::from_millis(2);
/// Interval between polls of the ring while no packets come.
const NAP_MAX: Duration = Duration::from_millis(10);
/// Maximum rate at which a lane fills. A nap is no longer than it takes to fill a lane.
const LANE_BYTES_PER_S: u64 = 4_000_000_000;
/// Maximum wait until the keeper ends our subscriptions.
const LEAVE: Duration = Duration::from_secs(60);
/// Maximum time to read the last packets.
const SETTLE: Duration = Duration::from_secs(10);

pub(super) struct Run {
    pub client: Client,
    pub collector: Collector,
    pub outputs: Vec<Opened>,
    /// The subscriber's bit of each output.
    pub bits: Vec<usize>,
    pub count: Option<u64>,
    pub tally: Tally,
    /// The keeper's last answer: counts of the hooks, by subscriber and hook.
    pub counts: Vec<Vec<HookCount>>,
    /// The reader's counts at the last request to the keeper, until its answer.
    pub at_request: Option<ReaderCounts>,
    pub started: Instant,
    pub started_ns: u64,
    pub offset_ns: i64,
    pub retag: Retag,
    pub control: Arc<Control<CaptureProgress>>,
    pub failure: Option<CaptureError>,
}

/// The reader's counts at a request to the keeper: never more than the hooks' counts in the answer.
pub(super) struct ReaderCounts {
    tally: Tally,
    written: Vec<Vec<Written>>,
    log_bytes: u64,
    now_ns: u64,
}

impl Run {
    /// Reads until a stop is requested or nothing more can be done, and returns the summary.
    pub fn read(mut self) -> Summary {
        let observed = self.observe();
        self.note(observed);
        let last = match self.leave() {
            Ok(left) => {
                self.drain(&left.ends);
                Some(left)
            }
            Err(error) => {
                self.note(Err(error));
                // Without the keeper, nothing writes to the ring; what it holds can still be read.
                self.drain(&[]);
                None
            }
        };
        self.collector.settle();
        self.finish(last)
    }

    fn note(&mut self, result: Result<(), CaptureError>) {
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
    }

    /// Reads and writes until a stop is requested, the requested packets are there, or nothing more
    /// can be read or written.
    fn observe(&mut self) -> Result<(), CaptureError> {
        let lap = Duration::from_nanos(
            self.client.ring.layout.size_bytes * 1_000_000_000 / LANE_BYTES_PER_S,
        );
        let mut next_tick = Instant::now() + TICK;
        while !self.control.should_stop() && !self.is_done() {
            let began = Instant::now();
            let taken = self.collect(monotonic_ns().saturating_sub(HOLD_BACK_NS));
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + TICK;
                self.tick()?;
            }
            // A poll at once would find few packets, and take cache lines from the hook.
            let nap = if taken == 0 { NAP_MAX } else { NAP };
            let mut pause = nap.min(lap).saturating_sub(began.elapsed());
            if taken == 0 || !pause.is_zero() {
                self.with_sinks(Sink::caught_up);
            }
            while let Some(message) = self.client.receive(pause)? {
                self.handle(message)?;
                pause = Duration::ZERO;
            }
        }
        Ok(())
    }

    /// Asks the keeper to end the subscriptions, and reads on until it has.
    fn leave(&mut self) -> Result<Left, CaptureError> {
        self.client.request_leave()?;
        let deadline = Instant::now() + LEAVE;
        while Instant::now() < deadline {
            self.collect(monotonic_ns().saturating_sub(HOLD_BACK_NS));
            if let Some(KeeperMessage::Left(left)) =
                self.client.receive(Duration::from_millis(1))?
            {
                return Ok(left);
            }
        }
        Err(CaptureError::Keeper {
            reason: format!(
                "ring {} does not answer; end it, and create the ring again",
                self.client.ring.name
            ),
        })
    }

    fn handle(&mut self, message: KeeperMessage) -> Result<(), CaptureError> {
        match message {
            KeeperMessage::Event(event) => {
                self.control.notify(event.sentence());
                if matches!(event, Event::Gone { was_last: true, .. }) {
                    return Err(CaptureError::InterfacesGone {
                        ring: self.client.ring.name.clone(),
                    });
                }
            }
            KeeperMessage::Account { counts, run_times } => {
                self.counts = counts;
                self.post_account(&run_times);
            }
            KeeperMessage::Left(_) | KeeperMessage::Replaced | KeeperMessage::Merged { .. } => {} // not requested
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.outputs.iter().all(|output| output.is_done(self.count))
    }

    fn collect(&mut self, horizon_ns: u64) -> usize {
        let Self {
            collector,
            outputs,
            bits,
            count,
            tally,
            offset_ns,
            retag,
            failure,
            control,
            ..
        } = self;
        collector.collect(horizon_ns, |record, bytes| {
            let (wire_bytes, bytes) = retag.whole(record, bytes);
            for (number, output) in outputs.iter_mut().enumerate() {
                if record.subscribers >> bits[number] & 1 == 0 {
                    continue;
                }
                let hook = usize::from(record.header.hook);
                if let Some(read) = tally.read[number].get_mut(hook) {
                    *read += 1;
                }
                if count.is_some_and(|count| output.packets >= count) {
                    tally.thinned[number][usize::from(record.interface)] += 1;
                    continue;
                }
                output.packets += 1;
                tally.wire_bytes += u64::from(wire_bytes);
                let snaplen = bytes.len().min(output.subscription.snaplen as usize);
                // Built for each output: copying a packet that was just built would wait for its stores.
                let packet = Packet {
                    interface: u32::from(record.interface),
                    time_ns: record.time_ns.saturating_add_signed(*offset_ns),
                    direction: direction_of(record),
                    wire_bytes,
                    captured: &bytes[..snaplen],
                    ..Packet::default()
                };
                output.write(&packet, control, failure);
            }
        })
    }

    fn with_sinks(&mut self, act: fn(&mut Sink) -> Result<(), TraceError>) {
        for output in &mut self.outputs {
            output.with_sink(&self.control, &mut self.failure, act);
        }
    }

    fn tick(&mut self) -> Result<(), CaptureError> {
        self.offset_ns = realtime_offset_ns();
        let now_ns = self.realtime_ns(monotonic_ns());
        let mut lost = 0;
        for number in 0..self.outputs.len() {
            let counts = self.counts.get(number).map_or(&[][..], Vec::as_slice);
            let statistics = self.statistics(number, counts, now_ns, false);
            lost += statistics.iter().map(|one| one.lost.total()).sum::<u64>();
            let tick = |sink: &mut Sink| sink.tick(now_ns, &statistics);
            self.outputs[number].with_sink(&self.control, &mut self.failure, tick);
        }
        let sinks = || self.outputs.iter().map(|output| output.sink.as_ref());
        // One request at a time: an answer belongs to the reader's counts at its own request.
        if self.at_request.is_none() {
            self.at_request = Some(ReaderCounts {
                tally: self.tally.clone(),
                written: sinks()
                    .map(|sink| sink.map_or(&[][..], Sink::written).to_vec())
                    .collect(),
                log_bytes: sinks().flatten().map(Sink::bytes).sum(),
                now_ns,
            });
            self.client.request_account()?;
        }
        self.control.update(|progress| {
            progress.packets = self.outputs.iter().map(|output| output.packets).sum();
            progress.wire_bytes = self.tally.wire_bytes;
            progress.lost = lost;
        });
        Ok(())
    }

    /// Publishes the ledger so far, from the reader's counts at the request and the hooks' counts
    /// in the answer.
    fn post_account(&mut self, run_times: &[RunTime]) {
        let Some(reader) = self.at_request.take() else {
            return;
        };
        let common = Statistics::default();
        let gaps = self.collector.lanes().sequence_gaps();
        let subscribers = (self.counts.iter().zip(&reader.written).enumerate())
            .map(|(number, (counts, written))| {
                let statistics = reader.tally.statistics(number, counts, gaps, common);
                self.account(number, &reader.tally, counts, &statistics, written)
            })
            .collect();
        let ledger = self.ledger(subscribers, run_times, reader.log_bytes, false);
        let until_time_ns = reader.now_ns;
        self.control.update(|progress| {
            progress.account = CaptureAccount {
                ledger,
                until_time_ns,
            };
        });
    }

    fn account(
        &self,
        number: usize,
        tally: &Tally,
        counts: &[HookCount],
        statistics: &[Statistics],
        written: &[Written],
    ) -> SubscriberAccount {
        let ring = &self.client.ring;
        let output = &self.outputs[number];
        SubscriberAccount {
            file: output.file.clone(),
            filter: output.subscription.filter.clone(),
            snaplen: output.subscription.snaplen,
            interfaces: tally.accounts(number, statistics, written, ring),
            hooks: tally.hooks(number, counts, ring),
        }
    }

    fn ledger(
        &self,
        subscribers: Vec<SubscriberAccount>,
        run_times: &[RunTime],
        log_bytes: u64,
        complete: bool,
    ) -> CaptureLedger {
        CaptureLedger {
            ring: self.client.ring.name.clone(),
            subscribers,
            sequence_gaps: self.collector.lanes().sequence_gaps(),
            cost: self.cost(run_times, log_bytes),
            complete,
        }
    }

    /// Reads each lane up to its position in `ends`; without positions, up to its newest record.
    fn drain(&mut self, ends: &[u64]) {
        let deadline = Instant::now() + SETTLE;
        loop {
            let taken = self.collect(monotonic_ns());
            let has_all = match ends.is_empty() {
                true => self.collector.lanes().is_caught_up(),
                false => self.collector.lanes().has_reached(ends),
            };
            // The ledger counts packets that are still unread at the deadline as lost.
            if (taken == 0 && has_all) || Instant::now() > deadline {
                return;
            }
        }
    }

    /// The account of one subscriber by interface, as its file carries it.
    fn statistics(
        &self,
        number: usize,
        counts: &[HookCount],
        now_ns: u64,
        complete: bool,
    ) -> Vec<Statistics> {
        let common = Statistics {
            start_ns: self.realtime_ns(self.started_ns),
            end_ns: now_ns,
            complete,
            ..Statistics::default()
        };
        let gaps = self.collector.lanes().sequence_gaps();
        self.tally.statistics(number, counts, gaps, common)
    }

    fn realtime_ns(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.saturating_add_signed(self.offset_ns)
    }

    fn finish(mut self, last: Option<Left>) -> Summary {
        let complete = last.is_some();
        let left = last.unwrap_or_else(|| Left {
            counts: std::mem::take(&mut self.counts),
            ..Left::default()
        });
        let now_ns = self.realtime_ns(monotonic_ns());
        let mut subscribers = Vec::new();
        let mut log_bytes = 0;
        for number in 0..self.outputs.len() {
            let counts = left.counts.get(number).cloned().unwrap_or_default();
            let statistics = self.statistics(number, &counts, now_ns, complete);
            let output = &mut self.outputs[number];
            let (written, bytes) = output.finish(&statistics, &self.control, &mut self.failure);
            log_bytes += bytes;
            subscribers.push(self.account(number, &self.tally, &counts, &statistics, &written));
        }
        let ledger = self.ledger(subscribers, &left.run_times, log_bytes, complete);
        self.control.update(|progress| {
            progress.account = CaptureAccount {
                ledger: ledger.clone(),
                until_time_ns: now_ns,
            };
        });
        Summary {
            ledger,
            failure: self.failure,
        }
    }

    fn cost(&self, run_times: &[RunTime], log_bytes: u64) -> Cost {
        Cost {
            programs: run_times
                .iter()
                .zip(&self.client.ring.hooks)
                .map(|(time, hook)| program_cost(&hook.name(), time.runs, time.run_ns))
                .collect(),
            reader_cpu_s: thread_cpu_s(),
            reader_softirq_s: 0.0,
            wall_s: self.started.elapsed().as_secs_f64(),
            log_bytes,
        }
    }
}

fn direction_of(record: &CaptureRecord) -> Direction {
    if record.direction == DIRECTION_OUT {
        Direction::Out
    } else {
        Direction::In
    }
}
