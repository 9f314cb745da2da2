//! A capture: its request, its start, its status, its end. `ring_capture` starts a capture by a ring, `socket_capture`
//! one by sockets.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use parshall_core::trace::Section;
use serde::Deserialize;

use super::CaptureError;
use super::backend::Kind;
use super::batch::PacketBatch;
use super::output::OutputRequest;
use super::request::RingRequest;
use super::ring_capture::{RingCapture, Source};
use super::socket_capture::SocketCapture;
use super::status::{CaptureProgress, Summary};
use crate::os_text::OsText;
use crate::session::{Failure, Instrument, Startup, Status};

/// Batches that may wait for the caller: a few, so that memory is bounded and the reader keeps up.
const BATCHES_MAX: usize = 16;

/// The request for a capture.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// At least one.
    pub outputs: Vec<OutputRequest>,
    /// The ring to create.
    pub ring: Option<RingRequest>,
    /// Name of the ring to join, in place of creating one.
    pub join: Option<String>,
    /// A capture method to compare with, in place of a ring.
    pub backend: Option<Kind>,
    /// The program that keeps a ring.
    pub keeper: Vec<OsText>,
    /// End when each output has this many packets.
    pub count: Option<u64>,
    /// Program and version, for the head of the files.
    pub application: String,
    /// Kernel, for the head of the files.
    pub os: String,
    /// JSON object of the host, for the head of the files.
    pub environment: String,
}

/// A running capture.
pub struct Capture {
    /// Dropped before `method`, since dropping `method` joins a thread that may wait for a batch to be taken.
    batches: Mutex<Batches>,
    method: Method,
}

enum Method {
    Ring(RingCapture),
    Sockets(SocketCapture),
}

/// Packets on their way to the caller.
enum Batches {
    /// All go to files.
    None,
    /// From the reader.
    Waiting(Receiver<PacketBatch>),
    /// The capture was stopped: no more batches come.
    Over,
}

/// What [`Capture::next_batch`] found.
pub enum NextBatch {
    /// Packets.
    Packets(PacketBatch),
    /// None came in time.
    NotYet,
    /// There will be no more.
    End,
}

impl Capture {
    /// Opens the files, creates or joins the ring, subscribes, and starts to read.
    ///
    /// # Errors
    /// [`CaptureError`], before anything is left attached; [`SessionError::GivenUp`] before anything was changed.
    pub fn start(request: CaptureRequest, startup: &Startup) -> Result<Self, CaptureError> {
        let (sender, receiver) = sync_channel(BATCHES_MAX);
        let has_batches = request.outputs.iter().any(|output| output.path.is_none());
        let outputs = request.outputs.into_iter();
        let outputs: Vec<_> = outputs.map(|output| output.output(&sender)).collect();
        drop(sender);
        for output in &outputs {
            output.subscription.check()?;
        }
        let section = Section {
            hardware: None,
            os: Some(request.os),
            application: Some(request.application),
            comments: vec![request.environment],
        };
        let count = request.count;
        let method = match (request.backend, request.join, request.ring) {
            (_, Some(name), _) => {
                let source = Source::Join(name);
                Method::Ring(RingCapture::start(
                    source, outputs, count, &section, startup,
                )?)
            }
            (None, None, Some(ring)) => {
                let keeper = request.keeper;
                let source = Source::Create { ring, keeper };
                Method::Ring(RingCapture::start(
                    source, outputs, count, &section, startup,
                )?)
            }
            (Some(kind), None, Some(ring)) => {
                let capture = SocketCapture::start(kind, &ring, outputs, count, &section, startup)?;
                Method::Sockets(capture)
            }
            (_, None, None) => {
                let expected = "name an interface, or a ring to join";
                return Err(CaptureError::option("interface", "(none)", expected));
            }
        };
        let batches = match has_batches {
            true => Batches::Waiting(receiver),
            false => Batches::None,
        };
        Ok(Self {
            batches: Mutex::new(batches),
            method,
        })
    }

    /// Name of the ring; `None` without one.
    pub fn ring(&self) -> Option<&str> {
        match &self.method {
            Method::Ring(capture) => Some(&capture.ring),
            Method::Sockets(_) => None,
        }
    }

    /// Names of the interfaces, by number.
    pub fn interfaces(&self) -> &[String] {
        match &self.method {
            Method::Ring(capture) => &capture.interfaces,
            Method::Sockets(capture) => std::slice::from_ref(&capture.interface),
        }
    }

    /// Waits for packets of the output without a file.
    ///
    /// # Errors
    /// [`CaptureError::Option`] when all outputs are files.
    pub fn next_batch(&self, timeout: Duration) -> Result<NextBatch, CaptureError> {
        let received = match &*self.batches() {
            Batches::None => {
                let expected = "give an output without a path, whose packets come as batches";
                return Err(CaptureError::option("write", "(files alone)", expected));
            }
            Batches::Waiting(receiver) => receiver.recv_timeout(timeout),
            Batches::Over => Err(RecvTimeoutError::Disconnected),
        };
        Ok(match received {
            Ok(batch) => NextBatch::Packets(batch),
            Err(RecvTimeoutError::Timeout) => NextBatch::NotYet,
            Err(RecvTimeoutError::Disconnected) => NextBatch::End,
        })
    }

    fn batches(&self) -> MutexGuard<'_, Batches> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Instrument for Capture {
    type Progress = CaptureProgress;
    type Summary = Summary;
    type Error = CaptureError;

    fn status(&self) -> Status<CaptureProgress> {
        match &self.method {
            Method::Ring(capture) => capture.session.status(),
            Method::Sockets(capture) => capture.session.status(),
        }
    }

    fn request_stop(&self) {
        match &self.method {
            Method::Ring(capture) => capture.session.request_stop(),
            Method::Sockets(capture) => capture.session.request_stop(),
        }
    }

    fn account(&self) -> Result<String, Failure> {
        Ok(match &self.method {
            Method::Ring(capture) => capture.session.account(),
            Method::Sockets(capture) => capture.session.account(),
        }?)
    }

    /// Leaves the ring or closes the sockets, and writes what is left.
    fn stop(&self) -> Result<Summary, CaptureError> {
        // A reader may wait for a batch to be taken: without a receiver it goes on.
        let mut batches = self.batches();
        if matches!(*batches, Batches::Waiting(_)) {
            *batches = Batches::Over;
        }
        drop(batches);
        match &self.method {
            Method::Ring(capture) => Ok(capture.session.stop_one()?),
            Method::Sockets(capture) => capture.stop(),
        }
    }
}
