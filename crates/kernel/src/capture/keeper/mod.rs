//! The process that holds a ring, and nothing else: maps, links, promiscuous sockets, the filters of
//! all subscribers merged into programs.
//!
//! The process that creates a ring starts it, and it lives until the last reader leaves: the creator may
//! leave before the others. It handles requests one after another, in one thread. A process beside it
//! makes the programs for other subscribers, which takes long, for all changes together that wait. A closed
//! connection has left, and so has a process that died.
//!
//! It never waits: it queues what an end does not read, within bounds, and disconnects an end that
//! exceeds the limits of `limits`, with a message.

mod changes;
pub mod channel;
mod connection;
pub mod directory;
mod limits;
mod link_watch;
pub mod message;
pub(crate) mod privileges;
mod subscribing;

pub use channel::Channel;
pub use directory::RUN_DIRECTORY;

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::MapHandle;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with};

use self::changes::Changes;
use self::connection::{Connection, refusal};
use self::directory::Listener;
use self::limits::{SHOWN_FILTER_MAX_BYTES, UNFINISHED_OF_MEMBERS_MAX_BYTES, User, may_connect};
use self::link_watch::LinkWatch;
use self::message::{
    Answer, Event, ListedRing, ListedSubscriber, PROTOCOL_VERSION, Request, RingDescription,
};
use super::CaptureError;
use super::dispatcher::CompiledFilter;
use super::generation::Hook;
use super::kept_ring::{HookCount, KeptRing};
use super::request::{RingRequest, Subscription};
use crate::cost::CostSampler;
use crate::net::interface::namespace_number;

/// How long a creator may take for its first message.
const FOUNDER_PATIENCE: Duration = Duration::from_secs(30);
/// Between two updates of the cost sampler.
const NAP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};
/// Connections taken in one turn.
const ACCEPTED_MAX: usize = 64;

/// Keeps a ring for the process at the other end of `creator`, and for all who join, until the last of
/// them has left. Errors are sent to them.
pub fn keep(creator: OwnedFd) {
    // Ctrl-C in a terminal is for the processes that capture; they leave when they are done.
    for signal in [libc::SIGINT, libc::SIGHUP] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let _ = rustix::thread::set_name(c"parshall-keeper");
    let mut channel = Channel::new(creator);
    let created = match channel.receive(FOUNDER_PATIENCE) {
        Ok((Request::Create { ring, version }, _)) => {
            check_version(version).and_then(|()| Keeper::create(&ring))
        }
        Ok(_) => Err(CaptureError::keeper("the first message must create a ring")),
        Err(_) => return, // the creator has left
    };
    match created {
        Ok(mut keeper) => {
            keeper.admit(channel);
            keeper.serve();
        }
        Err(error) => {
            let _ = channel.queue(&refusal(&error), Vec::new());
        }
    }
}

struct Keeper {
    ring: KeptRing,
    request: RingRequest,
    listener: Listener,
    watch: LinkWatch,
    connections: Vec<Connection>,
    /// Connections up to now.
    numbers: u64,
    changes: Changes,
}

impl Keeper {
    fn create(request: &RingRequest) -> Result<Self, CaptureError> {
        request.check()?;
        // The name first: without it no interface may be disturbed.
        let (listener, name) = Listener::claim(
            request.name.as_deref(),
            &request.interfaces,
            request.group.as_deref(),
        )?;
        let ring = KeptRing::create(&name, request)?;
        let watch = LinkWatch::new(ring.hooks().map(|hook| &hook.interface))
            .map_err(CaptureError::keeper)?;
        privileges::give_up().map_err(CaptureError::keeper)?;
        Ok(Self {
            ring,
            request: request.clone(),
            listener,
            watch,
            connections: Vec::new(),
            numbers: 0,
            changes: Changes::default(),
        })
    }

    /// Serves until the last reader has left.
    fn serve(&mut self) {
        let mut cost = CostSampler::new();
        while self.connections.iter().any(|one| one.is_member) {
            let ready = self.wait();
            cost.update();
            for (number, is_ready) in ready.iter().skip(2).enumerate() {
                if *is_ready {
                    self.answer(number);
                }
            }
            if ready.get(1) == Some(&true) {
                self.report_interface_events();
            }
            if ready.first() == Some(&true) {
                self.accept();
            }
            self.drop_idle();
            self.remove_closed();
            self.make_changes();
        }
    }

