//! The conversation with the keeper of a ring, which the threads of a program share.
//!
//! A thread holds the lock of the connection while it sends a question or takes messages, and never while it waits. It
//! leaves the answers that it takes for the threads that asked. Two threads never ask the same kind of question at a
//! time.

use std::cell::Cell;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use parshall_kernel::capture::CaptureError;
use parshall_kernel::capture::client::{Client, KeeperMessage};
use parshall_kernel::capture::dispatcher::CompiledFilter;
use parshall_kernel::capture::keeper::message::Event;
use parshall_kernel::capture::kept_ring::HookCount;
use parshall_kernel::capture::request::Subscription;
use parshall_kernel::net::interface::Interface;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::lock;

/// Maximum wait for an answer of the keeper.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which a thread checks whether another one has taken its answer.
const ANSWER_CHECK_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// The conversation of one capture.
pub struct Conversation {
    talk: Mutex<Talk>,
    /// Held by a thread that asks for an account.
    account: Mutex<()>,
    /// Held by a thread that changes the filter, or asks for an account.
    change: Mutex<()>,
    /// Number of threads that wait for an answer. While it is above 0, only they take messages.
    askers: AtomicUsize,
    /// Readable when a message waits.
    descriptor: OwnedFd,
    ring: String,
    interface_index: u32,
    /// Number of the last change of the filter that was requested.
    changes: AtomicU64,
    /// Number of the last change that the hooks have.
    merged: AtomicU64,
    /// The interface was removed. The keeper still knows what was counted.
    is_removed: AtomicBool,
    /// Why the conversation ended.
    lost: OnceLock<String>,
}

struct Talk {
    client: Client,
    account: Option<Result<Counts, CaptureError>>,
    change: Option<Result<(), CaptureError>>,
    /// A change waits for its answer.
    is_changing: bool,
}

/// Counts of each subscription, by hook.
type Counts = Vec<Vec<HookCount>>;

/// Why a question has no answer.
pub enum Unanswered {
    /// The conversation has ended.
    Ended(String),
    /// The keeper refused a change; nothing has changed.
    Refused(String),
    /// A signal has interrupted a question of the same thread.
    Interrupted,
}

thread_local! {
    /// Whether the thread asks a question. A signal handler of the program may call `pcap_stats`, as tcpdump's does, and
    /// must not wait for a lock that its own thread has.
    static ASKS: Cell<bool> = const { Cell::new(false) };
}

/// While this value lives, signal handlers of the thread ask nothing.
struct Asking;

impl Asking {
    fn begin() -> Option<Self> {
        // The flag belongs to the first value; a second one would clear it too early.
        match ASKS.replace(true) {
            true => None,
            false => Some(Self),
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        ASKS.set(false);
    }
}

impl Talk {
    fn answer_change(&mut self, answer: Result<(), CaptureError>) {
        self.is_changing = false;
        self.change = Some(answer);
    }
}

impl Conversation {
    /// A conversation over the connection of a client that captures an interface.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new(client: Client, interface: &Interface) -> std::io::Result<Self> {
        Ok(Self {
            descriptor: client.as_fd().try_clone_to_owned()?,
            ring: client.ring.name.clone(),
            talk: Mutex::new(Talk {
                client,
                account: None,
                change: None,
                is_changing: false,
            }),
            account: Mutex::default(),
            change: Mutex::default(),
            askers: AtomicUsize::new(0),
            interface_index: interface.index,
            changes: AtomicU64::new(0),
            merged: AtomicU64::new(0),
            is_removed: AtomicBool::new(false),
            lost: OnceLock::new(),
        })
    }

    /// Asks for the kernel's counts, and passes them to `then`; one thread at a time. Waits while a
    /// filter changes: from the keeper's answer on, the hooks count every packet, and the new
    /// filter may not run here yet.
    ///
    /// # Errors
    /// As of [`Unanswered`]: [`Unanswered::Interrupted`] also when another thread asks and this one
    /// may not wait.
    pub fn account<T>(
        &self,
        may_wait: bool,
        then: impl FnOnce(Counts) -> T,
    ) -> Result<T, Unanswered> {
        let _asking = Asking::begin().ok_or(Unanswered::Interrupted)?;
        let take = |shared| match may_wait {
            true => Some(lock(shared)),
            false => shared.try_lock().ok(),
        };
        let _alone = take(&self.account).ok_or(Unanswered::Interrupted)?;
        let _unchanged = take(&self.change).ok_or(Unanswered::Interrupted)?;
        self.ask(
            |talk| talk.client.request_account(),
            |talk| talk.account.take(),
        )
        .map(then)
    }

