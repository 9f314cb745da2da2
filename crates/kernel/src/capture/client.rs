//! A subscriber's end: creates or joins a ring, maps it, and talks to its keeper.

use std::collections::VecDeque;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::CaptureError;
use super::bell::Bell;
use super::dispatcher::CompiledFilter;
use super::generation::RunTime;
use super::keeper::channel::Channel;
use super::keeper::directory;
pub use super::keeper::message::Left;
use super::keeper::message::{
    Answer, Event, ListedRing, PROTOCOL_VERSION, Request, RingDescription,
};
use super::kept_ring::{HookCount, Start};
use super::request::{RingRequest, Subscription};
use super::ring_check;
use crate::capability::Privileges;
use crate::net::interface::{Interface, namespace_number};
use crate::os_text::OsText;
use crate::ring::memory::Lane;
use crate::ring::registry::LaneReaders;

/// A keeper compiles and loads programs in milliseconds; only an overloaded machine takes this long.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a keeper needs to load and attach its programs.
const KEEPER_PRIVILEGES: [&str; 3] = ["CAP_NET_ADMIN", "CAP_PERFMON", "CAP_BPF"];

/// A keeper lists its subscribers between two other requests, and never waits.
const PATIENCE_FOR_A_LIST: Duration = Duration::from_secs(5);

/// The creator of a ring does not wait long for the keepers of other rings.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_millis(200);

/// A message of the keeper to a reader.
#[derive(Clone, Debug)]
pub enum KeeperMessage {
    /// Something happened.
    Event(Event),
    /// What was counted so far.
    Account {
        /// For each subscription, by hook.
        counts: Vec<Vec<HookCount>>,
        /// By hook.
        run_times: Vec<RunTime>,
    },
    /// The subscriptions have ended.
    Left(Left),
    /// Every packet that the hooks see from now on is there; the subscriber filters.
    Replaced,
    /// The hooks filter by what was asked in the requests to replace up to this one.
    Merged {
        /// Number of the request, from 1.
        changes: u64,
    },
}

/// What a subscriber that filters itself reads.
pub struct AtOnce {
    /// The bit of its packets.
    pub bit: usize,
    /// From where in each lane to read.
    pub starts: Vec<Start>,
    /// What wakes it at each packet.
    pub bell: Option<Bell>,
}

/// A connection to the keeper of a ring, and the ring in memory.
pub struct Client {
    channel: Channel,
    /// The ring, as the keeper describes it.
    pub ring: RingDescription,
    /// The lanes, which can only be read.
    pub lanes: Vec<Lane>,
    /// Under slow-reader preference: where to report how far one has read.
    pub register: Option<(Vec<LaneReaders>, usize)>,
    message: VecDeque<KeeperMessage>,
    waits_for_account: bool,
}

impl Client {
    /// Starts a keeper and lets it create a ring. `keeper` is the program that calls
    /// [`super::keeper::keep`] with its standard input.
    ///
    /// # Errors
    /// What the keeper refused, or [`CaptureError::Keeper`].
    pub fn create(keeper: &[OsText], ring: &RingRequest) -> Result<Self, CaptureError> {
        ring.check()?;
        let (program, arguments) = keeper
            .split_first()
            .ok_or_else(|| CaptureError::keeper("no program was named"))?;
        let (ours, theirs) = Channel::sockets().map_err(CaptureError::keeper)?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A group of its own: Ctrl-C in the terminal is meant for us.
            .process_group(0)
            .spawn()
            .map_err(|error| {
                CaptureError::keeper(format!(
                    "{} cannot be started: {error}",
                    program.as_ref().display()
                ))
            })?;
        // It may outlive us, and then has another parent. While we live, a thread must take its status.
        std::thread::Builder::new()
            .name("parshall-keeper".into())
            .spawn(move || child.wait())
            .map_err(CaptureError::keeper)?;
        let channel = Channel::new(ours);
        let first = Request::Create {
            ring: ring.clone(),
            version: PROTOCOL_VERSION,
        };
        Self::enter(channel, &first, "").map_err(|error| match error {
            CaptureError::KeeperGone { .. } => {
                let missing = Privileges::of_this_process().missing(&KEEPER_PRIVILEGES);
                CaptureError::keeper(match missing.as_slice() {
                    [] => "the keeper of the ring ended before the ring was there; `parshall doctor` shows what this \
                           host offers"
                        .into(),
                    missing => format!(
                        "who makes a ring needs {}: run it as root, or join a ring that another keeps",
                        missing.join(", ")
                    ),
                })
            }
            error => error,
        })
    }

