//! Route netlink: the state of interfaces, and their changes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_packet_core::{
    Emitable as _, ErrorBuffer, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_EXCL,
    NLM_F_REPLACE, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NetlinkMessage,
    NlasIterator, ParseableParametrized as _,
};
use netlink_packet_route::link::{
    InfoKind, LinkAttribute, LinkFlags, LinkHeader, LinkInfo, LinkMessage, State, Stats64,
};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcHeader, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};

/// What the kernel puts into one datagram is shorter.
const DATAGRAM_BYTES: usize = 32 << 10;
/// How often a dump that changes interrupt is asked for.
const DUMPS: u32 = 20;

/// The kernel's state of an interface.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// Its name, which may change.
    pub name: Option<String>,
    /// Its `ARPHRD_...` of `linux/if_arp.h`.
    pub hardware_type: u16,
    /// Whether its administrator has it up.
    pub is_up: bool,
    /// Whether it has its carrier.
    pub has_carrier: bool,
    /// Its MTU.
    pub mtu_bytes: Option<u32>,
    /// What it has counted since it was made.
    pub counters: Option<Box<Stats64>>,
}

/// A message about an interface.
#[derive(Clone, Debug)]
pub(crate) enum LinkEvent {
    /// It exists, and this is its state.
    State(Link),
    /// It does not exist any more.
    Removed,
}

/// Asks for the state of an interface of the calling thread's network namespace.
///
/// # Errors
/// `ENODEV` when there is no such interface.
pub(crate) fn link(index: u32) -> io::Result<Link> {
    let socket = RouteSocket::open()?;
    socket.request_link(index)?;
    let mut event = None;
    socket.receive(|_, received| event = Some(received))?;
    match event {
        Some(LinkEvent::State(link)) => Ok(link),
        _ => Err(Errno::NODEV.into()),
    }
}

/// An interface as the record of a measurement describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSummary {
    /// Its name.
    pub name: String,
    /// Its MTU.
    pub mtu_bytes: Option<u32>,
    /// Its kind, such as `veth`; `None` for hardware.
    pub kind: Option<String>,
    /// Its operational state of RFC 2863, as `ip link` writes it, in small letters: `up`, `lowerlayerdown`.
    pub state: String,
}

/// A queue discipline as the record of a measurement describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QdiscSummary {
    /// The number of its interface.
    pub interface_index: u32,
    /// Its kind, such as `fq_codel`.
    pub kind: String,
    /// The handle of its parent; 0xffffffff for the root.
    pub parent: u32,
}

/// The interfaces of the calling thread's network namespace.
pub fn links() -> io::Result<Vec<LinkSummary>> {
    RouteSocket::open()?.dump(
        RouteNetlinkMessage::GetLink(LinkMessage::default()),
        libc::RTM_NEWLINK,
        link_summary,
    )
}

/// The queue disciplines of the calling thread's network namespace.
pub fn qdiscs() -> io::Result<Vec<QdiscSummary>> {
    RouteSocket::open()?.dump(
        RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default()),
        libc::RTM_NEWQDISC,
        qdisc_summary,
    )
}

fn link_summary(payload: &[u8]) -> Option<LinkSummary> {
    let header = LinkHeader::parse(payload).ok()?;
    let (mut name, mut mtu_bytes, mut kind, mut state) = (None, None, None, State::Unknown);
    for attribute in NlasIterator::new(payload.get(header.buffer_len()..)?).map_while(Result::ok) {
        if attribute.kind() == libc::IFLA_LINKINFO {
            kind = text_of(attribute.value(), libc::IFLA_INFO_KIND);
            continue;
        }
        if !matches!(
            attribute.kind(),
            libc::IFLA_IFNAME | libc::IFLA_MTU | libc::IFLA_OPERSTATE
        ) {
            continue;
        }
        match LinkAttribute::parse_with_param(&attribute, header.interface_family) {
            Ok(LinkAttribute::IfName(found)) => name = Some(found),
            Ok(LinkAttribute::Mtu(found)) => mtu_bytes = Some(found),
            Ok(LinkAttribute::OperState(found)) => state = found,
            _ => {}
        }
    }
    Some(LinkSummary {
        name: name?,
        mtu_bytes,
        kind,
        state: format!("{state:?}").to_lowercase(),
    })
}

