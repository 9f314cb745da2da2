//! Route netlink, as far as whoever watches interfaces needs it: a socket that hears of them, the question what an
//! interface is now, and the way through messages and their attributes. What they mean is their readers' business.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

const RTMGRP_LINK: u32 = 1;
const NLMSG_ERROR: u16 = 2;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const NLM_F_REQUEST: u16 = 1;
const HEADER_BYTES: usize = 16;
const LINK_BYTES: usize = 16;
/// What the kernel puts into one datagram is shorter.
const ANSWER_BYTES: usize = 32 << 10;

/// What a message says of an interface.
pub(crate) enum Told<'m> {
    /// It is there.
    Link(Link<'m>),
    /// It is there no more.
    Gone,
}

/// An interface as a message shows it.
pub(crate) struct Link<'m> {
    flags: u32,
    attributes: &'m [u8],
}

impl<'m> Link<'m> {
    /// Whether its administrator has it up.
    pub fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    /// Whether it has its carrier.
    pub fn has_carrier(&self) -> bool {
        self.flags & libc::IFF_LOWER_UP as u32 != 0
    }

    /// The value of an attribute.
    pub fn attribute(&self, wanted: u16) -> Option<&'m [u8]> {
        let mut attributes = self.attributes;
        loop {
            let length = usize::from(u16::from_ne_bytes(word(attributes, 0)?));
            // The two highest bits tell of nesting and byte order.
            if u16::from_ne_bytes(word(attributes, 2)?) & 0x3fff == wanted {
                return attributes.get(4..length);
            }
            attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
        }
    }
}

/// Opens a socket in the network namespace of the calling thread.
pub(crate) fn open(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | SocketFlags::CLOEXEC;
    // Protocol 0 is route netlink.
    socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)
}

/// As [`open`], and hears of every change of an interface.
pub(crate) fn open_hearing() -> Result<OwnedFd, Errno> {
    let socket = open(SocketFlags::NONBLOCK)?;
    bind(&socket, &SocketAddrNetlink::new(0, RTMGRP_LINK))?;
    Ok(socket)
}

/// Asks for all that is known of an interface: the answer can be read when it returns.
pub(crate) fn ask(socket: &OwnedFd, index: u32) -> Result<(), Errno> {
    send(socket, &question(index), SendFlags::empty()).map(|_| ())
}