    /// Joins a ring that runs.
    ///
    /// # Errors
    /// [`CaptureError::Name`] when there is none or it may not be read, and what its keeper refused.
    pub fn join(name: &str) -> Result<Self, CaptureError> {
        let channel = Channel::new(directory::connect_to(name)?);
        let first = Request::Join {
            version: PROTOCOL_VERSION,
        };
        Self::enter(channel, &first, name)
    }

    fn enter(mut channel: Channel, first: &Request, name: &str) -> Result<Self, CaptureError> {
        let (answer, descriptors) = request_first(&mut channel, first, PATIENCE)
            .map_err(|error| connection_error(name, &error))?;
        let ring = match answer {
            Answer::Ring(ring) => ring,
            answer => return Err(unexpected(answer)),
        };
        let mut descriptors = descriptors.into_iter();
        let memory = descriptors
            .next()
            .ok_or_else(|| CaptureError::keeper("it sent no ring"))?;
        ring_check::check(&ring, &memory)?;
        let lanes = Lane::of_map(&memory, ring.lanes, ring.layout, false)?;
        let register = match (ring.reader_slot, descriptors.next()) {
            (Some(slot), Some(memory)) => {
                ring_check::check_register(&ring, &memory)?;
                Some((LaneReaders::of_map(&memory, ring.lanes)?, slot))
            }
            _ => None,
        };
        Ok(Self {
            channel,
            ring,
            lanes,
            register,
            message: VecDeque::new(),
            waits_for_account: false,
        })
    }

    /// Takes in subscribers, each with its filter as programs for all interfaces of the ring. Returns
    /// their bits, and from where in each lane to read.
    ///
    /// # Errors
    /// What the keeper refused: a ring that is full, filters that the kernel does not take.
    pub fn subscribe(
        &mut self,
        subscriptions: Vec<(Subscription, CompiledFilter)>,
    ) -> Result<(Vec<usize>, Vec<Start>), CaptureError> {
        let asked = subscriptions.len();
        match self.request(&Request::Subscribe { subscriptions })? {
            (Answer::Subscribed { bits, starts }, _) => {
                ring_check::check_bits(&self.ring, &bits, asked)?;
                Ok((bits, starts))
            }
            (answer, _) => Err(unexpected(answer)),
        }
    }

    /// The same for one subscriber, without waiting for the programs: every packet is there at once, and the subscriber
    /// filters. One that is immediate also gets what wakes it at each packet, where the kernel has that.
    ///
    /// # Errors
    /// What the keeper refused: a ring that is full.
    pub fn subscribe_at_once(
        &mut self,
        subscription: (Subscription, CompiledFilter),
        is_immediate: bool,
    ) -> Result<AtOnce, CaptureError> {
        let request = Request::SubscribeAtOnce {
            subscriptions: vec![subscription],
            is_immediate,
        };
        match self.request(&request)? {
            (Answer::Subscribed { bits, starts }, mut descriptors) => {
                ring_check::check_bits(&self.ring, &bits, 1)?;
                let bell = descriptors.pop().map(Bell::new).transpose();
                let bit = bits.first().copied();
                Ok(AtOnce {
                    bit: bit.ok_or_else(|| CaptureError::keeper("it gave no place"))?,
                    starts,
                    bell: bell.map_err(CaptureError::keeper)?,
                })
            }
            (answer, _) => Err(unexpected(answer)),
        }
    }

    /// Asks what was counted so far; [`Client::receive`] has the answer when it comes. It does not wait: a
    /// keeper may be busy with a join, and the ring must be read meanwhile.
    pub fn request_account(&mut self) -> Result<(), CaptureError> {
        if !self.waits_for_account {
            self.channel
                .send(&Request::Account, &[])
                .map_err(|error| connection_error(&self.ring.name, &error))?;
            self.waits_for_account = true;
        }
        Ok(())
    }

    /// Asks to change the filters of all subscriptions, in their order. [`Client::receive`] has the answer when it comes:
    /// [`KeeperMessage::Replaced`], or [`CaptureError::Refused`]; later [`KeeperMessage::Merged`], unless the filters cannot
    /// be merged.
    pub fn request_replace(
        &mut self,
        subscriptions: Vec<(Subscription, CompiledFilter)>,
    ) -> Result<(), CaptureError> {
        self.channel
            .send(&Request::Replace { subscriptions }, &[])
            .map_err(|error| connection_error(&self.ring.name, &error))
    }

