//! The relay as its user sees it: start, statistics, stop.

use super::channel::{Channel, GENERATOR};
use super::direction::Direction;
use super::error::RelayError;
use super::ledger::Statistics;
use super::placement::Placement;
use super::shape::Shape;
use super::worker::{Worker, clear};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// What a relay is told at its start.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// The two interfaces.
    pub interfaces: [String; 2],
    /// What happens from the first to the second interface, and back.
    pub shapes: [Shape; 2],
    /// Seed of losses and jitter.
    pub seed: u64,
    /// Where the thread runs.
    pub placement: Placement,
    /// Longest frame, from the Ethernet header on: MTU plus 14, plus 4 with VLAN tags.
    pub frame_bytes: usize,
    /// Memory for the frames inside one direction.
    pub memory_bytes: usize,
    /// Buffer of a socket, as the kernel counts it (about 2.3 KiB for a frame of 1500 bytes).
    pub receive_buffer_bytes: usize,
}

impl RelayOptions {
    /// A relay between two interfaces that delays and loses nothing, for an MTU of 1500.
    pub fn new(interface_a: &str, interface_b: &str) -> Self {
        Self {
            interfaces: [interface_a.to_string(), interface_b.to_string()],
            shapes: [Shape::default(), Shape::default()],
            seed: 1,
            placement: Placement::default(),
            frame_bytes: 1518,
            memory_bytes: 64 << 20,
            receive_buffer_bytes: 32 << 20,
        }
    }
}

enum Request {
    Statistics,
    Stop,
}

/// A running relay. Dropping it stops it.
pub struct Relay {
    wake: Arc<OwnedFd>,
    requests: Sender<Request>,
    answers: Receiver<Statistics>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts the thread and returns when it takes frames.
    pub fn start(options: RelayOptions) -> Result<Self, RelayError> {
        let unavailable = |what| move |source| RelayError::Resource { what, source };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake =
            eventfd(0, flags).map_err(|errno| unavailable("an event descriptor")(errno.into()))?;
        let wake = Arc::new(wake);
        let (requests, inbox) = channel();
        let (outbox, answers) = channel();
        let (ready, started) = channel();
        let thread_wake = Arc::clone(&wake);
        let thread = std::thread::Builder::new()
            .name("parshall-relay".into())
            .spawn(move || match prepare(options) {
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
                Ok(mut worker) => {
                    let _ = ready.send(Ok(()));
                    serve(&mut worker, &thread_wake, &inbox, &outbox);
                }
            })
            .map_err(unavailable("a thread"))?;
        let outcome = started.recv().unwrap_or_else(|_| {
            Err(RelayError::Ended {
                reason: "it panicked at its start".into(),
            })
        });
        let relay = Self {
            wake,
            requests,
            answers,
            thread: Some(thread),
        };
        outcome.map(|()| relay)
    }

    /// The account at this moment, of a relay that goes on.
    pub fn statistics(&self) -> Result<Statistics, RelayError> {
        self.ask(Request::Statistics)
    }

    /// Ends the relay and gives the final account; frames inside are not forwarded.
    pub fn stop(mut self) -> Result<Statistics, RelayError> {
        let statistics = self.ask(Request::Stop);
        self.join();
        statistics
    }

    fn ask(&self, request: Request) -> Result<Statistics, RelayError> {
        let ended = |_| RelayError::Ended {
            reason: "it no longer answers".into(),
        };
        self.requests
            .send(request)
            .map_err(|error| ended(error.to_string()))?;
        // A full counter is a wake-up too, so the result does not matter.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        self.answers
            .recv()
            .map_err(|error| ended(error.to_string()))
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already shown itself as a missing answer.
            let _ = thread.join();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.ask(Request::Stop);
            self.join();
        }
    }
}

/// Everything that can fail, in the new thread: the namespace is the thread's own.
fn prepare(options: RelayOptions) -> Result<Worker, RelayError> {
    let scheduling = options.placement.apply()?;
    let [shape_a, shape_b] = options.shapes;
    let direction = |shape, number| {
        Channel::new(shape, options.seed, number)
            .map(|channel| Direction::new(channel, options.memory_bytes))
    };
    let directions = [direction(shape_a, 0)?, direction(shape_b, 1)?];
    let template = Statistics {
        scheduling,
        cpu: options.placement.cpu,
        seed: options.seed,
        generator: GENERATOR.into(),
        ..Statistics::default()
    };
    Worker::new(
        options.interfaces,
        directions,
        options.frame_bytes,
        options.receive_buffer_bytes,
        template,
    )
}

fn serve(
    worker: &mut Worker,
    wake: &OwnedFd,
    inbox: &Receiver<Request>,
    outbox: &Sender<Statistics>,
) {
    worker.run(wake, |worker| {
        // Cleared before the requests are read: one that comes in between wakes again.
        let _ = clear(wake);
        while let Ok(request) = inbox.try_recv() {
            let (statistics, goes_on) = match request {
                Request::Statistics => (worker.statistics(), true),
                Request::Stop => (worker.finish(), false),
            };
            if outbox.send(statistics).is_err() || !goes_on {
                return false;
            }
        }
        true
    });
}
