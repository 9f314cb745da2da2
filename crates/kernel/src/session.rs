//! What all instruments share: threads that measure, a flag that asks them to stop, a status that they post, and a
//! summary at the end.
//!
//! An instrument starts its threads as a [`Session`]; they see it through their [`Control`]. What Python or another
//! program sees of it is an [`Instrument`]. A [`Startup`] lets a caller give up a start that takes long.

use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use serde::{Serialize, Serializer};

/// A measurement that runs.
pub trait Instrument: Send + Sync + 'static {
    /// Numbers while it runs.
    type Progress: Serialize;
    /// The account at its end.
    type Summary: Serialize;
    /// What can go wrong.
    type Error: InstrumentError + Send;

    /// The numbers so far, and whether it has ended.
    fn status(&self) -> Status<Self::Progress>;

    /// Asks it to end; does not wait.
    fn request_stop(&self);

    /// What it knows of itself, as a JSON object: see [`Progress::account`].
    ///
    /// # Errors
    /// It is no JSON, or the thread that knew it died.
    fn account(&self) -> Result<String, Failure> {
        Ok(NO_ACCOUNT.into())
    }

    /// Ends it, and returns the account. The account is returned once.
    ///
    /// # Errors
    /// What kept it from ending in order; [`SessionError::Stopped`] when the account was returned before.
    fn stop(&self) -> Result<Self::Summary, Self::Error>;
}

/// An instrument whatever its types, with JSON objects for status and summary.
pub trait AnyInstrument: Send + Sync {
    /// See [`Instrument::status`].
    ///
    /// # Errors
    /// The status is no JSON.
    fn status(&self) -> Result<String, Failure>;

    /// See [`Instrument::request_stop`].
    fn request_stop(&self);

    /// See [`Instrument::account`].
    fn account(&self) -> Result<String, Failure>;

    /// See [`Instrument::stop`].
    fn stop(&self) -> Result<String, Failure>;
}

/// An error of an instrument, whatever its type.
pub type Failure = Box<dyn InstrumentError + Send>;

impl<T: Instrument> AnyInstrument for T {
    fn status(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string(&Instrument::status(self))?)
    }

    fn request_stop(&self) {
        Instrument::request_stop(self);
    }

    fn account(&self) -> Result<String, Failure> {
        Instrument::account(self)
    }

    fn stop(&self) -> Result<String, Failure> {
        let summary = Instrument::stop(self)?;
        Ok(serde_json::to_string(&summary)?)
    }
}

/// Of an instrument that keeps no account while it runs.
const NO_ACCOUNT: &str = "null";

/// JSON comes with a request.
impl InstrumentError for serde_json::Error {
    fn is_usage(&self) -> bool {
        true
    }
}

impl<E: InstrumentError + Send> From<E> for Failure {
    fn from(error: E) -> Self {
        Box::new(error)
    }
}

/// An error that a user reads in one line.
pub trait InstrumentError: Error + 'static {
    /// Whether the request itself was wrong.
    fn is_usage(&self) -> bool;

    /// Whether the reader of a pipe has closed it, which is no fault.
    fn is_reader_gone(&self) -> bool {
        false
    }
}

/// How far a measurement is.
#[derive(Clone, Debug, Serialize)]
pub struct Status<P> {
    /// Its numbers.
    #[serde(flatten)]
    pub progress: P,
    /// Whether all threads have ended, by request or by themselves.
    pub has_ended: bool,
}

/// Numbers that threads post and others read.
pub trait Progress: Default + Send + 'static {
    /// A copy for a reader. What is reported once, such as notices, is taken out.
    fn read(&mut self) -> Self;

    /// The ledger so far and what was measured, about a second old, as a JSON object for those who watch it; `null` of
    /// what keeps no account while it runs.
    ///
    /// # Errors
    /// It is no JSON.
    fn account(&self) -> serde_json::Result<String> {
        Ok(NO_ACCOUNT.into())
    }
}

/// Why a session did not start, or did not end in order.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document variants and fields")]
pub enum SessionError {
    #[error("thread {name}: {source}; the host has too many threads, end some")]
    Start { name: String, source: io::Error },
    #[error(
        "thread {name} died; its files are whole up to the last flush; set PARSHALL_TRACEBACK=1 and report it"
    )]
    Died { name: String },
    #[error("the session was stopped before, and its summary was returned then")]
    Stopped,
    #[error("the measurement was given up before it began")]
    GivenUp,
}