    /// Asks to end the subscriptions; [`Client::receive`] has the account when it comes.
    pub fn request_leave(&mut self) -> Result<(), CaptureError> {
        self.channel
            .send(&Request::Leave, &[])
            .map_err(|error| connection_error(&self.ring.name, &error))
    }

    /// The keeper's next message; waits at most this long.
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<KeeperMessage>, CaptureError> {
        if let Some(message) = self.message.pop_front() {
            return Ok(Some(message));
        }
        match self.channel.receive(timeout) {
            Ok((answer, _)) => self.message_of(answer).map(Some),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
            Err(error) => Err(connection_error(&self.ring.name, &error)),
        }
    }

    /// What an answer means that [`Client::subscribe`] does not wait for.
    fn message_of(&mut self, answer: Answer) -> Result<KeeperMessage, CaptureError> {
        match answer {
            Answer::Event(event) => Ok(KeeperMessage::Event(event)),
            Answer::Account { counts, run_times } if self.waits_for_account => {
                self.waits_for_account = false;
                Ok(KeeperMessage::Account { counts, run_times })
            }
            Answer::Left(left) => Ok(KeeperMessage::Left(left)),
            Answer::Replaced => Ok(KeeperMessage::Replaced),
            Answer::Merged { changes } => Ok(KeeperMessage::Merged { changes }),
            answer => Err(unexpected(answer)),
        }
    }

    fn request(&mut self, request: &Request) -> Result<(Answer, Vec<OwnedFd>), CaptureError> {
        let name = self.ring.name.clone();
        self.channel
            .send(request, &[])
            .map_err(|error| connection_error(&name, &error))?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.channel.receive_until(deadline) {
                Ok((
                    answer @ (Answer::Event(_) | Answer::Account { .. } | Answer::Merged { .. }),
                    _,
                )) => {
                    let message = self.message_of(answer)?;
                    self.message.push_back(message);
                }
                Ok(answered) => return Ok(answered),
                Err(error) => return Err(connection_error(&name, &error)),
            }
        }
    }
}

impl AsFd for Client {
    /// Readable when the keeper has sent something or has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// What a keeper reports of its ring.
pub fn list(name: &str) -> Result<ListedRing, CaptureError> {
    list_within(name, PATIENCE_FOR_A_LIST)
}

/// The rings at these interfaces of the calling thread's network namespace, each with the name of the first of
/// them that it has. Rings whose keepers do not answer at once are left out.
pub fn rings_at(interfaces: &[Interface]) -> Vec<(String, String)> {
    let namespace = namespace_number();
    let listed = directory::names().into_iter();
    listed
        .filter_map(|name| list_within(&name, PATIENCE_WITH_OTHERS).ok())
        .filter(|ring| ring.namespace == namespace)
        .filter_map(|ring| {
            let interface = interfaces
                .iter()
                .find(|one| ring.indices.contains(&one.index))?;
            Some((ring.name, interface.name.clone()))
        })
        .collect()
}

fn list_within(name: &str, patience: Duration) -> Result<ListedRing, CaptureError> {
    let mut channel = Channel::new(directory::connect_to(name)?);
    match request_first(&mut channel, &Request::List, patience) {
        Ok((Answer::Listed(ring), _)) => Ok(ring),
        Ok((answer, _)) => Err(unexpected(answer)),
        Err(error) => Err(connection_error(name, &error)),
    }
}

/// The answer to the first request of a connection. A keeper without room refuses and closes before
/// it has read the request.
fn request_first(
    channel: &mut Channel,
    request: &Request,
    patience: Duration,
) -> io::Result<(Answer, Vec<OwnedFd>)> {
    let sent = channel.send(request, &[]);
    channel
        .receive_until(Instant::now() + patience)
        .map_err(|error| sent.err().unwrap_or(error))
}

fn connection_error(ring: &str, error: &io::Error) -> CaptureError {
    match error.kind() {
        io::ErrorKind::TimedOut => CaptureError::keeper(format!(
            "ring {ring} does not answer; end it, and create the ring again"
        )),
        io::ErrorKind::InvalidData => CaptureError::keeper(format!(
            "ring {ring} sent an unknown message; use the Parshall that created the ring"
        )),
        _ => CaptureError::KeeperGone { ring: ring.into() },
    }
}

fn unexpected(answer: Answer) -> CaptureError {
    match answer {
        Answer::Refused { message, is_usage } => CaptureError::Refused { message, is_usage },
        _ => CaptureError::keeper("it answered another question"),
    }
}
