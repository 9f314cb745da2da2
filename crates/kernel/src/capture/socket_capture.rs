//! A capture by one of the [`super::backend`]s, to compare with the ring: one socket, one filter and one thread for each
//! file, as if each were an application of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parshall_core::ledger::{HookAccount, Lost};
use parshall_core::trace::{Packet, Section, Statistics, TraceError};

use super::CaptureError;
use super::backend::{self, Backend, BackendError, Counts, Kind, Settings};
use super::ledger::{CaptureLedger, HookTally, SubscriberAccount};
use super::output::{Opened, Output};
use super::request::RingRequest;
use super::sink::Sink;
use super::status::{CaptureProgress, Summary, THREAD};
use crate::clock::{monotonic_ns, realtime_offset_ns, thread_cpu_s};
use crate::filter::Expression;
use crate::net::interface::Interface;
use crate::session::{Control, Session, Startup};

const TICK: Duration = Duration::from_millis(500);
/// Maximum wait for the last block: one that is not full comes at its timeout.
const LAST_BLOCK_MAX: Duration = Duration::from_secs(1);
/// Maximum wait for packets, after which a request to stop is noticed.
const WAIT: Duration = Duration::from_millis(20);

/// A running capture by sockets.
pub(super) struct SocketCapture {
    pub session: Session<CaptureProgress, Ended>,
    started: Instant,
    /// Name of the interface.
    pub interface: String,
}

/// How one file ended.
pub(super) struct Ended {
    account: SubscriberAccount,
    failure: Option<CaptureError>,
    cpu_s: f64,
    file_bytes: u64,
    is_complete: bool,
}

impl SocketCapture {
    /// Opens files and sockets, and starts to read. Interface, buffer size and promiscuous mode are those of `ring`.
    ///
    /// # Errors
    /// [`CaptureError`], before any thread runs. [`SessionError::GivenUp`] when the start was
    /// cancelled: no file has changed.
    pub fn start(
        kind: Kind,
        ring: &RingRequest,
        outputs: Vec<Output>,
        count: Option<u64>,
        section: &Section,
        startup: &Startup,
    ) -> Result<Self, CaptureError> {
        let interface = Interface::find(&ring.interfaces.concat())?;
        let mut filters = Vec::new();
        for output in &outputs {
            output.subscription.check()?;
            filters.push(compile(&interface, &output.subscription.filter)?);
        }
        let control = Arc::new(Control::default());
        let mut readers = Vec::new();
        let opened = startup.open(|is_given_up| Opened::open_all(outputs, is_given_up))?;
        for (mut opened, filter) in opened.into_iter().zip(filters) {
            let settings = Settings {
                interface: &interface.name,
                filter: filter.as_ref().map(Expression::instructions),
                snaplen_bytes: opened.subscription.snaplen,
                buffer_bytes: ring.ring_bytes as usize,
                promiscuous: ring.promiscuous,
            };
            let backend = backend::open(kind, &settings)?;
            opened.begin(section, std::slice::from_ref(&interface))?;
            readers.push(Reader {
                opened,
                backend,
                count,
                thinned: 0,
                started_ns: monotonic_ns(),
                interface: interface.name.clone(),
                control: Arc::clone(&control),
                failure: None,
            });
        }
        for reader in &mut readers {
            reader.opened.commit()?;
        }
        let works = readers
            .into_iter()
            .map(|reader| |_: &Control<CaptureProgress>| reader.run());
        Ok(Self {
            session: Session::start(THREAD, control, works)?,
            started: Instant::now(),
            interface: interface.name,
        })
    }

    /// Closes the sockets, writes the remaining packets, and returns the summary.
    pub fn stop(&self) -> Result<Summary, CaptureError> {
        let mut ledger = CaptureLedger {
            complete: true,
            ..CaptureLedger::default()
        };
        let mut failure = None;
        for ended in self.session.stop()? {
            ledger.complete &= ended.is_complete;
            ledger.cost.reader_cpu_s += ended.cpu_s;
            ledger.cost.log_bytes += ended.file_bytes;
            ledger.subscribers.push(ended.account);
            failure = failure.or(ended.failure);
        }
        ledger.cost.wall_s = self.started.elapsed().as_secs_f64();
        Ok(Summary { ledger, failure })
    }
}

