//! The two requests of route netlink that the probes need: make a link, make a qdisc.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, socket};

const RTM_NEWLINK: u16 = 16;
const RTM_NEWQDISC: u16 = 36;
const NLMSG_ERROR: u16 = 2;
const HEADER_BYTES: usize = 16;
/// `NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE`.
const FLAGS: u16 = 0x1 | 0x4 | 0x400;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_REPLACE: u16 = 0x100;

const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const TCA_KIND: u16 = 1;
const TC_H_ROOT: u32 = 0xffff_ffff;

/// A route-netlink socket in the network namespace of the thread that opened it.
pub(super) struct RouteSocket(OwnedFd);

impl RouteSocket {
    pub(super) fn open() -> io::Result<Self> {
        let descriptor = socket(
            AddressFamily::NETLINK,
            SocketType::RAW,
            None, // protocol 0 is route netlink
        )?;
        Ok(Self(descriptor))
    }

    /// Makes a link of this kind.
    pub(super) fn make_link(&self, name: &str, kind: &str) -> io::Result<()> {
        let mut message = vec![0u8; 16];
        attribute(&mut message, IFLA_IFNAME, &text(name));
        let mut information = Vec::new();
        attribute(&mut information, IFLA_INFO_KIND, &text(kind));
        attribute(&mut message, IFLA_LINKINFO, &information);
        self.request(RTM_NEWLINK, NLM_F_EXCL, &message)
    }

    /// Puts a root qdisc of this kind, without options, on the interface.
    pub(super) fn make_qdisc(&self, interface_index: u32, kind: &str) -> io::Result<()> {
        let mut message = vec![0u8; 4];
        message.extend(interface_index.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(TC_H_ROOT.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        attribute(&mut message, TCA_KIND, &text(kind));
        self.request(RTM_NEWQDISC, NLM_F_REPLACE, &message)
    }

    fn request(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
        message.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((FLAGS | flags).to_ne_bytes());
        message.extend([0u8; 8]);
        message.extend(body);
        send(&self.0, &message, SendFlags::empty())?;
        let mut answer = [0u8; 4096];
        let (length, _) = recv(&self.0, &mut answer, RecvFlags::empty())?;
        acknowledged(&answer[..length])
    }
}

/// Reads an acknowledgement: its error number is 0 when the request was carried out.
fn acknowledged(answer: &[u8]) -> io::Result<()> {
    let kind = answer
        .get(4..6)
        .map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    let errno = answer
        .get(HEADER_BYTES..HEADER_BYTES + 4)
        .and_then(|bytes| bytes.try_into().ok())
        .map(i32::from_ne_bytes);
    match (kind, errno) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(errno)) => Err(io::Error::from_raw_os_error(-errno)),
        _ => Err(io::Error::other(
            "route netlink answered something else than an acknowledgement",
        )),
    }
}

fn text(value: &str) -> Vec<u8> {
    let mut bytes = value.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// Appends an attribute, padded to a multiple of four bytes.
fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend(((4 + value.len()) as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_but_say_their_own_length() {
        let mut message = Vec::new();
        attribute(&mut message, TCA_KIND, &text("tbf2"));
        assert_eq!(message.len(), 12);
        assert_eq!(u16::from_ne_bytes([message[0], message[1]]), 9);
    }

    #[test]
    fn an_acknowledgement_is_told_from_an_error_and_from_noise() {
        let answer = |errno: i32| {
            let mut bytes = vec![0u8; HEADER_BYTES];
            bytes[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
            bytes.extend(errno.to_ne_bytes());
            bytes
        };
        assert!(acknowledged(&answer(0)).is_ok());
        let error = acknowledged(&answer(-libc::ENOENT)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        assert!(acknowledged(&[]).is_err());
    }
}