fn qdisc_summary(payload: &[u8]) -> Option<QdiscSummary> {
    let header = TcHeader::parse(payload).ok()?;
    Some(QdiscSummary {
        interface_index: header.index as u32,
        kind: text_of(payload.get(header.buffer_len()..)?, libc::TCA_KIND)?,
        parent: header.parent.into(),
    })
}

/// The text of the attribute of a kind, which ends with a zero.
fn text_of(attributes: &[u8], kind: u16) -> Option<String> {
    let attribute = NlasIterator::new(attributes)
        .map_while(Result::ok)
        .find(|attribute| attribute.kind() == kind)?;
    let text = attribute.value().split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// A socket of the network namespace in which it was opened.
pub(crate) struct RouteSocket(OwnedFd);

impl RouteSocket {
    /// Opens a socket that gets the answers to its requests.
    pub fn open() -> io::Result<Self> {
        Ok(Self(socket_with(
            rustix::net::AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None, // protocol 0 is route netlink
        )?))
    }

    /// Requests the state of an interface. The answer can be received when this returns.
    pub fn request_link(&self, index: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        // An error repeats the sequence number, and so names the interface that does not exist.
        self.send(NLM_F_REQUEST, index, RouteNetlinkMessage::GetLink(message))
    }

    /// Receives what waits; `take` gets the index of an interface and the message about it.
    ///
    /// # Errors
    /// `ENOBUFS` when more has happened than the socket could hold. Then the missing state must be
    /// requested, and receiving goes on.
    pub fn receive(&self, mut take: impl FnMut(u32, LinkEvent)) -> Result<(), Errno> {
        let mut datagram = [0; DATAGRAM_BYTES];
        loop {
            match recv(&self.0, &mut datagram[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => events(&datagram[..length], &mut take),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Makes an interface of a kind.
    pub fn make_link(&self, name: &str, kind: &str) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.into()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Other(kind.into()))]),
        ];
        self.change(NLM_F_EXCL, RouteNetlinkMessage::NewLink(message))
    }

    /// Puts a root queue discipline of a kind, without options, on an interface.
    pub fn make_qdisc(&self, interface_index: u32, kind: &str) -> io::Result<()> {
        let mut message = TcMessage::with_index(interface_index as i32);
        message.header.parent = TcHandle::ROOT;
        message.attributes = vec![TcAttribute::Kind(kind.into())];
        self.change(
            NLM_F_REPLACE,
            RouteNetlinkMessage::NewQueueDiscipline(message),
        )
    }

    /// Requests all objects of a kind, and collects what `summary` makes of the answers of a type.
    fn dump<T>(
        &self,
        request: RouteNetlinkMessage,
        answer_type: u16,
        summary: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        // What changes meanwhile may be missing or be there twice; the kernel says so, and is asked again.
        for _ in 0..DUMPS {
            let (mut found, mut is_consistent, mut is_done) = (Vec::new(), true, false);
            self.send(NLM_F_REQUEST | NLM_F_DUMP, 0, request.clone())?;
            while !is_done {
                let mut datagram = [0; DATAGRAM_BYTES];
                let (length, _) = recv(&self.0, &mut datagram[..], RecvFlags::empty())?;
                for message in messages(&datagram[..length]) {
                    is_consistent &= message.flags() & NLM_F_DUMP_INTR == 0;
                    match message.message_type() {
                        NLMSG_DONE => is_done = true,
                        NLMSG_ERROR => return Err(error_of(&message)),
                        kind if kind == answer_type => found.extend(summary(message.payload())),
                        _ => {}
                    }
                }
            }
            if is_consistent {
                return Ok(found);
            }
        }
        Err(io::Error::other(format!(
            "the interfaces changed in each of {DUMPS} dumps of route netlink"
        )))
    }

    fn change(&self, flags: u16, message: RouteNetlinkMessage) -> io::Result<()> {
        self.send(NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | flags, 0, message)?;
        let mut datagram = [0; DATAGRAM_BYTES];
        let (length, _) = recv(&self.0, &mut datagram[..], RecvFlags::empty())?;
        acknowledgement(&datagram[..length])
    }

    fn send(&self, flags: u16, sequence: u32, message: RouteNetlinkMessage) -> io::Result<()> {
        send(
            &self.0,
            &serialize(flags, sequence, message),
            SendFlags::empty(),
        )?;
        Ok(())
    }
}