    /// Which of them are ready: the listener, the kernel, the connections.
    fn wait(&self) -> Vec<bool> {
        let mut waiting = vec![
            PollFd::new(&self.listener.socket, PollFlags::IN),
            PollFd::new(&self.watch, PollFlags::IN),
        ];
        waiting.extend(self.connections.iter().map(|one| {
            let room = if one.channel.has_waiting() {
                PollFlags::OUT
            } else {
                PollFlags::empty()
            };
            PollFd::new(&one.channel, PollFlags::IN | room)
        }));
        // It only ends the wait; its state is read later.
        waiting.extend(
            self.changes
                .preparation()
                .map(|one| PollFd::from_borrowed_fd(one, PollFlags::IN)),
        );
        let connections = 2 + self.connections.len();
        let delay = self.changes.delay().map(|delay| Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(delay.subsec_nanos()),
        });
        match poll(&mut waiting, Some(&delay.unwrap_or(NAP))) {
            Ok(_) => waiting
                .iter()
                .take(connections)
                .map(|one| !one.revents().is_empty())
                .collect(),
            Err(_) => Vec::new(), // a signal
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED_MAX {
            let Ok(socket) = accept_with(&self.listener.socket, SocketFlags::CLOEXEC) else {
                return;
            };
            let mut channel = Channel::new(socket);
            let Ok((_, user)) = channel.peer() else {
                continue;
            };
            let user = User::new(user, rustix::process::geteuid().as_raw());
            let connected = self.connections.iter().map(|one| one.user);
            match may_connect(user, connected) {
                Ok(()) => self.connect(channel, user),
                Err(reason) => {
                    let _ = channel.queue(&refusal(&self.full(reason)), Vec::new());
                }
            }
        }
    }

    /// The ring is full: it has no bits for a request.
    fn full(&self, reason: String) -> CaptureError {
        CaptureError::Name {
            name: self.ring.name.clone(),
            reason,
        }
    }

    fn drop_idle(&mut self) {
        for one in &mut self.connections {
            if one.is_idle(self.changes.has_join_of(one.number)) {
                let waited_s = one.since.elapsed().as_secs();
                one.refuse(&CaptureError::keeper(format!(
                    "it waited {waited_s} s for a whole request"
                )));
                one.is_over = true;
            }
        }
        // Each message is within its limit, and their sum must be, too: the longest is dropped first.
        while self
            .connections
            .iter()
            .filter(|one| !one.is_over)
            .map(Connection::unfinished_bytes)
            .sum::<usize>()
            > UNFINISHED_OF_MEMBERS_MAX_BYTES
        {
            let longest = self
                .connections
                .iter_mut()
                .filter(|one| !one.is_over)
                .max_by_key(|one| one.unfinished_bytes());
            let Some(longest) = longest else { break };
            longest.is_over = true;
        }
    }

    fn connect(&mut self, channel: Channel, user: User) {
        self.numbers += 1;
        self.connections
            .push(Connection::new(self.numbers, channel, user));
    }

    /// Makes the creator the first member, and answers that its ring exists.
    fn admit(&mut self, channel: Channel) {
        let own = rustix::process::geteuid().as_raw();
        self.connect(channel, User::new(own, own));
        let first = self.connections.len() - 1;
        self.reply(first, self.join(first));
    }

