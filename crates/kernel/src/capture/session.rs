//! A capture: what it is asked for, how it begins, where it stands and how it ends. The thread behind it
//! is `run`.

use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use parshall_core::trace::Section;

use super::CaptureError;
use super::client::{self, Client};
use super::collector::Collector;
use super::ledger::CaptureLedger;
use super::output::{Opened, Output, compile_filters};
use super::request::{Directions, RingRequest, Subscription};
use super::run::Run;
use super::status::{Status, StatusBoard};
use super::tagged::Retag;
use super::tally::Tally;
use crate::clock::{monotonic_ns, realtime_offset_ns};
use crate::net::interface::Interface;

/// How to come by a ring.
#[derive(Clone, Debug)]
pub enum Source {
    /// Found one.
    Found {
        /// What to found.
        ring: RingRequest,
        /// The program that keeps it.
        keeper: Vec<OsString>,
    },
    /// Join the one of this name.
    Join(String),
}

/// What a capture is asked for.
#[derive(Debug)]
pub struct CaptureRequest {
    /// The ring.
    pub source: Source,
    /// At least one.
    pub outputs: Vec<Output>,
    /// End when each subscriber has so many packets.
    pub count: Option<u64>,
    /// For the head of the files.
    pub section: Section,
}

/// How a capture ended.
#[derive(Debug)]
pub struct Summary {
    /// The final account.
    pub ledger: CaptureLedger,
    /// What stopped it before it was asked to end, or the first file that took no more.
    pub failure: Option<CaptureError>,
}

/// How far the beginning of a capture is. Until its filters are compiled, which may take long, and its files are open,
/// which for a FIFO takes until somebody reads it, it has replaced nothing and can be given up.
#[derive(Debug, Default)]
pub struct Beginning(AtomicU8);

const COMPILES: u8 = 0;
const OPENS: u8 = 1;
const HAS_BEGUN: u8 = 2;
const GIVEN_UP: u8 = 3;

impl Beginning {
    /// Whether the files are open, so that the end of the beginning can be waited for.
    pub fn has_begun(&self) -> bool {
        self.0.load(Ordering::Acquire) == HAS_BEGUN
    }

    /// Gives the capture up, if it has not begun. Whether nothing needs to be waited for: where files are being opened,
    /// temporary ones are removed first, at once.
    pub fn give_up(&self) -> bool {
        let compiles = self.advance(COMPILES, GIVEN_UP).is_ok();
        if !compiles {
            let _ = self.advance(OPENS, GIVEN_UP);
        }
        compiles
    }

    fn is_given_up(&self) -> bool {
        self.0.load(Ordering::Acquire) == GIVEN_UP
    }

    /// Opens all files; what exists stays as it is.
    pub(super) fn open(&self, outputs: Vec<Output>) -> Result<Vec<Opened>, CaptureError> {
        self.advance(COMPILES, OPENS)?;
        let opened = outputs
            .into_iter()
            .map(|output| Opened::open(output, &mut || self.is_given_up()))
            .collect::<Result<Vec<_>, _>>()?;
        self.advance(OPENS, HAS_BEGUN)?;
        Ok(opened)
    }

    fn advance(&self, from: u8, to: u8) -> Result<(), CaptureError> {
        let state = &self.0;
        match state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(_) => Err(CaptureError::GivenUp),
        }
    }
}

/// A capture that is being made.
pub struct Capture {
    /// Nobody holds it for long, so that whoever waits for the end keeps nobody from looking.
    thread: Mutex<Option<JoinHandle<Summary>>>,
    stop: Arc<AtomicBool>,
    status: StatusBoard,
    /// Name of the ring.
    pub ring: String,
    /// Names of its interfaces, by number.
    pub interfaces: Vec<String>,
}

