//! What the kernel reports of interfaces that go down, come up, change or disappear.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::message::Event;
use crate::net::interface::Interface;
use crate::net::netlink::{self, Link, LinkEvent};

/// Watches the interfaces of a ring.
pub(super) struct LinkWatch {
    watch: netlink::LinkWatch,
    interfaces: Interfaces,
}

impl LinkWatch {
    /// Begins to watch.
    pub fn new<'ring>(interfaces: impl Iterator<Item = &'ring Interface>) -> io::Result<Self> {
        let interfaces: Interfaces = interfaces.collect();
        Ok(Self {
            watch: netlink::LinkWatch::open(interfaces.0.keys().copied().collect())?,
            interfaces,
        })
    }

    /// What has happened since the last call, with the index of the interface.
    pub fn events(&mut self) -> Vec<(u32, Event)> {
        let mut events = Vec::new();
        self.watch.poll(|index, event| {
            let news = self.interfaces.hear(index, &event);
            events.extend(news.map(|event| (index, event)));
        });
        events
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

/// What is known of an interface.
#[derive(Clone, Debug)]
struct State {
    name: String,
    is_up: bool,
    mtu_bytes: u32,
}

/// What is known of those that still exist, by index.
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
    /// What is new in an event.
    fn hear(&mut self, index: u32, event: &LinkEvent) -> impl Iterator<Item = Event> + use<> {
        let mut events = Vec::new();
        match event {
            LinkEvent::Removed => {
                if let Some(State { name, .. }) = self.0.remove(&index) {
                    events.push(Event::Gone {
                        interface: name,
                        was_last: self.0.is_empty(),
                    });
                }
            }
            LinkEvent::State(link) => {
                if let Some(state) = self.0.get_mut(&index) {
                    events.extend(state.hear(link));
                }
            }
        }
        events.into_iter()
    }
}

impl State {
    fn hear(&mut self, link: &Link) -> Vec<Event> {
        let mut events = Vec::new();
        let interface = || self.name.clone();
        if self.is_up != link.is_up {
            let interface = interface();
            events.push(match link.is_up {
                true => Event::Up { interface },
                false => Event::Down { interface },
            });
        }
        let bytes = link.mtu_bytes.unwrap_or(self.mtu_bytes);
        if self.mtu_bytes != bytes {
            let interface = interface();
            events.push(Event::Mtu { interface, bytes });
        }
        (self.is_up, self.mtu_bytes) = (link.is_up, bytes);
        events
    }
}
