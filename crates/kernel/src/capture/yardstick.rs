//! A capture by one of the [`super::backend`]s, to hold ours against: one socket, one filter and one
//! thread a file, as if each were an application of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parshall_core::ledger::{Cost, HookAccount, Lost};
use parshall_core::trace::{Packet, Section, Statistics, TraceError};

use super::CaptureError;
use super::backend::{self, Backend, BackendError, Counts, Kind, Settings};
use super::ledger::{CaptureLedger, HookTally, SubscriberAccount};
use super::output::{Opened, Output, complain};
use super::session::{Beginning, Summary};
use super::sink::Sink;
use super::status::{Status, StatusBoard};
use crate::clock::{monotonic_ns, realtime_offset_ns, thread_cpu_s};
use crate::filter::Expression;
use crate::net::interface::Interface;

const TICK: Duration = Duration::from_millis(500);
/// Longest wait for the packets of a block that is not full.
const LAST_BLOCK_MAX: Duration = Duration::from_secs(1);
/// Longest wait for packets: so late may a request to stop be seen.
const WAIT: Duration = Duration::from_millis(20);

/// What is to be captured by a socket.
#[derive(Debug)]
pub struct SocketCaptureRequest {
    /// The way to capture.
    pub kind: Kind,
    /// Name of the interface.
    pub interface: String,
    /// Bytes of the buffer of each socket.
    pub buffer_bytes: usize,
    /// Packets for others, too.
    pub promiscuous: bool,
    /// At least one.
    pub outputs: Vec<Output>,
    /// End when each file has so many packets.
    pub count: Option<u64>,
    /// For the head of the files.
    pub section: Section,
}

/// A capture that is being made.
pub struct SocketCapture {
    /// As of a capture: nobody holds them for long.
    threads: Mutex<Vec<JoinHandle<Ended>>>,
    stop: Arc<AtomicBool>,
    status: StatusBoard,
    started: Instant,
    /// Name of the interface.
    pub interface: String,
}

/// How one file ended.
struct Ended {
    account: SubscriberAccount,
    failure: Option<CaptureError>,
    cpu_s: f64,
    file_bytes: u64,
    is_complete: bool,
}

impl SocketCapture {
    /// Opens files and sockets, and starts to read.
    ///
    /// # Errors
    /// [`CaptureError`], before any thread runs; [`CaptureError::GivenUp`] before anything was changed.
    pub fn start(
        request: SocketCaptureRequest,
        beginning: &Beginning,
    ) -> Result<Self, CaptureError> {
        let interface = Interface::find(&request.interface)?;
        let mut readers = Vec::new();
        let stop = Arc::new(AtomicBool::new(false));
        let status = StatusBoard::default();
        let mut filters = Vec::new();
        for output in &request.outputs {
            output.subscription.check()?;
            filters.push(compile(&interface, &output.subscription.filter)?);
        }
        for (mut opened, filter) in beginning.open(request.outputs)?.into_iter().zip(filters) {
            let settings = Settings {
                interface: &interface.name,
                filter: filter.as_ref().map(Expression::instructions),
                snaplen_bytes: opened.subscription.snaplen,
                buffer_bytes: request.buffer_bytes,
                promiscuous: request.promiscuous,
            };
            let backend = backend::open(request.kind, &settings)?;
            opened.begin(&request.section, std::slice::from_ref(&interface))?;
            readers.push(Reader {
                opened,
                backend,
                count: request.count,
                thinned: 0,
                started_ns: monotonic_ns(),
                interface: interface.name.clone(),
                status: status.clone(),
                failure: None,
            });
        }
        for reader in &mut readers {
            reader.opened.take_place()?;
        }
        let mut threads = Vec::new();
        for reader in readers {
            let stop_seen = Arc::clone(&stop);
            let thread = std::thread::Builder::new()
                .name("parshall-capture".into())
                .spawn(move || reader.run(&stop_seen))
                .map_err(|error| CaptureError::Thread {
                    reason: error.to_string(),
                })?;
            threads.push(thread);
        }
        Ok(Self {
            threads: Mutex::new(threads),
            stop,
            status,
            started: Instant::now(),
            interface: interface.name,
        })
    }

    /// Where the capture stands; its notices are taken.
    pub fn status(&self) -> Status {
        let has_ended = self.threads().iter().all(JoinHandle::is_finished);
        self.status.look(has_ended)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<Ended>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the readers to end.
    pub fn request_stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Closes the sockets, writes what is left, and gives the account.
    ///
    /// # Errors
    /// [`CaptureError::Thread`] when a reader died.
    pub fn stop(&self) -> Result<Summary, CaptureError> {
        self.request_stop();
        let mut ledger = CaptureLedger {
            complete: true,
            ..CaptureLedger::default()
        };
        let mut failure = None;
        let threads = std::mem::take(&mut *self.threads());
        for thread in threads {
            let ended = thread.join().map_err(|_| CaptureError::Thread {
                reason: "it died; its file is whole up to its last flush".into(),
            })?;
            ledger.complete &= ended.is_complete;
            ledger.cost.reader_cpu_s += ended.cpu_s;
            ledger.cost.log_bytes += ended.file_bytes;
            ledger.subscribers.push(ended.account);
            failure = failure.or(ended.failure);
        }
        ledger.cost = Cost {
            wall_s: self.started.elapsed().as_secs_f64(),
            ..ledger.cost
        };
        Ok(Summary { ledger, failure })
    }
}

impl Drop for SocketCapture {
    fn drop(&mut self) {
        if !self.threads().is_empty() {
            // The caller went away without asking for the account; the files still get it.
            let _ = self.stop();
        }
    }
}

/// The filter of an output; none takes everything.
fn compile(interface: &Interface, filter: &str) -> Result<Option<Expression>, CaptureError> {
    if filter.is_empty() {
        return Ok(None);
    }
    let compiled = Expression::compile(filter, interface.link_layer(), None);
    compiled.map(Some).map_err(|error| CaptureError::Filter {
        reason: error.to_string(),
    })
}

struct Reader {
    opened: Opened,
    backend: Box<dyn Backend>,
    count: Option<u64>,
    thinned: u64,
    started_ns: u64,
    interface: String,
    status: StatusBoard,
    failure: Option<CaptureError>,
}

impl Reader {
    fn run(mut self, stop: &AtomicBool) -> Ended {
        let mut next_tick = Instant::now() + TICK;
        while !stop.load(Ordering::Acquire) && !self.opened.is_done(self.count) {
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
            // A block that is not full the kernel hands on when its time is over.
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
            status,
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
            if let Some(sink) = &mut opened.sink
                && let Err(error) = sink.write(packet)
            {
                complain(status, failure, error);
            }
        })?;
        status.post(|status| {
            status.packets += opened.packets - before;
            status.wire_bytes += wire_bytes;
        });
        Ok(taken)
    }

    fn with_sink(&mut self, act: impl FnOnce(&mut Sink) -> Result<(), TraceError>) {
        self.opened.with_sink(&self.status, &mut self.failure, act);
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
                .finish(&[statistics], &self.status, &mut self.failure);
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
                    refused: counts.dropped,
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