fn serialize(flags: u16, sequence: u32, message: RouteNetlinkMessage) -> Vec<u8> {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = flags;
    message.header.sequence_number = sequence;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Watches interfaces of the network namespace in which it was opened.
pub(crate) struct LinkWatch {
    socket: RouteSocket,
    indexes: Vec<u32>,
}

impl LinkWatch {
    /// Begins to watch interfaces.
    pub fn open(indexes: Vec<u32>) -> io::Result<Self> {
        let socket = RouteSocket::open()?;
        bind(
            &socket.0,
            &SocketAddrNetlink::new(0, libc::RTMGRP_LINK as u32),
        )?;
        Ok(Self { socket, indexes })
    }

    /// Requests the state of the interfaces: [`LinkWatch::poll`] reports it as if it had changed.
    pub fn request(&self) -> io::Result<()> {
        self.indexes
            .iter()
            .try_for_each(|index| self.socket.request_link(*index))
    }

    /// Reports what has happened to the interfaces since the last call.
    pub fn poll(&self, mut take: impl FnMut(u32, LinkEvent)) {
        let mut receive = || {
            self.socket.receive(|index, event| {
                if self.indexes.contains(&index) {
                    take(index, event);
                }
            }) == Err(Errno::NOBUFS)
        };
        let mut has_missed = receive();
        while has_missed {
            // What counts is the state. One request after the other, since the socket holds few answers.
            while receive() {}
            has_missed = false;
            for index in &self.indexes {
                has_missed |= self.socket.request_link(*index).is_ok() && receive();
            }
        }
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.0.as_fd()
    }
}

/// The messages about interfaces in a datagram.
fn events(bytes: &[u8], take: &mut impl FnMut(u32, LinkEvent)) {
    for message in messages(bytes) {
        if let Some((index, event)) = event(&message) {
            take(index, event);
        }
    }
}

/// The messages in a datagram, up to one that is cut.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkBuffer<&[u8]>> {
    std::iter::from_fn(move || {
        let message = NetlinkBuffer::new_checked(bytes).ok()?;
        let length = message.length() as usize;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

fn event(message: &NetlinkBuffer<&[u8]>) -> Option<(u32, LinkEvent)> {
    let payload = message.payload();
    if message.message_type() == NLMSG_ERROR {
        let code = ErrorBuffer::new_checked(payload).ok()?.code()?.get();
        return (code == -libc::ENODEV).then_some((message.sequence_number(), LinkEvent::Removed));
    }
    let header = LinkHeader::parse(payload).ok()?;
    // A bridge reports its ports by the same messages, of another family.
    if header.interface_family != AddressFamily::Unspec {
        return None;
    }
    match message.message_type() {
        libc::RTM_DELLINK => Some((header.index, LinkEvent::Removed)),
        libc::RTM_NEWLINK => {
            let attributes = payload.get(header.buffer_len()..)?;
            Some((
                header.index,
                LinkEvent::State(Link::of(&header, attributes)),
            ))
        }
        _ => None,
    }
}

impl Link {
    fn of(header: &LinkHeader, attributes: &[u8]) -> Self {
        let mut link = Self {
            name: None,
            hardware_type: header.link_layer_type.into(),
            is_up: header.flags.contains(LinkFlags::Up),
            has_carrier: header.flags.contains(LinkFlags::LowerUp),
            mtu_bytes: None,
            counters: None,
        };
        // Only what is needed is decoded: an attribute of a newer kernel must not spoil the message.
        for attribute in NlasIterator::new(attributes).map_while(Result::ok) {
            if !matches!(
                attribute.kind(),
                libc::IFLA_IFNAME | libc::IFLA_MTU | libc::IFLA_STATS64
            ) {
                continue;
            }
            match LinkAttribute::parse_with_param(&attribute, header.interface_family) {
                Ok(LinkAttribute::IfName(name)) => link.name = Some(name),
                Ok(LinkAttribute::Mtu(mtu_bytes)) => link.mtu_bytes = Some(mtu_bytes),
                Ok(LinkAttribute::Stats64(counters)) => link.counters = Some(Box::new(counters)),
                _ => {}
            }
        }
        link
    }
}

/// Reads an acknowledgement: its error number is 0 when the request was carried out.
fn acknowledgement(datagram: &[u8]) -> io::Result<()> {
    let answer = messages(datagram)
        .next()
        .filter(|message| message.message_type() == NLMSG_ERROR)
        .and_then(|message| error_number(&message));
    match answer {
        Some(0) => Ok(()),
        Some(number) => Err(io::Error::from_raw_os_error(number)),
        None => Err(io::Error::other(
            "route netlink answered something else than an acknowledgement",
        )),
    }
}

fn error_of(message: &NetlinkBuffer<&[u8]>) -> io::Error {
    error_number(message).map_or_else(
        || io::Error::other("route netlink answered an error without a number"),
        io::Error::from_raw_os_error,
    )
}

fn error_number(message: &NetlinkBuffer<&[u8]>) -> Option<i32> {
    let error = ErrorBuffer::new_checked(message.payload()).ok()?;
    Some(error.code().map_or(0, |code| -code.get()))
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// The answer to a request for an interface, as the kernel writes it when it has an error.
    pub(crate) fn error(index: u32, errno: i32) -> Vec<u8> {
        let mut bytes = serialize(
            0,
            index,
            RouteNetlinkMessage::GetLink(LinkMessage::default()),
        );
        bytes[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        bytes[16..20].copy_from_slice(&(-errno).to_ne_bytes());
        bytes
    }

    /// A message with the state of an interface, as the kernel writes it.
    pub(crate) fn state(family: u8, index: u32, flags: i32) -> Vec<u8> {
        serialize(
            0,
            0,
            RouteNetlinkMessage::NewLink(link(family, index, flags)),
        )
    }

    /// A message that an interface was removed, as the kernel writes it.
    pub(crate) fn removed(index: u32) -> Vec<u8> {
        serialize(0, 0, RouteNetlinkMessage::DelLink(link(0, index, 0)))
    }

    fn link(family: u8, index: u32, flags: i32) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.interface_family = family.into();
        message.header.index = index;
        message.header.flags = LinkFlags::from_bits_retain(flags as u32);
        message.attributes = vec![
            LinkAttribute::IfName("eth0".into()),
            LinkAttribute::Mtu(1500),
        ];
        message
    }

    /// The content of these messages, as [`RouteSocket::receive`] hands it on.
    pub(crate) fn hear(messages: &[Vec<u8>], mut take: impl FnMut(u32, LinkEvent)) {
        events(&messages.concat(), &mut take);
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{error, hear, removed, state};
    use super::*;

    #[test]
    fn messages_say_of_which_interface_they_are() {
        let up = libc::IFF_UP | libc::IFF_LOWER_UP;
        let mut heard = Vec::new();
        let messages = [
            state(0, 3, up),
            state(7, 4, 0), // of a bridge
            state(0, 5, libc::IFF_UP),
            removed(6),
            error(7, libc::ENODEV),
            error(8, libc::EAGAIN),
            vec![40, 0, 0, 0, 16, 0], // cut
        ];
        hear(&messages, |index, event| {
            heard.push(match event {
                LinkEvent::State(link) => {
                    assert_eq!(link.mtu_bytes, Some(1500));
                    assert_eq!(link.name.as_deref(), Some("eth0"));
                    (index, Some((link.is_up, link.has_carrier)))
                }
                LinkEvent::Removed => (index, None),
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
        let mtu_bytes = |attributes: &[u8]| Link::of(&LinkHeader::default(), attributes).mtu_bytes;
        assert_eq!(mtu_bytes(&attributes), Some(1500));
        assert_eq!(mtu_bytes(&attributes[..8]), None);
        // A length of 0 would go round for ever.
        assert_eq!(mtu_bytes(&[0, 0, 4, 0]), None);
    }

    #[test]
    fn an_acknowledgement_is_no_error_and_no_noise() {
        assert!(acknowledgement(&error(0, 0)).is_ok());
        let refused = acknowledgement(&error(0, libc::ENOENT)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOENT));
        assert!(acknowledgement(&state(0, 3, 0)).is_err());
        assert!(acknowledgement(&[]).is_err());
    }

    #[test]
    fn noise_is_no_summary() {
        for length in 0..64 {
            let noise = vec![0xa5; length];
            assert_eq!(link_summary(&noise), None);
            assert_eq!(qdisc_summary(&noise), None);
        }
    }

    #[test]
    fn the_loopback_interface_is_known_and_another_is_not() {
        assert_eq!(
            link(1).unwrap().hardware_type,
            libc::ARPHRD_LOOPBACK,
            "every namespace has it as number 1"
        );
        let absent = link(i32::MAX as u32).unwrap_err();
        assert_eq!(absent.raw_os_error(), Some(libc::ENODEV));
    }
}