    /// Changes the filter. From the keeper's answer on, every packet comes, until the hooks have the new filter, as
    /// [`Conversation::merged`] reports. `then` gets the number of the change, before another thread changes the
    /// filter.
    ///
    /// # Errors
    /// As of [`Unanswered`].
    pub fn replace<T>(
        &self,
        subscription: (Subscription, CompiledFilter),
        then: impl FnOnce(u64) -> T,
    ) -> Result<T, Unanswered> {
        let _asking = Asking::begin().ok_or(Unanswered::Interrupted)?;
        let _alone = lock(&self.change);
        self.ask(
            |talk| {
                talk.is_changing = true;
                self.changes.fetch_add(1, Ordering::SeqCst);
                talk.client.request_replace(vec![subscription])
            },
            |talk| talk.change.take(),
        )?;
        Ok(then(self.changes.load(Ordering::SeqCst)))
    }

    /// Number of the last change of the filter that the hooks have.
    pub fn merged(&self) -> u64 {
        self.merged.load(Ordering::SeqCst)
    }

    /// Sends a question, and waits for the answer.
    fn ask<T>(
        &self,
        send: impl FnOnce(&mut Talk) -> Result<(), CaptureError>,
        answer: impl Fn(&mut Talk) -> Option<Result<T, CaptureError>>,
    ) -> Result<T, Unanswered> {
        self.askers.fetch_add(1, Ordering::SeqCst);
        let sent = send(&mut lock(&self.talk));
        let answered = sent
            .map_err(|error| self.end(error.to_string()))
            .and_then(|()| self.wait_for_answer(answer));
        self.askers.fetch_sub(1, Ordering::SeqCst);
        answered
    }

    fn wait_for_answer<T>(
        &self,
        answer: impl Fn(&mut Talk) -> Option<Result<T, CaptureError>>,
    ) -> Result<T, Unanswered> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut talk = lock(&self.talk);
            self.take(&mut talk);
            if let Some(answer) = answer(&mut talk) {
                return answer.map_err(|error| Unanswered::Refused(error.to_string()));
            }
            drop(talk);
            if let Some(reason) = self.lost.get() {
                return Err(Unanswered::Ended(reason.clone()));
            }
            if Instant::now() > deadline {
                return Err(self.end(format!(
                    "the keeper of ring {} does not answer; end it, and start again",
                    self.ring
                )));
            }
            let _ = poll(
                &mut [PollFd::new(&self.descriptor, PollFlags::IN)],
                Some(&ANSWER_CHECK_INTERVAL),
            );
        }
    }

    /// Takes the messages that wait.
    fn take(&self, talk: &mut Talk) {
        while self.lost.get().is_none() {
            match talk.client.receive(Duration::ZERO) {
                Ok(None) => return,
                Ok(Some(KeeperMessage::Account { counts, .. })) => talk.account = Some(Ok(counts)),
                Ok(Some(KeeperMessage::Replaced)) => talk.answer_change(Ok(())),
                Ok(Some(KeeperMessage::Merged { changes })) => {
                    self.merged.fetch_max(changes, Ordering::SeqCst);
                }
                // While a change waits, the refusal is its answer: an account is refused only when
                // the kernel does not return a map's content.
                Err(error @ CaptureError::Refused { .. }) if talk.is_changing => {
                    talk.answer_change(Err(error));
                }
                Err(error @ CaptureError::Refused { .. }) => talk.account = Some(Err(error)),
                Ok(Some(KeeperMessage::Event(Event::Gone { index, .. })))
                    if index == self.interface_index =>
                {
                    self.is_removed.store(true, Ordering::SeqCst);
                }
                Ok(Some(KeeperMessage::Event(_) | KeeperMessage::Left(_))) => {}
                Err(error) => {
                    self.end(error.to_string());
                }
            }
        }
    }

    fn end(&self, reason: String) -> Unanswered {
        Unanswered::Ended(self.lost.get_or_init(|| reason).clone())
    }

    /// Whether the interface was removed.
    pub fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::SeqCst)
    }

    /// Checks that packets may still come.
    ///
    /// # Errors
    /// Why no packets will come, in libpcap's words if libpcap has this error.
    pub fn check(&self) -> Result<(), String> {
        match self.lost.get() {
            Some(reason) => Err(reason.clone()),
            None if self.is_removed() => Err("The interface disappeared".into()),
            None => Ok(()),
        }
    }

    /// The descriptor that is readable when a message waits; -1 while a thread asks, because that
    /// thread takes the messages.
    pub fn descriptor(&self) -> RawFd {
        match self.askers.load(Ordering::SeqCst) {
            0 => self.descriptor.as_raw_fd(),
            _ => -1,
        }
    }

    /// The descriptor of the connection, also while a thread asks.
    pub fn connection(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// Takes the messages that wait, unless a thread that asks takes them.
    ///
    /// # Errors
    /// Why the capture has ended.
    pub fn take_messages(&self) -> Result<(), String> {
        if self.askers.load(Ordering::SeqCst) == 0
            && let Some(_asking) = Asking::begin()
            && let Ok(mut talk) = self.talk.try_lock()
        {
            self.take(&mut talk);
        }
        self.check()
    }
}