    fn answer(&mut self, number: usize) {
        let Some(request) = self.connections[number].request() else {
            return;
        };
        if matches!(request, Request::Join { .. } | Request::List) {
            // Who asks may have seen what the kernel has reported, and we have not.
            self.report_interface_events();
        }
        let answer = match request {
            Request::Join { version } => check_version(version).and_then(|()| self.join(number)),
            Request::Subscribe { subscriptions } => {
                let may = self.may_subscribe(number, subscriptions.len());
                let may = may.and_then(|()| self.may_wait(self.connections[number].user));
                match may.and_then(|()| check(&subscriptions)) {
                    Ok(()) => {
                        let Connection { number, user, .. } = self.connections[number];
                        self.changes.join(number, user, subscriptions);
                        return;
                    }
                    Err(error) => Err(error),
                }
            }
            Request::SubscribeAtOnce {
                subscriptions,
                is_immediate,
            } => self
                .may_subscribe(number, subscriptions.len())
                .and_then(|()| check(&subscriptions))
                .and_then(|()| self.subscribe_at_once(number, subscriptions, is_immediate)),
            Request::Replace { subscriptions } => {
                let connection = &self.connections[number];
                if connection.bits.is_empty() || connection.bits.len() != subscriptions.len() {
                    Err(CaptureError::keeper("replace all subscriptions of yours"))
                } else {
                    check(&subscriptions).map(|()| {
                        let bits = connection.bits.clone();
                        self.ring.change(&bits, subscriptions);
                        self.changes.merge(connection.number, connection.user, bits);
                        Reply::Plain(Answer::Replaced)
                    })
                }
            }
            Request::Account => self.account(number),
            Request::Leave if self.connections[number].bits.is_empty() => {
                Err(CaptureError::keeper("there is no subscription to end"))
            }
            Request::Leave => {
                let connection = &mut self.connections[number];
                let bits = std::mem::take(&mut connection.bits);
                // Another connection may get these bits, so no new filter may wait for them.
                self.changes.forget(connection.number);
                self.ring.begin_leave(&bits);
                self.changes.leave(Some(connection.number), bits);
                return;
            }
            Request::List => Ok(Reply::Plain(Answer::Listed(self.listed()))),
            Request::Create { .. } => Err(CaptureError::keeper("this ring exists already")),
        };
        self.reply(number, answer);
    }

    fn reply(&mut self, number: usize, answer: Result<Reply, CaptureError>) {
        let connection = &mut self.connections[number];
        match answer {
            Ok(Reply::Plain(answer)) => connection.reply(&answer, Vec::new()),
            Ok(Reply::Beside(answer, descriptors)) => connection.reply(&answer, descriptors),
            Ok(Reply::Ring {
                description,
                ring,
                readers,
                reader_slot,
            }) => {
                connection.is_member = true;
                connection.reader_slot = reader_slot;
                connection.reply(
                    &description,
                    [Some(ring), readers].into_iter().flatten().collect(),
                );
            }
            Err(error) => connection.refuse(&error),
        }
    }

    fn join(&self, number: usize) -> Result<Reply, CaptureError> {
        if self.connections[number].is_member {
            return Err(CaptureError::keeper("you have joined already"));
        }
        // Writers wait for trusted readers only: a reader that can write into the register, or
        // reads slowly enough, can stop the ring for all. For members it is a ring with fast-reader
        // preference.
        let is_slow = self.request.slow_reader && self.connections[number].user.is_trusted;
        // The slot is used from the first subscription on; until then no writer waits for it.
        let reader_slot = is_slow.then(|| self.free_slot()).transpose()?;
        let interfaces = self.ring.interfaces();
        if interfaces.iter().all(|(_, is_removed)| *is_removed) {
            return Err(self.full("its interfaces were removed; create a ring".into()));
        }
        let removed = (0..).zip(&interfaces);
        let removed = removed.filter(|(_, (_, is_removed))| *is_removed);
        let description = Answer::Ring(RingDescription {
            name: self.ring.name.clone(),
            lanes: self.ring.lanes.len(),
            layout: self.ring.maps.layout,
            removed: removed.map(|(number, _)| number).collect(),
            interfaces: interfaces.into_iter().map(|(one, _)| one.clone()).collect(),
            namespace: namespace_number(),
            hooks: self.ring.hooks().cloned().collect(),
            reader_slot,
        });
        Ok(Reply::Ring {
            description,
            ring: duplicate(&self.ring.maps.ring)?,
            readers: is_slow
                .then(|| duplicate(&self.ring.maps.readers))
                .transpose()?,
            reader_slot,
        })
    }

    fn free_slot(&self) -> Result<usize, CaptureError> {
        (0..parshall_core::abi::RING_READERS_MAX)
            .find(|slot| {
                self.connections
                    .iter()
                    .all(|one| one.reader_slot != Some(*slot))
            })
            .ok_or(CaptureError::Ring(crate::ring::RingError::Readers))
    }

    fn account(&self, number: usize) -> Result<Reply, CaptureError> {
        let counts = self.connections[number]
            .bits
            .iter()
            .map(|bit| self.ring.account(*bit))
            .collect::<Result<_, _>>()?;
        Ok(Reply::Plain(Answer::Account {
            counts,
            run_times: self.ring.run_times(),
        }))
    }