/// What the threads of a session share with the session.
#[derive(Debug, Default)]
pub struct Control<P> {
    should_stop: AtomicBool,
    progress: Mutex<P>,
}

impl<P> Control<P> {
    /// Whether the threads should end.
    pub fn should_stop(&self) -> bool {
        self.should_stop.load(Ordering::Acquire)
    }

    /// Changes the numbers.
    pub fn update(&self, change: impl FnOnce(&mut P)) {
        change(&mut lock(&self.progress));
    }
}

/// The threads of an instrument, each of which ends with an `R`. Dropped, they are stopped and waited for.
#[derive(Debug)]
pub struct Session<P, R> {
    control: Arc<Control<P>>,
    /// Locked for moments only, so that a reader of the status never waits for the end.
    threads: Mutex<Vec<JoinHandle<R>>>,
    name: &'static str,
}

impl<P: Progress, R: Send + 'static> Session<P, R> {
    /// Starts one thread for each of `works`.
    ///
    /// # Errors
    /// [`SessionError::Start`]; threads that have started are stopped.
    pub fn start<W>(
        name: &'static str,
        control: Arc<Control<P>>,
        works: impl IntoIterator<Item = W>,
    ) -> Result<Self, SessionError>
    where
        W: FnOnce(&Control<P>) -> R + Send + 'static,
    {
        let session = Self {
            control,
            threads: Mutex::default(),
            name,
        };
        for work in works {
            let control = Arc::clone(&session.control);
            let thread = std::thread::Builder::new()
                .name(name.into())
                .spawn(move || work(&control))
                .map_err(|source| SessionError::Start {
                    name: name.into(),
                    source,
                })?;
            lock(&session.threads).push(thread);
        }
        Ok(session)
    }

    /// The numbers so far.
    pub fn status(&self) -> Status<P> {
        // First: a thread posts its last numbers before it ends.
        let has_ended = lock(&self.threads).iter().all(JoinHandle::is_finished);
        Status {
            progress: lock(&self.control.progress).read(),
            has_ended,
        }
    }

    /// See [`Progress::account`].
    pub fn account(&self) -> serde_json::Result<String> {
        lock(&self.control.progress).account()
    }

    /// Ends the threads, and returns what each ended with.
    ///
    /// # Errors
    /// [`SessionError::Died`]; [`SessionError::Stopped`] when this was called before.
    pub fn stop(&self) -> Result<Vec<R>, SessionError> {
        self.request_stop();
        let threads = std::mem::take(&mut *lock(&self.threads));
        if threads.is_empty() {
            return Err(SessionError::Stopped);
        }
        let ended = threads.into_iter().map(JoinHandle::join);
        // All are waited for, also when one died.
        let ended: Vec<_> = ended.collect();
        ended
            .into_iter()
            .collect::<Result<_, _>>()
            .map_err(|_| SessionError::Died {
                name: self.name.into(),
            })
    }

    /// As [`Session::stop`], for a session of one thread.
    pub fn stop_one(&self) -> Result<R, SessionError> {
        self.stop()?.pop().ok_or(SessionError::Stopped)
    }
}

/// A session of one thread that ends with its account is an instrument.
impl<P, S, E> Instrument for Session<P, Result<S, E>>
where
    P: Progress + Serialize,
    S: Serialize + Send + 'static,
    E: InstrumentError + From<SessionError> + Send,
{
    type Progress = P;
    type Summary = S;
    type Error = E;

    fn status(&self) -> Status<P> {
        self.status()
    }

    fn request_stop(&self) {
        self.request_stop();
    }

    fn account(&self) -> Result<String, Failure> {
        Ok(self.account()?)
    }

    fn stop(&self) -> Result<S, E> {
        self.stop_one()?
    }
}

impl<P, R> Session<P, R> {
    /// Asks the threads to end.
    pub fn request_stop(&self) {
        self.control.should_stop.store(true, Ordering::Release);
    }
}

impl<P, R> Drop for Session<P, R> {
    fn drop(&mut self) {
        self.request_stop();
        for thread in lock(&self.threads).drain(..) {
            // The caller dropped the session without asking for the account; files are completed nevertheless.
            let _ = thread.join();
        }
    }
}

/// How far a start is. Until its files are open it has replaced nothing and can be given up.
/// Preparing may take long, and so may opening a FIFO that has no reader.
#[derive(Debug, Default)]
pub struct Startup(AtomicU8);