impl Capture {
    /// Opens the files, founds or joins the ring, subscribes, and starts to read.
    ///
    /// # Errors
    /// [`CaptureError`], before anything is left attached; [`CaptureError::GivenUp`] before anything was changed.
    pub fn start(request: CaptureRequest, beginning: &Beginning) -> Result<Self, CaptureError> {
        for output in &request.outputs {
            output.subscription.check()?;
        }
        let asked_both = match &request.source {
            Source::Found { ring, .. } => ring.directions == Directions::Both,
            Source::Join(_) => false,
        };
        let mut others = Vec::new();
        let (mut client, filters, mut outputs) = match &request.source {
            Source::Found { ring, keeper } => {
                let interfaces = ring
                    .interfaces
                    .iter()
                    .map(|name| Interface::find(name))
                    .collect::<Result<Vec<_>, _>>()?;
                // First: a mistake in a filter should not cost an interface that a program comes
                // and goes.
                let filters = compile_filters(&request.outputs, &interfaces)?;
                let outputs = beginning.open(request.outputs)?;
                others = client::rings_at(&ring.interfaces);
                (Client::found(keeper, ring)?, filters, outputs)
            }
            Source::Join(name) => {
                let client = Client::join(name)?;
                let filters = compile_filters(&request.outputs, &client.ring.interfaces)?;
                let outputs = beginning.open(request.outputs)?;
                (client, filters, outputs)
            }
        };
        let started_ns = monotonic_ns();
        for output in &mut outputs {
            output.begin(&request.section, &client.ring.interfaces)?;
        }
        let subscriptions: Vec<Subscription> = outputs
            .iter()
            .map(|opened| opened.subscription.clone())
            .collect();
        let (bits, starts) =
            client.subscribe(subscriptions.iter().cloned().zip(filters).collect())?;
        for output in &mut outputs {
            output.take_place()?;
        }
        let mask = bits.iter().fold(0, |mask, bit| mask | 1 << bit);
        let snaplen = subscriptions.iter().map(|one| one.snaplen).max();
        let collector = Collector::new(
            &client.lanes,
            &starts,
            client
                .register
                .as_ref()
                .map(|(readers, slot)| (readers.as_slice(), *slot)),
            mask,
            snaplen.unwrap_or(0),
        );
        let interfaces: Vec<_> = client.ring.interfaces.clone();
        let status = StatusBoard::default();
        for interface in interfaces.iter().filter(|interface| !interface.is_up) {
            status.say(format!(
                "interface {} is down; the capture begins when it is up",
                interface.name
            ));
        }
        for (other, interface) in others {
            status.say(format!(
                "ring {other} takes packets at {interface} already; --join {other} reads along there, and the kernel \
                 copies each packet once"
            ));
        }
        if asked_both {
            let deaf: Vec<&str> = client.ring.deaf_to_sent().collect();
            if !deaf.is_empty() {
                status.say(format!(
                    "what {} sends is not captured: this kernel refuses tcx, and XDP in its place sees only \
                     what comes in; --backend af-packet sees both",
                    deaf.join(", ")
                ));
            }
        }
        if client.ring.layout.wait_for_readers != 0 && client.register.is_none() {
            status.say(
                "this ring waits for readers of root and of its founder only: what we are too slow for is overwritten, \
                 and counted as lost"
                    .into(),
            );
        }
        let stop = Arc::new(AtomicBool::new(false));
        let ring = client.ring.name.clone();
        let run = Run {
            tally: Tally::new(&client.ring, outputs.len()),
            client,
            collector,
            outputs,
            bits,
            count: request.count,
            counts: Vec::new(),
            started: Instant::now(),
            started_ns,
            offset_ns: realtime_offset_ns(),
            retag: Retag::default(),
            status: status.clone(),
            failure: None,
        };
        let stop_seen = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("parshall-capture".into())
            .spawn(move || run.read(&stop_seen))
            .map_err(|error| CaptureError::Thread {
                reason: error.to_string(),
            })?;
        Ok(Self {
            thread: Mutex::new(Some(thread)),
            stop,
            status,
            ring,
            interfaces: interfaces.into_iter().map(|one| one.name).collect(),
        })
    }

    /// Where the capture stands; its notices are taken.
    pub fn status(&self) -> Status {
        let has_ended = self.thread().as_ref().is_none_or(JoinHandle::is_finished);
        self.status.look(has_ended)
    }

    /// Asks the reader to end; [`Capture::stop`] waits for it.
    pub fn request_stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Leaves the ring, writes what is left, and gives the account.
    ///
    /// # Errors
    /// [`CaptureError::Thread`] when there is none, because the reader died.
    pub fn stop(&self) -> Result<Summary, CaptureError> {
        self.request_stop();
        let thread = self.thread().take();
        let thread = thread.ok_or_else(|| CaptureError::Thread {
            reason: "the capture has been stopped already".into(),
        })?;
        thread.join().map_err(|_| CaptureError::Thread {
            reason: "it died; the files are whole up to their last flush".into(),
        })
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<Summary>>> {
        // Nothing between lock and release can fail half-way.
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.thread().is_some() {
            // The caller went away without asking for the account; the files still get it.
            let _ = self.stop();
        }
    }
}