    fn report_interface_events(&mut self) {
        for (index, mut event) in self.watch.events() {
            let ring = &mut self.ring;
            match &mut event {
                Event::Gone { was_last, .. } => *was_last = ring.mark_removed(index),
                Event::Renamed { name, .. } => {
                    ring.update_interface(index, |one| one.name.clone_from(name));
                }
                Event::Up { .. } => ring.update_interface(index, |one| one.is_up = true),
                Event::Down { .. } => ring.update_interface(index, |one| one.is_up = false),
                Event::Mtu { bytes, .. } => {
                    ring.update_interface(index, |one| one.mtu_bytes = *bytes);
                }
            }
            for connection in self.connections.iter_mut().filter(|one| one.is_member) {
                connection.reply(&Answer::Event(event.clone()), Vec::new());
            }
        }
        if self.watch.take_tags_changed() {
            // All subscribers stay, and get new programs.
            self.changes.leave(None, Vec::new());
        }
    }

    /// Removes closed connections.
    fn remove_closed(&mut self) {
        let (over, alive) = std::mem::take(&mut self.connections)
            .into_iter()
            .partition::<Vec<_>, _>(|one| one.is_over);
        self.connections = alive;
        for closed in over {
            if let Some(slot) = closed.reader_slot {
                self.ring.readers.iter().for_each(|one| one.leave(slot));
            }
            self.changes.forget(closed.number);
            if !closed.bits.is_empty() {
                self.ring.begin_leave(&closed.bits);
                self.changes.leave(None, closed.bits);
            }
        }
    }

    fn listed(&self) -> ListedRing {
        let pid_of = |bit: usize| {
            self.connections
                .iter()
                .find(|one| one.bits.contains(&bit))
                .and_then(|one| one.channel.peer().ok())
                .map_or(0, |(pid, _)| pid)
        };
        let interfaces = self.ring.interfaces().into_iter();
        let present = interfaces.filter(|(_, is_removed)| !is_removed);
        let (interfaces, indices) = present
            .map(|(one, _)| (one.name.clone(), one.index))
            .unzip();
        ListedRing {
            name: self.ring.name.clone(),
            keeper_pid: rustix::process::getpid().as_raw_nonzero().get(),
            hooks: self.ring.hooks().map(Hook::name).collect(),
            interfaces,
            indices,
            namespace: namespace_number(),
            ring_bytes: self.ring.maps.layout.size_bytes,
            lanes: self.ring.lanes.len(),
            policy: if self.request.slow_reader {
                "slow"
            } else {
                "fast"
            }
            .into(),
            group: self.request.group.clone(),
            subscribers: self
                .ring
                .subscribers()
                .map(|(bit, one)| {
                    let counts = self.ring.account(bit).unwrap_or_default();
                    let sum = |of: fn(&HookCount) -> u64| counts.iter().map(of).sum();
                    ListedSubscriber {
                        pid: pid_of(bit),
                        filter: shortened(&one.filter),
                        snaplen: one.snaplen,
                        seen: sum(|count| count.seen),
                        matched: sum(|count| count.matched),
                        dropped: sum(|count| count.dropped),
                    }
                })
                .collect(),
        }
    }
}

fn check(subscriptions: &[(Subscription, CompiledFilter)]) -> Result<(), CaptureError> {
    subscriptions.iter().try_for_each(|(one, _)| one.check())
}

enum Reply {
    Plain(Answer),
    /// With descriptors beside it.
    Beside(Answer, Vec<OwnedFd>),
    Ring {
        description: Answer,
        ring: OwnedFd,
        readers: Option<OwnedFd>,
        reader_slot: Option<usize>,
    },
}

/// The beginning of a filter, for display.
fn shortened(filter: &str) -> String {
    if filter.len() <= SHOWN_FILTER_MAX_BYTES {
        return filter.into();
    }
    let mut ends = (0..=SHOWN_FILTER_MAX_BYTES).rev();
    let end = ends.find(|end| filter.is_char_boundary(*end)).unwrap_or(0);
    format!("{}...", &filter[..end])
}

fn check_version(version: u32) -> Result<(), CaptureError> {
    if version != PROTOCOL_VERSION {
        return Err(CaptureError::keeper(format!(
            "it speaks version {PROTOCOL_VERSION}, not {version}; use the Parshall that created the ring"
        )));
    }
    Ok(())
}

fn duplicate(map: &MapHandle) -> Result<OwnedFd, CaptureError> {
    map.as_fd()
        .try_clone_to_owned()
        .map_err(CaptureError::keeper)
}