fn question(index: u32) -> [u8; HEADER_BYTES + LINK_BYTES] {
    let mut message = [0; HEADER_BYTES + LINK_BYTES];
    message[..4].copy_from_slice(&((HEADER_BYTES + LINK_BYTES) as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
    message[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    // The number of the question, which an error repeats.
    message[8..12].copy_from_slice(&index.to_ne_bytes());
    message[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&index.to_ne_bytes());
    message
}

/// Reads what waits, or, of a socket that blocks, one datagram; `take` gets the number of an interface and what is said
/// of it.
///
/// # Errors
/// `NOBUFS` when more has happened than the socket could hold: what is missing is known only to who asks. It can
/// be read on then.
pub(crate) fn read(socket: &OwnedFd, mut take: impl FnMut(u32, Told<'_>)) -> Result<(), Errno> {
    let mut buffer = [0; ANSWER_BYTES];
    loop {
        match recv(socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((length, _)) => {
                for message in messages(&buffer[..length]) {
                    if let Some((index, told)) = told(message) {
                        take(index, told);
                    }
                }
                if length == 0 || !is_nonblocking(socket) {
                    return Ok(());
                }
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
}

fn is_nonblocking(socket: &OwnedFd) -> bool {
    rustix::fs::fcntl_getfl(socket).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
}

fn messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(word(bytes, 0)?) as usize;
        let message = bytes.get(..length).filter(|_| length >= HEADER_BYTES)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

fn told(message: &[u8]) -> Option<(u32, Told<'_>)> {
    let kind = u16::from_ne_bytes(word(message, 4)?);
    if kind == NLMSG_ERROR {
        // Of a question, whose number is that of its interface.
        let errno = i32::from_ne_bytes(word(message, HEADER_BYTES)?);
        let index = u32::from_ne_bytes(word(message, 8)?);
        return (errno == -libc::ENODEV).then_some((index, Told::Gone));
    }
    // A bridge tells of its ports by the same messages, of another family.
    if message.get(HEADER_BYTES) != Some(&0) {
        return None;
    }
    let index = u32::from_ne_bytes(word(message, HEADER_BYTES + 4)?);
    match kind {
        RTM_DELLINK => Some((index, Told::Gone)),
        RTM_NEWLINK => {
            let link = Link {
                flags: u32::from_ne_bytes(word(message, HEADER_BYTES + 8)?),
                attributes: message.get(HEADER_BYTES + LINK_BYTES..)?,
            };
            Some((index, Told::Link(link)))
        }
        _ => None,
    }
}

/// So many bytes from an offset on.
pub(crate) fn word<const BYTES: usize>(bytes: &[u8], at: usize) -> Option<[u8; BYTES]> {
    bytes.get(at..at + BYTES)?.try_into().ok()
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// The answer to the question for an interface, as the kernel writes it when it has an error.
    pub(crate) fn error(index: u32, errno: i32) -> Vec<u8> {
        let mut message = message(NLMSG_ERROR, 0, index, 0);
        message[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&(-errno).to_ne_bytes());
        message
    }

    /// A message of an interface, as the kernel writes it.
    pub(crate) fn message(kind: u16, family: u8, index: u32, flags: i32) -> Vec<u8> {
        let mut message = question(index).to_vec();
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message[HEADER_BYTES] = family;
        message[HEADER_BYTES + 8..HEADER_BYTES + 12].copy_from_slice(&flags.to_ne_bytes());
        message
    }

    /// What these messages say, as [`read`] hands it on.
    pub(crate) fn hear(messages: &[Vec<u8>], mut take: impl FnMut(u32, Told<'_>)) {
        for message in super::messages(&messages.concat()) {
            if let Some((index, told)) = told(message) {
                take(index, told);
            }
        }
    }

    pub(crate) const NEW: u16 = RTM_NEWLINK;
    pub(crate) const GONE: u16 = RTM_DELLINK;
}

#[cfg(test)]
mod tests {
    use super::testing::{GONE, NEW, error, hear, message};
    use super::*;

    #[test]
    fn messages_say_of_which_interface_they_are() {
        let up = libc::IFF_UP | libc::IFF_LOWER_UP;
        let mut heard = Vec::new();
        let messages = [
            message(NEW, 0, 3, up),
            message(NEW, 7, 4, 0), // of a bridge
            message(NEW, 0, 5, libc::IFF_UP),
            message(GONE, 0, 6, up),
            error(7, libc::ENODEV),
            error(8, libc::EAGAIN),
            vec![40, 0, 0, 0, 16, 0], // cut
        ];
        hear(&messages, |index, told| {
            heard.push(match told {
                Told::Link(link) => (index, Some((link.is_up(), link.has_carrier()))),
                Told::Gone => (index, None),
            });
        });
        let expected = [
            (3, Some((true, true))),
            (5, Some((true, false))),
            (6, None),
            (7, None),
        ];
        assert_eq!(heard, expected);
    }

    #[test]
    fn an_attribute_is_found_behind_others_and_none_in_noise() {
        let mut attributes = vec![5, 0, 9, 0, b'x', 0, 0, 0];
        attributes.extend([8, 0, 4, 0x80]);
        attributes.extend(1500_u32.to_ne_bytes());
        let link = |attributes| Link {
            flags: 0,
            attributes,
        };
        let mtu = 1500_u32.to_ne_bytes();
        assert_eq!(link(&attributes).attribute(4), Some(&mtu[..]));
        assert_eq!(link(&attributes).attribute(5), None);
        // A length of 0 would go round for ever.
        assert_eq!(link(&[0, 0, 1, 0]).attribute(4), None);
    }
}
