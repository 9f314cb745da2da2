//! The process that holds a ring, and nothing else: maps, links, promiscuous sockets, the filters of
//! all subscribers merged into programs.
//!
//! It is started by the process that founds a ring and lives as long as somebody reads: so whoever
//! founded a ring may go, and the others go on. It works on requests one after another, in one
//! thread. Whoever closes its connection has left; a process that dies has, too.

mod channel;
pub mod directory;
mod link_watch;
pub mod message;

pub use channel::Channel;
pub use directory::RUN_DIRECTORY;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::MapHandle;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with};

use self::directory::Listener;
use self::link_watch::LinkWatch;
use self::message::{
    Answer, Event, ListedRing, ListedSubscriber, PROTOCOL_VERSION, Request, RingDescription,
};
use super::CaptureError;
use super::decider::CompiledFilter;
use super::generation::Hook;
use super::interface::namespace_number;
use super::kept_ring::KeptRing;
use super::request::{RingRequest, Subscription};
use crate::cost::CostSampler;

/// How long a founder may take for its first message.
const FOUNDER_PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at the clock of the cost sampler.
const NAP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};
const CONNECTIONS_MAX: usize = 256;

/// Keeps a ring for the process at the other end of `founder`, and for all who join, until the last of
/// them has gone. What is wrong is said to them.
pub fn keep(founder: OwnedFd) {
    // Ctrl-C in a terminal is meant for those who capture; they say when they have done.
    for signal in [libc::SIGINT, libc::SIGHUP] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let _ = rustix::thread::set_name(c"parshall-keeper");
    let mut channel = Channel::new(founder);
    let founded = match channel.receive(FOUNDER_PATIENCE) {
        Ok((Request::Found { ring, version }, _)) => {
            check_version(version).and_then(|()| Keeper::found(&ring))
        }
        Ok(_) => Err(CaptureError::keeper("the first message must found a ring")),
        Err(_) => return, // the founder has gone again
    };
    match founded {
        Ok(mut keeper) => {
            keeper.admit(channel);
            keeper.serve();
        }
        Err(error) => {
            let _ = channel.send(&refusal(&error), &[]);
        }
    }
}

/// Who is connected.
struct Connection {
    channel: Channel,
    /// It reads the ring, or will.
    is_member: bool,
    reader_slot: Option<usize>,
    bits: Vec<usize>,
    /// It closed, or cannot be spoken to.
    is_over: bool,
}

struct Keeper {
    ring: KeptRing,
    request: RingRequest,
    listener: Listener,
    watch: LinkWatch,
    connections: Vec<Connection>,
}

impl Keeper {
    fn found(request: &RingRequest) -> Result<Self, CaptureError> {
        request.check()?;
        // The name first: who may not have it should not disturb any interface.
        let (listener, name) = Listener::claim(
            request.name.as_deref(),
            &request.interfaces,
            request.group.as_deref(),
        )?;
        let ring = KeptRing::found(&name, request)?;
        let watch = LinkWatch::new(ring.hooks().map(|hook| &hook.interface))
            .map_err(CaptureError::keeper)?;
        Ok(Self {
            ring,
            request: request.clone(),
            listener,
            watch,
            connections: Vec::new(),
        })
    }

    /// Serves until nobody is left who reads.
    fn serve(&mut self) {
        let mut cost = CostSampler::new();
        while self.connections.iter().any(|one| one.is_member) {
            let ready = self.wait();
            cost.turn();
            if ready.first() == Some(&true) {
                self.accept();
            }
            if ready.get(1) == Some(&true) {
                self.tell_of_interfaces();
            }
            for (number, is_ready) in ready.iter().skip(2).enumerate() {
                if *is_ready {
                    self.answer(number);
                }
            }
            self.bury();
        }
    }

