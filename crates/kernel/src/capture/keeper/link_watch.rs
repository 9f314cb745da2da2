//! What the kernel reports of interfaces that go down, come up, change or disappear.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use parshall_core::filter::emit::TagsBeside;

use super::message::Event;
use crate::net::ethtool::tags_sent_beside;
use crate::net::interface::Interface;
use crate::net::netlink::{self, Link, LinkEvent};

/// Watches the interfaces of a ring.
pub(super) struct LinkWatch {
    watch: netlink::LinkWatch,
    /// State of those that still exist, by index.
    states: HashMap<u32, State>,
    /// An interface sends other VLAN tags by itself, so the programs must be made again.
    tags_changed: bool,
}

/// What is known of an interface.
#[derive(Clone, Debug)]
struct State {
    name: String,
    is_up: bool,
    mtu_bytes: u32,
    tags_beside: TagsBeside,
}

impl LinkWatch {
    /// Begins to watch.
    pub fn new<'ring>(interfaces: impl Iterator<Item = &'ring Interface>) -> io::Result<Self> {
        let interfaces: Vec<&Interface> = interfaces.collect();
        let indexes = interfaces.iter().map(|interface| interface.index);
        let watch = netlink::LinkWatch::open(indexes.collect())?;
        // From here on, no change is missed.
        let states = interfaces.into_iter().map(|interface| {
            let state = State {
                name: interface.name.clone(),
                is_up: interface.is_up,
                mtu_bytes: interface.mtu_bytes,
                tags_beside: tags_sent_beside(interface.index),
            };
            (interface.index, state)
        });
        Ok(Self {
            watch,
            states: states.collect(),
            tags_changed: false,
        })
    }

    /// Whether programs that know the interfaces' offload of VLAN tags must be made again, since the last call.
    pub fn take_tags_changed(&mut self) -> bool {
        std::mem::take(&mut self.tags_changed)
    }

    /// What has happened since the last call, with the index of the interface.
    pub fn events(&mut self) -> Vec<(u32, Event)> {
        let mut events = Vec::new();
        let Self {
            watch,
            states,
            tags_changed,
        } = self;
        watch.poll(|index, event| match event {
            LinkEvent::Removed => {
                if let Some(State { name, .. }) = states.remove(&index) {
                    let event = Event::Gone {
                        interface: name,
                        index,
                        was_last: states.is_empty(),
                    };
                    events.push((index, event));
                }
            }
            LinkEvent::State(link) => {
                if let Some(state) = states.get_mut(&index) {
                    let tags_beside = tags_sent_beside(index);
                    *tags_changed |= state.tags_beside != tags_beside;
                    state.tags_beside = tags_beside;
                    events.extend(state.update(&link).map(|event| (index, event)));
                }
            }
        });
        events
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

impl State {
    /// Takes in the state of a link, and gives what changed.
    fn update(&mut self, link: &Link) -> impl Iterator<Item = Event> + use<> {
        let renamed = match &link.name {
            Some(name) if *name != self.name => Some(Event::Renamed {
                interface: std::mem::replace(&mut self.name, name.clone()),
                name: name.clone(),
            }),
            _ => None,
        };
        let interface = || self.name.clone();
        let up_or_down = (self.is_up != link.is_up).then(|| match link.is_up {
            true => Event::Up {
                interface: interface(),
            },
            false => Event::Down {
                interface: interface(),
            },
        });
        let bytes = link.mtu_bytes.unwrap_or(self.mtu_bytes);
        let mtu = (self.mtu_bytes != bytes).then(|| Event::Mtu {
            interface: interface(),
            bytes,
        });
        (self.is_up, self.mtu_bytes) = (link.is_up, bytes);
        renamed.into_iter().chain(up_or_down).chain(mtu)
    }
}