/// Compiles the filter of an output; `None` accepts every packet.
fn compile(interface: &Interface, filter: &str) -> Result<Option<Expression>, CaptureError> {
    if filter.is_empty() {
        return Ok(None);
    }
    let invalid = |reason| CaptureError::Filter { reason };
    let compiled = Expression::compile(filter, interface.link_layer(), None)
        .map_err(|error| invalid(error.to_string()))?;
    if compiled.program().has_loop() {
        return Err(invalid(format!(
            "filter '{filter}': a socket's filter cannot loop (protochain); use --backend ring"
        )));
    }
    Ok(Some(compiled))
}

/// Reads one socket into one file.
struct Reader {
    opened: Opened,
    backend: Box<dyn Backend>,
    count: Option<u64>,
    thinned: u64,
    started_ns: u64,
    interface: String,
    control: Arc<Control<CaptureProgress>>,
    failure: Option<CaptureError>,
}

impl Reader {
    fn run(mut self) -> Ended {
        let mut next_tick = Instant::now() + TICK;
        while !self.control.should_stop() && !self.opened.is_done(self.count) {
            match self.take(WAIT) {
                Ok(0) => self.with_sink(Sink::caught_up),
                Ok(_) => {}
                Err(error) => {
                    self.failure.get_or_insert(error.into());
                    break;
                }
            }
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + TICK;
                let counts = self.backend.counts().unwrap_or_default();
                let statistics = [self.statistics(&counts, false)];
                self.with_sink(|sink| sink.tick(statistics[0].end_ns, &statistics));
            }
        }
        let stopped = self.backend.stop();
        let deadline = Instant::now() + LAST_BLOCK_MAX;
        loop {
            while matches!(self.take(Duration::ZERO), Ok(taken) if taken > 0) {}
            // Packets of a block that is not full come at its timeout.
            let counts = self.backend.counts().unwrap_or_default();
            if counts.seen <= counts.dropped + counts.delivered
                || Instant::now() >= deadline
                || self.take(WAIT).is_err()
            {
                break;
            }
        }
        self.finish(stopped.is_ok())
    }

    fn take(&mut self, timeout: Duration) -> Result<usize, BackendError> {
        let Self {
            opened,
            backend,
            count,
            thinned,
            control,
            failure,
            ..
        } = self;
        let mut wire_bytes = 0;
        let before = opened.packets;
        let taken = backend.next_batch(timeout, &mut |packet: &Packet<'_>| {
            if count.is_some_and(|count| opened.packets >= count) {
                *thinned += 1;
                return;
            }
            opened.packets += 1;
            wire_bytes += u64::from(packet.wire_bytes);
            opened.write(packet, control, failure);
        })?;
        control.update(|progress| {
            progress.packets += opened.packets - before;
            progress.wire_bytes += wire_bytes;
        });
        Ok(taken)
    }

    fn with_sink(&mut self, act: impl FnOnce(&mut Sink) -> Result<(), TraceError>) {
        self.opened.with_sink(&self.control, &mut self.failure, act);
    }

    fn statistics(&self, counts: &Counts, complete: bool) -> Statistics {
        let offset_ns = realtime_offset_ns();
        Statistics {
            start_ns: self.started_ns.saturating_add_signed(offset_ns),
            end_ns: monotonic_ns().saturating_add_signed(offset_ns),
            seen: counts.seen,
            filtered: self.thinned,
            lost: Lost {
                dropped: counts.dropped,
                ..Lost::default()
            },
            complete,
            ..Statistics::default()
        }
    }

    fn finish(mut self, is_complete: bool) -> Ended {
        let counts = self.backend.counts().unwrap_or_default();
        let statistics = self.statistics(&counts, is_complete);
        let (written, file_bytes) =
            self.opened
                .finish(&[statistics], &self.control, &mut self.failure);
        let written = written.first().copied().unwrap_or_default();
        let account = HookAccount {
            hook: self.interface.clone(),
            seen: counts.seen,
            thinned: self.thinned,
            logged: written.logged(),
            lost: Lost {
                unwritten: written.unwritten,
                ..statistics.lost
            },
            ..HookAccount::default()
        };
        Ended {
            account: SubscriberAccount {
                file: self.opened.file,
                filter: self.opened.subscription.filter,
                snaplen: self.opened.subscription.snaplen,
                interfaces: vec![account],
                hooks: vec![HookTally {
                    hook: self.interface,
                    seen: counts.seen,
                    matched: counts.seen,
                    dropped: counts.dropped,
                    read: counts.delivered,
                }],
            },
            failure: self.failure,
            cpu_s: thread_cpu_s(),
            file_bytes,
            is_complete,
        }
    }
}