    /// Who has something to say: the listener, the kernel, the connections.
    fn wait(&self) -> Vec<bool> {
        let mut waiting = vec![
            PollFd::new(&self.listener.socket, PollFlags::IN),
            PollFd::new(&self.watch, PollFlags::IN),
        ];
        waiting.extend(
            self.connections
                .iter()
                .map(|one| PollFd::new(&one.channel, PollFlags::IN)),
        );
        match poll(&mut waiting, Some(&NAP)) {
            Ok(_) => waiting
                .iter()
                .map(|one| !one.revents().is_empty())
                .collect(),
            Err(_) => Vec::new(), // a signal
        }
    }

    fn accept(&mut self) {
        let Ok(socket) = accept_with(&self.listener.socket, SocketFlags::CLOEXEC) else {
            return;
        };
        if self.connections.len() < CONNECTIONS_MAX {
            self.connections.push(Connection {
                channel: Channel::new(socket),
                is_member: false,
                reader_slot: None,
                bits: Vec::new(),
                is_over: false,
            });
        }
    }

    /// The founder is the first member, and hears that its ring is there.
    fn admit(&mut self, channel: Channel) {
        self.connections.push(Connection {
            channel,
            is_member: false,
            reader_slot: None,
            bits: Vec::new(),
            is_over: false,
        });
        let first = self.connections.len() - 1;
        self.say(first, self.join(first));
    }

    fn answer(&mut self, number: usize) {
        let connection = &mut self.connections[number];
        let request = match connection.channel.receive(Duration::ZERO) {
            Ok((request, _)) => request,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return,
            // It has gone, or does not speak as it should.
            Err(_) => {
                connection.is_over = true;
                return;
            }
        };
        let answer = match request {
            Request::Join { version } => check_version(version).and_then(|()| self.join(number)),
            Request::Subscribe { subscriptions } => self.subscribe(number, &subscriptions),
            Request::Account => self.account(number),
            Request::Leave => self.leave(number),
            Request::List => Ok(Reply::Plain(Answer::Listed(self.listed()))),
            Request::Found { .. } => Err(CaptureError::keeper("this ring is founded already")),
        };
        self.say(number, answer);
    }

    fn say(&mut self, number: usize, answer: Result<Reply, CaptureError>) {
        let sent = match &answer {
            Ok(Reply::Plain(answer)) => self.connections[number].channel.send(answer, &[]),
            Ok(Reply::Ring {
                description,
                ring,
                readers,
                ..
            }) => {
                let descriptors: Vec<BorrowedFd<'_>> = [Some(ring), readers.as_ref()]
                    .into_iter()
                    .flatten()
                    .map(AsFd::as_fd)
                    .collect();
                self.connections[number]
                    .channel
                    .send(description, &descriptors)
            }
            Err(error) => self.connections[number].channel.send(&refusal(error), &[]),
        };
        let connection = &mut self.connections[number];
        if let Ok(Reply::Ring { reader_slot, .. }) = answer {
            connection.is_member = true;
            connection.reader_slot = reader_slot;
        }
        connection.is_over |= sent.is_err();
    }

