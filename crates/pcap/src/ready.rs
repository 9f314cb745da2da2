//! A descriptor that is readable when packets wait. A ring in memory cannot wake a poller, so a thread polls it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parshall_core::abi::{CaptureRecord, DIRECTION_OUT};
use parshall_kernel::capture::bell::Bell;
use parshall_kernel::capture::collector::Collector;
use parshall_kernel::capture::kept_ring::Start;
use parshall_kernel::clock::monotonic_ns;
use parshall_kernel::net::mapping::Mapping;
use parshall_kernel::ring::HOLD_BACK_NS;
use parshall_kernel::ring::memory::Lane;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::injected::Injected;
use crate::live::{NAP, NAP_MAX};

/// What the thread polls.
#[derive(Clone)]
pub struct Watched {
    pub lanes: Vec<Lane>,
    pub starts: Vec<Start>,
    /// Bits of the subscriptions.
    pub mask: u64,
    pub interface_number: u8,
    /// The connection to the keeper: when it ends, no more packets come.
    pub keeper: std::os::fd::RawFd,
    /// Frames that the capture itself sent.
    pub injected: Arc<Injected>,
    /// Wakes the thread in immediate mode.
    pub bell: Option<Arc<Bell>>,
}

/// The descriptor, and the thread behind it.
pub struct Ready {
    signal: Arc<Signal>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Signal {
    event: OwnedFd,
    /// One word: the capture has returned all packets up to this time, nanoseconds of `CLOCK_MONOTONIC`, which the
    /// thread may see later than the capture. After a fork, parent and child share the word, as they share the
    /// descriptor.
    read_until: Mapping,
}

impl Ready {
    /// A descriptor for packets from these positions on.
    ///
    /// # Errors
    /// When there is no descriptor or no thread.
    pub fn start(watched: &Watched) -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mut ready = Self {
            signal: Arc::new(Signal {
                event,
                read_until: Mapping::common_after_fork(size_of::<u64>())?,
            }),
            is_over: Arc::default(),
            thread: None,
        };
        ready.watch(watched)?;
        Ok(ready)
    }

    fn watch(&mut self, watched: &Watched) -> std::io::Result<()> {
        let (signal, is_over) = (Arc::clone(&self.signal), Arc::clone(&self.is_over));
        let watched = watched.clone();
        let thread = std::thread::Builder::new().name("parshall-pcap".into());
        self.thread = Some(thread.spawn(move || poll_ring(&watched, &signal, &is_over))?);
        Ok(())
    }

    /// Starts the thread anew in the child of a fork, which has none.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn watch_in_child(&mut self, watched: &Watched) -> std::io::Result<()> {
        std::mem::forget(self.thread.take());
        self.watch(watched)
    }

    /// Makes the descriptor readable.
    pub fn set(&self) {
        self.signal.set(true);
    }

    /// Makes the descriptor not readable: all packets up to this time have been returned.
    pub fn clear(&self, read_until_ns: u64) {
        let word = self.signal.read_until.word(0);
        word.store(read_until_ns, Ordering::SeqCst);
        self.signal.set(false);
    }

    fn end(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl AsFd for Ready {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.event.as_fd()
    }
}

impl AsRawFd for Ready {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.signal.event.as_raw_fd()
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        self.end();
    }
}

impl Signal {
    fn set(&self, is_ready: bool) {
        let mut count = 1u64.to_ne_bytes();
        // Neither call blocks, and neither harms when it is repeated.
        let _ = match is_ready {
            true => rustix::io::write(&self.event, &count),
            false => rustix::io::read(&self.event, &mut count),
        };
    }

    fn is_read(&self, time_ns: u64) -> bool {
        time_ns <= self.read_until.word(0).load(Ordering::SeqCst)
    }
}

fn poll_ring(watched: &Watched, signal: &Signal, is_over: &AtomicBool) {
    let mut collector = Collector::new(&watched.lanes, &watched.starts, None, watched.mask, 0);
    // SAFETY: the capture ends this thread before it closes the connection.
    let keeper = unsafe { BorrowedFd::borrow_raw(watched.keeper) };
    let mut before_ns = 0;
    while !is_over.load(Ordering::Relaxed) {
        let hold_back_ns = match &watched.bell {
            Some(bell) => {
                bell.rearm();
                0
            }
            None => HOLD_BACK_NS,
        };
        let horizon_ns = monotonic_ns().saturating_sub(hold_back_ns);
        let mut newest_ns = 0;
        let note = |record: &CaptureRecord, bytes: &[u8]| {
            let wire_bytes = record.wire_length_bytes as usize;
            let is_own = || {
                let injected = &watched.injected;
                record.direction == DIRECTION_OUT
                    && injected.contains(record.time_ns, wire_bytes, bytes)
            };
            if record.interface == watched.interface_number && !is_own() {
                // An interrupted hook wrote this record late: the capture may have missed it, too.
                let is_late = record.time_ns <= before_ns;
                newest_ns = newest_ns.max(if is_late { u64::MAX } else { record.time_ns });
            }
        };
        let taken = collector.collect(horizon_ns, note);
        before_ns = horizon_ns;
        if newest_ns > 0 && !signal.is_read(newest_ns) {
            signal.set(true);
            // The capture may have read the packet in between.
            if signal.is_read(newest_ns) {
                signal.set(false);
            }
        }
        let nap = if taken == 0 { NAP_MAX } else { NAP };
        if has_ended(keeper, watched.bell.as_deref(), nap) {
            signal.set(true);
            return;
        }
    }
}

/// Waits for the bell, and returns whether the connection has ended.
fn has_ended(keeper: BorrowedFd<'_>, bell: Option<&Bell>, nap: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(nap.subsec_nanos()),
    };
    let mut waiting = vec![PollFd::from_borrowed_fd(keeper, PollFlags::empty())];
    waiting.extend(bell.map(|bell| PollFd::new(bell, PollFlags::IN)));
    matches!(poll(&mut waiting, Some(&timeout)), Ok(1..)) && !waiting[0].revents().is_empty()
}