const PREPARES: u8 = 0;
const OPENS: u8 = 1;
const HAS_BEGUN: u8 = 2;
const GIVEN_UP: u8 = 3;

impl Startup {
    /// Whether the files are open, so that the rest of the start is short and is waited for.
    pub fn has_begun(&self) -> bool {
        self.0.load(Ordering::Acquire) == HAS_BEGUN
    }

    /// Gives up a start that has not begun. Returns whether there is nothing to wait for; when there is, temporary
    /// files are removed first, at once.
    pub fn give_up(&self) -> bool {
        let prepares = self.advance(PREPARES, GIVEN_UP).is_ok();
        if !prepares {
            let _ = self.advance(OPENS, GIVEN_UP);
        }
        prepares
    }

    /// Opens all files with `open`, which is given a function that says whether to give up.
    ///
    /// # Errors
    /// Those of `open`; [`SessionError::GivenUp`] before anything was changed.
    pub fn open<T, E: From<SessionError>>(
        &self,
        open: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T, E>,
    ) -> Result<T, E> {
        self.advance(PREPARES, OPENS)?;
        let opened = open(&mut || self.0.load(Ordering::Acquire) == GIVEN_UP)?;
        self.advance(OPENS, HAS_BEGUN)?;
        Ok(opened)
    }

    fn advance(&self, from: u8, to: u8) -> Result<(), SessionError> {
        let state = &self.0;
        match state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(_) => Err(SessionError::GivenUp),
        }
    }
}

/// Serializes what can be displayed, or null: for the failure in a summary.
pub fn as_text<T: ToString, S: Serializer>(
    failure: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    failure
        .as_ref()
        .map(ToString::to_string)
        .serialize(serializer)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is under these locks is whole at all times: a thread that died with one left nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Progress for u64 {
        fn read(&mut self) -> Self {
            *self
        }
    }

    fn wait_for_stop(control: &Control<u64>) -> u64 {
        control.update(|steps| *steps += 1);
        while !control.should_stop() {
            std::thread::yield_now();
        }
        7
    }

    fn wait_until(mut is_true: impl FnMut() -> bool) {
        while !is_true() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_session_returns_what_each_thread_ended_with_once() {
        let session = Session::start("test", Arc::default(), [wait_for_stop; 3]).unwrap();
        wait_until(|| session.status().progress == 3);
        assert!(!session.status().has_ended);
        assert_eq!(session.stop().unwrap(), [7, 7, 7]);
        assert!(session.status().has_ended);
        assert!(matches!(session.stop(), Err(SessionError::Stopped)));
    }

    #[test]
    fn a_dropped_session_stops_its_threads_and_waits_for_them() {
        let control = Arc::new(Control::default());
        drop(Session::start("test", Arc::clone(&control), [wait_for_stop]).unwrap());
        assert!(control.should_stop());
        assert_eq!(Arc::strong_count(&control), 1);
    }

    #[test]
    fn a_thread_that_panics_is_reported_after_all_have_ended() {
        let work = |control: &Control<u64>| -> u64 {
            control.update(|steps| *steps += 1);
            wait_until(|| control.should_stop());
            panic!("on purpose");
        };
        let session = Session::start("test", Arc::default(), [work]).unwrap();
        assert!(matches!(session.stop_one(), Err(SessionError::Died { .. })));
    }

    #[test]
    fn a_start_that_prepares_is_cancelled_at_once() {
        let startup = Startup::default();
        assert!(startup.give_up());
        let opened: Result<(), SessionError> = startup.open(|_| panic!("given up before"));
        assert!(opened.is_err());
        assert!(!startup.has_begun());
    }

    #[test]
    fn a_start_that_opens_files_can_be_cancelled() {
        let startup = Startup::default();
        let opened: Result<(), SessionError> = startup.open(|is_given_up| {
            assert!(!is_given_up());
            assert!(!startup.give_up());
            assert!(is_given_up());
            Ok(())
        });
        assert!(opened.is_err());
    }

    #[test]
    fn a_start_with_open_files_is_not_cancelled() {
        let startup = Startup::default();
        let opened: Result<u8, SessionError> = startup.open(|_| Ok(1));
        assert_eq!(opened.unwrap(), 1);
        assert!(!startup.give_up());
        assert!(startup.has_begun());
    }
}