    fn join(&self, number: usize) -> Result<Reply, CaptureError> {
        if self.connections[number].is_member {
            return Err(CaptureError::keeper("you have joined already"));
        }
        let (ring, readers) = self.ring.maps();
        let is_slow = self.request.slow_reader;
        // The slot is used from the first subscription on; until then nobody waits for it.
        let reader_slot = is_slow.then(|| self.free_slot()).transpose()?;
        let hooks: Vec<Hook> = self.ring.hooks().cloned().collect();
        let mut interfaces = Vec::new();
        for hook in &hooks {
            if usize::from(hook.interface_number) == interfaces.len() {
                interfaces.push(hook.interface.clone());
            }
        }
        let description = Answer::Ring(RingDescription {
            name: self.ring.name().into(),
            lanes: self.ring.lanes(),
            layout: self.ring.layout().into(),
            interfaces,
            hooks,
            reader_slot,
        });
        Ok(Reply::Ring {
            description,
            ring: duplicate(ring)?,
            readers: is_slow.then(|| duplicate(readers)).transpose()?,
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

    fn subscribe(
        &mut self,
        number: usize,
        subscriptions: &[(Subscription, CompiledFilter)],
    ) -> Result<Reply, CaptureError> {
        let connection = &mut self.connections[number];
        if !connection.is_member || !connection.bits.is_empty() {
            return Err(CaptureError::keeper("join first, and subscribe once"));
        }
        // Before the programs serve the new ones: from then on nothing may be written over.
        if let Some(slot) = connection.reader_slot {
            let positions = self.ring.positions();
            for (readers, position) in self.ring.readers().iter().zip(positions) {
                readers.enter(slot, position);
            }
        }
        match self.ring.subscribe(subscriptions) {
            Ok((bits, starts)) => {
                connection.bits.clone_from(&bits);
                Ok(Reply::Plain(Answer::Subscribed { bits, starts }))
            }
            Err(error) => {
                if let Some(slot) = connection.reader_slot {
                    self.ring.readers().iter().for_each(|one| one.leave(slot));
                }
                Err(error)
            }
        }
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

    fn leave(&mut self, number: usize) -> Result<Reply, CaptureError> {
        let bits = std::mem::take(&mut self.connections[number].bits);
        let (counts, ends) = self.ring.leave(&bits)?;
        Ok(Reply::Plain(Answer::Left {
            counts,
            run_times: self.ring.run_times(),
            ends,
        }))
    }

    fn tell_of_interfaces(&mut self) {
        for (index, mut event) in self.watch.events() {
            if let Event::Gone { was_last, .. } = &mut event {
                *was_last = self.ring.interface_went(index);
            }
            for connection in self.connections.iter_mut().filter(|one| one.is_member) {
                let sent = connection.channel.send(&Answer::Event(event.clone()), &[]);
                connection.is_over |= sent.is_err();
            }
        }
    }

    /// Lets those go who have gone.
    fn bury(&mut self) {
        let (over, alive) = std::mem::take(&mut self.connections)
            .into_iter()
            .partition::<Vec<_>, _>(|one| one.is_over);
        self.connections = alive;
        for gone in over {
            if let Some(slot) = gone.reader_slot {
                self.ring.readers().iter().for_each(|one| one.leave(slot));
            }
            if !gone.bits.is_empty() && self.connections.iter().any(|one| one.is_member) {
                // When the kernel refuses, the others are served as before, and a bit is lost.
                let _ = self.ring.leave(&gone.bits);
            }
        }
    }

    fn listed(&self) -> ListedRing {
        let pid_of = |bit: usize| {
            self.connections
                .iter()
                .find(|one| one.bits.contains(&bit))
                .map_or(0, |one| one.channel.peer_pid())
        };
        ListedRing {
            name: self.ring.name().into(),
            keeper_pid: rustix::process::getpid().as_raw_nonzero().get(),
            hooks: self.ring.hooks().map(Hook::name).collect(),
            interfaces: self.request.interfaces.clone(),
            namespace: namespace_number(),
            ring_bytes: self.ring.layout().size_bytes,
            lanes: self.ring.lanes(),
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
                .map(|(bit, one)| ListedSubscriber {
                    pid: pid_of(bit),
                    filter: one.filter.clone(),
                    snaplen: one.snaplen,
                })
                .collect(),
        }
    }
}

enum Reply {
    Plain(Answer),
    Ring {
        description: Answer,
        ring: OwnedFd,
        readers: Option<OwnedFd>,
        reader_slot: Option<usize>,
    },
}

fn refusal(error: &CaptureError) -> Answer {
    Answer::Refused {
        message: error.to_string(),
        is_usage: error.is_usage(),
    }
}

fn check_version(version: u32) -> Result<(), CaptureError> {
    if version != PROTOCOL_VERSION {
        return Err(CaptureError::keeper(format!(
            "it speaks version {PROTOCOL_VERSION}, not {version}; use the same Parshall as who founded the ring"
        )));
    }
    Ok(())
}

fn duplicate(map: &MapHandle) -> Result<OwnedFd, CaptureError> {
    map.as_fd()
        .try_clone_to_owned()
        .map_err(CaptureError::keeper)
}
