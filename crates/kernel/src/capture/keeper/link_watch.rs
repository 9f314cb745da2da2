//! What the kernel tells of interfaces that go down, come up, change or disappear.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use super::message::Event;
use crate::capture::interface::Interface;

const RTMGRP_LINK: u32 = 1;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const IFLA_MTU: u16 = 4;
const HEADER_BYTES: usize = 16;
const LINK_BYTES: usize = 16;

/// What is known of an interface.
#[derive(Clone, Debug)]
struct State {
    name: String,
    is_up: bool,
    mtu_bytes: u32,
}

/// Watches the interfaces of a ring.
pub(super) struct LinkWatch {
    socket: OwnedFd,
    interfaces: HashMap<u32, State>,
}

impl LinkWatch {
    /// Begins to watch.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new<'ring>(interfaces: impl Iterator<Item = &'ring Interface>) -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None, // protocol 0 is route netlink
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, RTMGRP_LINK))?;
        let interfaces = interfaces
            .map(|interface| {
                let state = State {
                    name: interface.name.clone(),
                    is_up: interface.is_up,
                    mtu_bytes: interface.mtu_bytes,
                };
                (interface.index, state)
            })
            .collect();
        Ok(Self { socket, interfaces })
    }

    /// What has happened since the last call, with the number of the interface.
    pub fn events(&mut self) -> Vec<(u32, Event)> {
        let mut events = Vec::new();
        let mut buffer = vec![0; 32 << 10];
        while let Ok((length, _)) = recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            if length == 0 {
                break;
            }
            events.extend(self.read(&buffer[..length]));
        }
        events
    }

    fn read(&mut self, mut messages: &[u8]) -> Vec<(u32, Event)> {
        let mut events = Vec::new();
        while let Some(message) = first_message(messages) {
            events.extend(self.read_one(message));
            messages = messages
                .get(message.len().next_multiple_of(4)..)
                .unwrap_or_default();
        }
        events
    }

    fn read_one(&mut self, message: &[u8]) -> Vec<(u32, Event)> {
        let kind = word16(message, 4);
        let (Some(index), Some(flags)) = (
            word32(message, HEADER_BYTES + 4),
            word32(message, HEADER_BYTES + 8),
        ) else {
            return Vec::new();
        };
        let Some(state) = self.interfaces.get_mut(&index) else {
            return Vec::new();
        };
        let interface = state.name.clone();
        if kind == Some(RTM_DELLINK) {
            self.interfaces.remove(&index);
            let was_last = self.interfaces.is_empty();
            return vec![(
                index,
                Event::Gone {
                    interface,
                    was_last,
                },
            )];
        }
        if kind != Some(RTM_NEWLINK) {
            return Vec::new();
        }
        let mut events = Vec::new();
        let is_up = flags & libc::IFF_UP as u32 != 0;
        if state.is_up != is_up {
            let interface = interface.clone();
            events.push(match is_up {
                true => (index, Event::Up { interface }),
                false => (index, Event::Down { interface }),
            });
        }
        state.is_up = is_up;
        if let Some(bytes) = attribute32(&message[HEADER_BYTES + LINK_BYTES..], IFLA_MTU) {
            if state.mtu_bytes != bytes {
                events.push((index, Event::Mtu { interface, bytes }));
            }
            state.mtu_bytes = bytes;
        }
        events
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn first_message(bytes: &[u8]) -> Option<&[u8]> {
    let length = word32(bytes, 0)? as usize;
    if length < HEADER_BYTES + LINK_BYTES {
        return None;
    }
    bytes.get(..length)
}

/// The value of an attribute of four bytes.
fn attribute32(mut attributes: &[u8], wanted: u16) -> Option<u32> {
    loop {
        let length = usize::from(word16(attributes, 0)?);
        if word16(attributes, 2)? & 0x3fff == wanted {
            return word32(attributes, 4);
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

fn word16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
