//! What the kernel tells of interfaces that go down, come up, change or disappear.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::message::Event;
use crate::capture::interface::Interface;
use crate::route_netlink::{self, Link, Told, word};

const IFLA_MTU: u16 = 4;

/// Watches the interfaces of a ring.
pub(super) struct LinkWatch {
    socket: OwnedFd,
    interfaces: Interfaces,
}

impl LinkWatch {
    /// Begins to watch.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new<'ring>(interfaces: impl Iterator<Item = &'ring Interface>) -> io::Result<Self> {
        Ok(Self {
            socket: route_netlink::open_hearing()?,
            interfaces: interfaces.collect(),
        })
    }

    /// What has happened since the last call, with the number of the interface.
    pub fn events(&mut self) -> Vec<(u32, Event)> {
        let mut events = Vec::new();
        let mut has_missed = self.read(&mut events);
        while has_missed {
            // What counts is how it is now: one question after the other, since the socket holds few answers.
            while self.read(&mut events) {}
            has_missed = false;
            for index in self.interfaces.numbers() {
                let is_asked = route_netlink::ask(&self.socket, index).is_ok();
                has_missed |= is_asked && self.read(&mut events);
            }
        }
        events
    }

    /// Reads what was told; whether more has happened than the socket could hold.
    fn read(&mut self, events: &mut Vec<(u32, Event)>) -> bool {
        let interfaces = &mut self.interfaces;
        let read = route_netlink::read(&self.socket, |index, told| {
            events.extend(interfaces.hear(index, &told).map(|event| (index, event)));
        });
        read == Err(Errno::NOBUFS)
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What is known of an interface.
#[derive(Clone, Debug)]
struct State {
    name: String,
    is_up: bool,
    mtu_bytes: u32,
}

/// What is known of those that are still there, by number.
struct Interfaces(HashMap<u32, State>);

impl<'ring> FromIterator<&'ring Interface> for Interfaces {
    fn from_iter<T: IntoIterator<Item = &'ring Interface>>(interfaces: T) -> Self {
        let states = interfaces.into_iter().map(|interface| {
            let state = State {
                name: interface.name.clone(),
                is_up: interface.is_up,
                mtu_bytes: interface.mtu_bytes,
            };
            (interface.index, state)
        });
        Self(states.collect())
    }
}

impl Interfaces {
    fn numbers(&self) -> Vec<u32> {
        self.0.keys().copied().collect()
    }

    /// What is new in what was told.
    fn hear(&mut self, index: u32, told: &Told<'_>) -> impl Iterator<Item = Event> + use<> {
        let mut events = Vec::new();
        match told {
            Told::Gone => {
                if let Some(State { name, .. }) = self.0.remove(&index) {
                    events.push(Event::Gone {
                        interface: name,
                        was_last: self.0.is_empty(),
                    });
                }
            }
            Told::Link(link) => {
                if let Some(state) = self.0.get_mut(&index) {
                    events.extend(state.hear(link));
                }
            }
        }
        events.into_iter()
    }
}

impl State {
    fn hear(&mut self, link: &Link<'_>) -> Vec<Event> {
        let mut events = Vec::new();
        let interface = || self.name.clone();
        if self.is_up != link.is_up() {
            let interface = interface();
            events.push(match link.is_up() {
                true => Event::Up { interface },
                false => Event::Down { interface },
            });
        }
        let mtu = link.attribute(IFLA_MTU).and_then(|value| word(value, 0));
        let bytes = mtu.map_or(self.mtu_bytes, u32::from_ne_bytes);
        if self.mtu_bytes != bytes {
            let interface = interface();
            events.push(Event::Mtu { interface, bytes });
        }
        (self.is_up, self.mtu_bytes) = (link.is_up(), bytes);
        events
    }
}
