//! Merges filters and loads the programs for them, in a process of its own. Its memory and time are
//! limited, the keeper answers others meanwhile, and the old programs run until the new ones exist. When the keeper
//! has exchanged them, the process waits until no CPU runs the old ones.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions};
use serde::{Deserialize, Serialize};

use super::CaptureError;
use super::dispatcher::{CompiledFilter, Dispatchers};
use super::generation::{CopyProgram, Generation, Hook};
use super::keeper::channel::Channel;
use super::keeper::privileges;
use super::request::Subscription;
use super::ring_maps::RingMaps;
use crate::grace::Grace;
use crate::session::InstrumentError as _;

/// What the process may take, above what the keeper has when it starts.
const MEMORY_MAX_BYTES: u64 = 1 << 30;
/// How long it may take: less than the timeout of those who ask.
const TIME_MAX: Duration = Duration::from_secs(40);
/// Below the processes that capture, when CPUs are scarce.
const NICE: i32 = 10;

/// A message of the process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    /// The programs of the next hook come beside the message.
    Programs,
    /// The preparation failed.
    Refused { message: String, is_usage: bool },
    /// No CPU runs a program that was replaced before the keeper asked.
    Rested,
}

/// The keeper's request to wait until no CPU runs a program that was replaced.
#[derive(Debug, Serialize, Deserialize)]
struct Rest;

/// Who wants what, by bits.
pub(super) type Subscribers<'ring> = [(usize, &'ring Subscription, &'ring CompiledFilter)];

/// Programs that are being made for a set of subscribers.
pub(super) struct Preparation {
    process: Pid,
    channel: Channel,
    deadline: Instant,
    hooks: usize,
    subscribers: usize,
}

impl Preparation {
    /// Starts to make the programs of all hooks for these subscribers.
    pub fn start(
        hooks: &[&Hook],
        maps: &RingMaps,
        grace: &Grace,
        subscribers: &Subscribers<'_>,
    ) -> Result<Self, CaptureError> {
        let (ours, theirs) = Channel::sockets().map_err(CaptureError::keeper)?;
        let memory_bytes = address_space_bytes().map_err(CaptureError::keeper)? + MEMORY_MAX_BYTES;
        let keeper = rustix::process::getpid();
        // SAFETY: the keeper has no other thread that could hold a lock, and the new process does nothing
        // but what is written here.
        let forked = unsafe { libc::fork() };
        match Pid::from_raw(forked) {
            Some(process) if forked > 0 => Ok(Self {
                process,
                channel: Channel::new(ours),
                deadline: Instant::now() + TIME_MAX,
                hooks: hooks.len(),
                subscribers: subscribers.len(),
            }),
            _ if forked < 0 => Err(CaptureError::keeper(io::Error::last_os_error())),
            _ => {
                drop(ours);
                let done = catch_unwind(AssertUnwindSafe(|| {
                    confine(keeper, memory_bytes)?;
                    let mut channel = Channel::new(theirs);
                    make(&channel, hooks, maps, subscribers)?;
                    rest(&mut channel, grace)
                }));
                // SAFETY: ends this process at once; nothing of the keeper's is to be undone here.
                unsafe { libc::_exit(i32::from(!matches!(done, Ok(Ok(()))))) }
            }
        }
    }

    /// Whether it takes too long.
    pub fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// The programs by hook, once the process has answered or is late.
    ///
    /// # Errors
    /// What the process refused, or that it took too much.
    pub fn programs(&mut self) -> Result<Vec<Generation>, CaptureError> {
        let mut made = Vec::new();
        while made.len() < self.hooks {
            let left = self.deadline.saturating_duration_since(Instant::now());
            match self.channel.receive(left) {
                Ok((Outcome::Programs, programs)) => {
                    let programs = <[OwnedFd; 4]>::try_from(programs)
                        .map_err(|_| CaptureError::keeper("too many open files"))?;
                    made.push(Generation::of(programs));
                }
                Ok((Outcome::Refused { message, is_usage }, _)) => {
                    return Err(CaptureError::Refused { message, is_usage });
                }
                // It has ended, or a signal came.
                Err(error) if error.kind() == io::ErrorKind::TimedOut && !self.is_late() => {}
                Ok((Outcome::Rested, _)) | Err(_) => {
                    return Err(CaptureError::TooMuch {
                        filters: self.subscribers,
                        memory_mib: MEMORY_MAX_BYTES >> 20,
                        seconds: TIME_MAX.as_secs(),
                    });
                }
            }
        }
        Ok(made)
    }

    /// The programs were exchanged: has the process wait until the old ones have ended. It is readable then.
    pub fn begin_rest(&self) {
        // If it has ended, it is readable, too.
        let _ = self.channel.send(&Rest, &[]);
    }

    /// Whether no CPU runs the old programs; false when the process ended before it knew.
    pub fn has_rested(&mut self) -> bool {
        let received = self.channel.receive(Duration::ZERO);
        matches!(received, Ok((Outcome::Rested, _)))
    }
}

impl AsFd for Preparation {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for Preparation {
    fn drop(&mut self) {
        // It may have ended; only this process takes its status, so the number is still its own.
        let _ = rustix::process::kill_process(self.process, Signal::KILL);
        let _ = rustix::process::waitpid(Some(self.process), WaitOptions::empty());
    }
}

/// Bytes of address space that this process has.
fn address_space_bytes() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split(' ').next().and_then(|pages| pages.parse().ok());
    let pages: u64 = pages.ok_or_else(|| io::Error::other("/proc/self/statm: not understood"))?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// Makes this process end with the keeper, and sets its resource limits.
fn confine(keeper: Pid, memory_bytes: u64) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getppid, set_parent_process_death_signal, setrlimit};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() != Some(keeper) {
        return Err(io::Error::other("the keeper has gone"));
    }
    let limit = Rlimit {
        current: Some(memory_bytes),
        maximum: Some(memory_bytes),
    };
    setrlimit(Resource::As, limit)?;
    let _ = rustix::process::nice(NICE);
    privileges::give_up_all_but_programs()
}

fn make(
    channel: &Channel,
    hooks: &[&Hook],
    maps: &RingMaps,
    subscribers: &Subscribers<'_>,
) -> io::Result<()> {
    let made = Dispatchers::merge(subscribers, hooks.iter().map(|hook| &hook.interface)).and_then(
        |dispatchers| {
            let hooks = hooks.iter().enumerate();
            hooks
                .map(|(number, hook)| {
                    CopyProgram::load(hook, number, maps)?.with_filters(hook, maps, &dispatchers)
                })
                .collect::<Result<Vec<Generation>, _>>()
        },
    );
    match made {
        Ok(programs) => programs
            .iter()
            .try_for_each(|one| channel.send(&Outcome::Programs, &one.descriptors())),
        Err(error) => channel.send(
            &Outcome::Refused {
                message: error.to_string(),
                is_usage: error.is_usage(),
            },
            &[],
        ),
    }
}

/// Waits for the keeper's request, and then until no CPU runs a program that was replaced before.
fn rest(channel: &mut Channel, grace: &Grace) -> io::Result<()> {
    let (Rest, _) = channel.receive(TIME_MAX)?;
    grace.wait().map_err(io::Error::other)?;
    channel.send(&Outcome::Rested, &[])
}
