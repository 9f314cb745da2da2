//! What the kernel tells of the interface that sends: whether it is there and up, whether it has its carrier, and what
//! it counted.

use super::GenerateError;
use super::backend::failed;
use super::interface;
use crate::route_netlink::{self, Told, word};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

const IFLA_STATS64: u16 = 23;

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
    history: History,
}

/// What has happened to an interface. It stays, also if the interface is well again: packets have been lost in between.
#[derive(Debug)]
struct History {
    index: u32,
    loss: Option<Loss>,
    has_carrier: bool,
    carrier_losses: u64,
}

impl History {
    fn of(index: u32) -> Self {
        Self {
            index,
            loss: None,
            has_carrier: true,
            carrier_losses: 0,
        }
    }

    fn hear(&mut self, index: u32, told: &Told<'_>) {
        if index != self.index {
            return;
        }
        match told {
            Told::Gone => self.loss = Some(Loss::Gone),
            Told::Link(link) if !link.is_up() => self.loss = self.loss.max(Some(Loss::Down)),
            Told::Link(link) => {
                self.carrier_losses += u64::from(self.has_carrier && !link.has_carrier());
                self.has_carrier = link.has_carrier();
            }
        }
    }
}

/// What became of an interface in the course of a run.
pub(super) struct Fate {
    /// What ended the run, as its error.
    pub error: Option<String>,
    /// How often the carrier was lost, which does not end it: it comes back, as when the other end begins to capture by
    /// XDP and its driver starts anew.
    pub carrier_losses: u64,
}

impl LinkWatch {
    /// Begins to watch an interface of a network namespace.
    pub fn of(name: &str, namespace: Option<&Path>) -> Result<Self, GenerateError> {
        let open = || {
            interface::enter(namespace)?;
            let index = interface::index(name)?;
            let open = || {
                let socket = route_netlink::open_hearing()?;
                // It may have gone down before anybody watched.
                route_netlink::ask(&socket, index)?;
                io::Result::Ok(socket)
            };
            Ok(Self {
                socket: open().map_err(failed("watch the interface"))?,
                name: name.into(),
                history: History::of(index),
            })
        };
        // A socket belongs to the namespace in which it was opened, the calling thread to another.
        std::thread::scope(|scope| scope.spawn(open).join()).map_err(|_| GenerateError::Thread {
            reason: "died; please report this".into(),
        })?
    }

    /// Whether the interface has been down or gone since the beginning.
    pub fn is_lost(&mut self) -> bool {
        let (socket, history) = (&self.socket, &mut self.history);
        // More may have happened than the socket could hold: what counts is how it is now.
        while let Err(Errno::NOBUFS) =
            route_netlink::read(socket, |index, told| history.hear(index, &told))
            && route_netlink::ask(socket, history.index).is_ok()
        {}
        history.loss.is_some()
    }

    /// What has happened to the interface until now.
    pub fn fate(mut self) -> Fate {
        // That an interface is gone is told after it was told to be down; who asks waits until it is.
        let can_tell = route_netlink::ask(&self.socket, self.history.index).is_ok();
        self.is_lost();
        Fate {
            error: self.error().filter(|_| can_tell),
            carrier_losses: self.history.carrier_losses,
        }
    }

    fn error(&self) -> Option<String> {
        let name = &self.name;
        let reason = match self.history.loss? {
            Loss::Down => {
                format!("went down while packets were sent; send again when it stays up: ip link set {name} up")
            }
            Loss::Gone => "was removed while packets were sent, or moved to another network namespace; make it anew, \
                           and send again"
                .into(),
        };
        let error = GenerateError::Interface {
            interface: name.clone(),
            reason,
        };
        Some(error.to_string())
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
        let socket = route_netlink::open(SocketFlags::empty()).ok()?;
        route_netlink::ask(&socket, index).ok()?;
        let mut counters = None;
        route_netlink::read(&socket, |_, told| {
            if let Told::Link(link) = told {
                counters = link.attribute(IFLA_STATS64).and_then(Self::of);
            }
        })
        .ok()?;
        counters
    }

    /// A struct rtnl_link_stats64: received and transmitted packets, bytes, errors, dropped, in turns.
    fn of(statistics: &[u8]) -> Option<Self> {
        let counter = |place: usize| word(statistics, 8 * place).map(u64::from_ne_bytes);
        Some(Self {
            transmitted: counter(1)?,
            errors: counter(5)?,
            dropped: counter(7)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route_netlink::testing::{GONE, NEW, error, hear, message};

    const UP: i32 = libc::IFF_UP | libc::IFF_LOWER_UP;
    const WITHOUT_CARRIER: i32 = libc::IFF_UP;
    const DOWN: i32 = 0;

    /// What of an interface number 3 is known after these messages.
    fn after(messages: &[Vec<u8>]) -> (Option<Loss>, u64) {
        let mut history = History::of(3);
        hear(messages, |index, told| history.hear(index, &told));
        (history.loss, history.carrier_losses)
    }

    #[test]
    fn what_ends_a_run_stays_and_what_does_not_is_counted() {
        let told = |flags| message(NEW, 0, 3, flags);
        assert_eq!(after(&[told(UP), told(UP)]), (None, 0));
        let others = [
            message(NEW, 0, 4, DOWN),
            message(GONE, 0, 5, UP),
            message(NEW, 7, 3, DOWN),
        ];
        assert_eq!(
            after(&others),
            (None, 0),
            "another interface, another one, a bridge's port"
        );
        assert_eq!(
            after(&[told(UP), told(DOWN), told(UP)]),
            (Some(Loss::Down), 0)
        );
        let gone = [told(DOWN), message(GONE, 0, 3, DOWN), told(DOWN)];
        assert_eq!(after(&gone), (Some(Loss::Gone), 0));
        assert_eq!(after(&[error(3, libc::ENODEV)]), (Some(Loss::Gone), 0));
        let flapping = [WITHOUT_CARRIER, WITHOUT_CARRIER, UP, UP, WITHOUT_CARRIER].map(told);
        assert_eq!(after(&flapping), (None, 2));
    }
}
