//! The relay as its user sees it: request, start, status, end.

use super::channel::{Channel, GENERATOR, Purpose, seed_of};
use super::direction::Direction;
use super::error::RelayError;
use super::ledger::Statistics;
use super::placement::Placement;
use super::shape::Shape;
use super::worker::Worker;
use crate::session::{Control, Instrument, Progress, Session, SessionError, Startup, Status};
use rustix::event::{EventfdFlags, eventfd};
use serde::Deserialize;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

const THREAD: &str = "parshall-relay";

/// Ethernet header and one VLAN tag.
const FRAME_OVERHEAD_BYTES: usize = 18;

/// Buffer of a socket, as the kernel counts it (about 2.3 KiB for a frame of 1500 bytes).
const RECEIVE_BUFFER_BYTES: usize = 32 << 20;

/// The request for a relay.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayRequest {
    /// The two interfaces.
    pub interfaces: [String; 2],
    /// What happens from the first to the second interface, and back.
    pub shapes: [Shape; 2],
    /// Seed of losses and jitter.
    pub seed: u64,
    /// Where the thread runs.
    pub placement: Placement,
    /// Longest frame without its Ethernet header.
    pub mtu_bytes: usize,
    /// Memory for the frames inside one direction.
    pub memory_bytes: usize,
}

/// A running relay. Dropping it stops it.
pub struct Relay {
    session: Session<Final, ()>,
    /// Wakes the thread for a request.
    wake: Arc<OwnedFd>,
    statistics: Mutex<Conversation>,
}

/// The account of a relay that has ended.
#[derive(Clone, Debug, Default)]
struct Final(Statistics);

impl Progress for Final {
    fn read(&mut self) -> Self {
        self.clone()
    }
}

/// A request for the account of this moment, and its answer.
struct Conversation {
    requests: Sender<()>,
    answers: Receiver<Statistics>,
}

impl Relay {
    /// Starts the thread and returns when it takes frames.
    ///
    /// # Errors
    /// [`RelayError`] when a parameter is outside its range or the kernel refuses.
    pub fn start(mut request: RelayRequest, startup: &Startup) -> Result<Self, RelayError> {
        startup.open(|_| Ok::<_, RelayError>(()))?;
        for shape in &mut request.shapes {
            *shape = std::mem::take(shape).checked()?;
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(|errno| RelayError::Resource {
            what: "an event descriptor",
            source: errno.into(),
        })?;
        let wake = Arc::new(wake);
        let (requests, inbox) = channel();
        let (outbox, answers) = channel();
        let (ready, started) = channel();
        let thread_wake = Arc::clone(&wake);
        let work = move |control: &Control<Final>| match prepare(request) {
            Err(error) => {
                let _ = ready.send(Err(error));
            }
            Ok(mut worker) => {
                let _ = ready.send(Ok(()));
                serve(&mut worker, control, &thread_wake, &inbox, &outbox);
            }
        };
        let relay = Self {
            session: Session::start(THREAD, Arc::default(), [work])?,
            wake,
            statistics: Mutex::new(Conversation { requests, answers }),
        };
        let died = |_| SessionError::Died {
            name: THREAD.into(),
        };
        started.recv().map_err(died)??;
        Ok(relay)
    }

    fn wake(&self) {
        // A full counter is a wake-up too, so the result does not matter.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    /// The account at this moment; `None` when the thread has ended.
    fn statistics_now(&self) -> Option<Statistics> {
        // A thread that died with the lock left no request half done.
        let statistics = self
            .statistics
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        statistics.requests.send(()).ok()?;
        self.wake();
        statistics.answers.recv().ok()
    }
}

impl Instrument for Relay {
    type Progress = Statistics;
    type Summary = Statistics;
    type Error = RelayError;

    fn status(&self) -> Status<Statistics> {
        let now = self.statistics_now();
        Status {
            has_ended: now.is_none(),
            progress: now.unwrap_or_else(|| self.session.status().progress.0),
        }
    }

    fn request_stop(&self) {
        self.session.request_stop();
        self.wake();
    }

    /// Ends the relay; frames inside are not forwarded.
    fn stop(&self) -> Result<Statistics, RelayError> {
        self.request_stop();
        self.session.stop_one()?;
        Ok(self.session.status().progress.0)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // The session waits for the thread, which may sleep.
        self.request_stop();
    }
}

/// Everything that can fail, in the new thread: the namespace is the thread's own.
fn prepare(request: RelayRequest) -> Result<Worker, RelayError> {
    let scheduling = request.placement.apply()?;
    let [shape_a, shape_b] = request.shapes;
    let direction = |shape, number| {
        Channel::new(shape, request.seed, number).map(|channel| {
            let queue_seed = seed_of(request.seed, number, Purpose::Queue);
            Direction::new(channel, request.memory_bytes, queue_seed)
        })
    };
    let directions = [direction(shape_a, 0)?, direction(shape_b, 1)?];
    let template = Statistics {
        scheduling,
        cpu: request.placement.cpu,
        seed: request.seed,
        generator: GENERATOR.into(),
        ..Statistics::default()
    };
    Worker::new(
        request.interfaces,
        directions,
        request.mtu_bytes + FRAME_OVERHEAD_BYTES,
        RECEIVE_BUFFER_BYTES,
        template,
    )
}

fn serve(
    worker: &mut Worker,
    control: &Control<Final>,
    wake: &OwnedFd,
    inbox: &Receiver<()>,
    outbox: &Sender<Statistics>,
) {
    worker.run(wake, |worker| {
        // Cleared before the requests are read: one that comes in between wakes again.
        let _ = rustix::io::read(wake, &mut [0; 8]);
        while inbox.try_recv().is_ok() {
            if outbox.send(worker.statistics()).is_err() {
                return false;
            }
        }
        !control.should_stop()
    });
    let last = worker.finish();
    control.update(|shown| shown.0 = last);
}
