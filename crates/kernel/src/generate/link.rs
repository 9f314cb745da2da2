//! What route netlink tells of the interface that sends: whether it is there and up, and what it counted.

use super::GenerateError;
use super::backend::failed;
use super::interface;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

const RTMGRP_LINK: u32 = 1;
const NLMSG_ERROR: u16 = 2;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const NLM_F_REQUEST: u16 = 1;
const IFLA_STATS64: u16 = 23;
const HEADER_BYTES: usize = 16;
const LINK_BYTES: usize = 16;
const ANSWER_BYTES: usize = 32 << 10;

/// Why an interface sends no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Loss {
    Down,
    Gone,
}

/// Watches an interface for the length of a run.
pub(super) struct LinkWatch {
    socket: OwnedFd,
    name: String,
    index: u32,
    // What happened once stays, also if the interface is up again: packets have been lost in between.
    loss: Option<Loss>,
}

impl LinkWatch {
    /// Begins to watch an interface of a network namespace.
    pub fn of(name: &str, namespace: Option<&Path>) -> Result<Self, GenerateError> {
        let open = || {
            interface::enter(namespace)?;
            let index = interface::index(name)?;
            let open = || {
                let socket = route_socket(SocketFlags::NONBLOCK)?;
                bind(&socket, &SocketAddrNetlink::new(0, RTMGRP_LINK))?;
                // It may have gone down before anybody watched.
                ask(&socket, index)?;
                io::Result::Ok(socket)
            };
            Ok(Self {
                socket: open().map_err(failed("watch the interface"))?,
                name: name.into(),
                index,
                loss: None,
            })
        };
        // A socket belongs to the namespace in which it was opened, the calling thread to another.
        std::thread::scope(|scope| scope.spawn(open).join()).map_err(|_| GenerateError::Thread {
            reason: "died; please report this".into(),
        })?
    }

    /// Whether the interface has been down or gone since the beginning.
    pub fn is_lost(&mut self) -> bool {
        let mut buffer = [0; ANSWER_BYTES];
        loop {
            match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) if length > 0 => {
                    let told =
                        messages(&buffer[..length]).filter_map(|message| self.loss_by(message));
                    self.loss = self.loss.max(told.max());
                }
                Err(Errno::INTR) => {}
                // More has happened than the socket could hold: what counts is how it is now.
                Err(Errno::NOBUFS) if ask(&self.socket, self.index).is_ok() => {}
                _ => return self.loss.is_some(),
            }
        }
    }

    /// What has happened to the interface until now, as an error of the run.
    pub fn error(mut self) -> Option<String> {
        // That an interface is gone is told after it was told to be down; who asks waits until it is.
        if ask(&self.socket, self.index).is_err() {
            return None;
        }
        self.is_lost();
        let name = self.name;
        let reason = match self.loss? {
            Loss::Down => {
                format!("went down while packets were sent; send again when it stays up: ip link set {name} up")
            }
            Loss::Gone => "was removed while packets were sent, or moved to another network namespace; make it anew, \
                           and send again"
                .into(),
        };
        let error = GenerateError::Interface {
            interface: name,
            reason,
        };
        Some(error.to_string())
    }

    fn loss_by(&self, message: &[u8]) -> Option<Loss> {
        match word::<2>(message, 4).map(u16::from_ne_bytes)? {
            NLMSG_ERROR => Some(Loss::Gone),
            // A bridge tells of its ports by the same messages, of another family.
            _ if message.get(HEADER_BYTES) != Some(&0) => None,
            _ if word(message, HEADER_BYTES + 4).map(u32::from_ne_bytes)? != self.index => None,
            RTM_DELLINK => Some(Loss::Gone),
            RTM_NEWLINK => {
                let flags = word(message, HEADER_BYTES + 8).map(u32::from_ne_bytes)?;
                (flags & libc::IFF_UP as u32 == 0).then_some(Loss::Down)
            }
            _ => None,
        }
    }
}

/// What an interface has counted since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub transmitted: u64,
    pub dropped: u64,
    pub errors: u64,
}

impl Counters {
    /// Of an interface in the namespace of the calling thread; None if it is gone, or the kernel does not tell.
    pub fn read(index: u32) -> Option<Self> {
        let socket = route_socket(SocketFlags::empty()).ok()?;
        ask(&socket, index).ok()?;
        let mut buffer = [0; ANSWER_BYTES];
        let (length, _) = recv(&socket, &mut buffer[..], RecvFlags::empty()).ok()?;
        let message = messages(&buffer[..length]).next()?;
        if word(message, 4).map(u16::from_ne_bytes)? != RTM_NEWLINK {
            return None;
        }
        // A struct rtnl_link_stats64: received and transmitted packets, bytes, errors, dropped, in turns.
        let statistics = attribute(message.get(HEADER_BYTES + LINK_BYTES..)?, IFLA_STATS64)?;
        let counter = |place: usize| word(statistics, 8 * place).map(u64::from_ne_bytes);
        Some(Self {
            transmitted: counter(1)?,
            errors: counter(5)?,
            dropped: counter(7)?,
        })
    }
}

fn route_socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | SocketFlags::CLOEXEC;
    // Protocol 0 is route netlink.
    socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)
}

/// Asks for all that is known of an interface: the answer can be read when it returns.
fn ask(socket: &OwnedFd, index: u32) -> Result<(), Errno> {
    let mut message = [0; HEADER_BYTES + LINK_BYTES];
    message[..4].copy_from_slice(&((HEADER_BYTES + LINK_BYTES) as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
    message[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    message[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&index.to_ne_bytes());
    send(socket, &message, SendFlags::empty()).map(|_| ())
}

fn messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(word(bytes, 0)?) as usize;
        let message = bytes.get(..length).filter(|_| length >= HEADER_BYTES)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(word(attributes, 0)?));
        // The two highest bits tell of nesting and byte order.
        if u16::from_ne_bytes(word(attributes, 2)?) & 0x3fff == wanted {
            return attributes.get(4..length);
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

fn word<const BYTES: usize>(bytes: &[u8], at: usize) -> Option<[u8; BYTES]> {
    bytes.get(at..at + BYTES)?.try_into().ok()
}
