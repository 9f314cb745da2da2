//! The sending interface: whether it is up, whether it has its carrier, and its counters.

use super::GenerateError;
use super::error::failed;
use super::interface;
use crate::net::interface::InterfaceError;
use crate::net::netlink::{self, LinkEvent};
use std::io;
use std::path::Path;

/// Why an interface sends no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Loss {
    Down,
    Removed,
}

/// Watches an interface for the length of a run.
pub(super) struct LinkWatch {
    watch: netlink::LinkWatch,
    name: String,
    history: History,
}

/// What has happened to an interface. It stays, also if the interface is well again: packets have been lost in between.
#[derive(Debug)]
struct History {
    loss: Option<Loss>,
    has_carrier: bool,
    carrier_losses: u64,
}

impl History {
    fn new() -> Self {
        Self {
            loss: None,
            has_carrier: true,
            carrier_losses: 0,
        }
    }

    fn note(&mut self, event: &LinkEvent) {
        match event {
            LinkEvent::Removed => self.loss = Some(Loss::Removed),
            LinkEvent::State(link) if !link.is_up => self.loss = self.loss.max(Some(Loss::Down)),
            LinkEvent::State(link) => {
                self.carrier_losses += u64::from(self.has_carrier && !link.has_carrier);
                self.has_carrier = link.has_carrier;
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
                let watch = netlink::LinkWatch::open(vec![index])?;
                // It may have gone down before the watch began.
                watch.request()?;
                io::Result::Ok(watch)
            };
            Ok(Self {
                watch: open().map_err(failed("watch the interface"))?,
                name: name.into(),
                history: History::new(),
            })
        };
        // A socket belongs to the namespace in which it was opened, the calling thread to another.
        std::thread::scope(|scope| scope.spawn(open).join()).map_err(|_| GenerateError::Thread {
            reason: "died; please report this".into(),
        })?
    }

    /// Whether the interface has been down or removed since the beginning.
    pub fn is_lost(&mut self) -> bool {
        self.watch.poll(|_, event| self.history.note(&event));
        self.history.loss.is_some()
    }

    /// What has happened to the interface until now.
    pub fn fate(mut self) -> Fate {
        // The kernel reports an interface down before it reports it removed; its answer waits for the removal.
        let is_answered = self.watch.request().is_ok();
        self.is_lost();
        Fate {
            error: self.error().filter(|_| is_answered),
            carrier_losses: self.history.carrier_losses,
        }
    }

    fn error(&self) -> Option<String> {
        let name = &self.name;
        let reason = match self.history.loss? {
            Loss::Down => {
                format!("went down while packets were sent; send again when it stays up: ip link set {name} up")
            }
            Loss::Removed => "was removed while packets were sent, or moved to another network namespace; make it anew, \
                           and send again"
                .to_owned(),
        };
        Some(InterfaceError::new(name, reason).to_string())
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
    /// Of an interface in the namespace of the calling thread; None if it is removed, or the kernel
    /// does not report them.
    pub fn read(index: u32) -> Option<Self> {
        let counters = netlink::link(index).ok()?.counters?;
        Some(Self {
            transmitted: counters.tx_packets,
            errors: counters.tx_errors,
            dropped: counters.tx_dropped,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::netlink::testing::{error, hear, removed, state};

    const UP: i32 = libc::IFF_UP | libc::IFF_LOWER_UP;
    const WITHOUT_CARRIER: i32 = libc::IFF_UP;
    const DOWN: i32 = 0;

    /// What is known of an interface after these messages.
    fn after(messages: &[Vec<u8>]) -> (Option<Loss>, u64) {
        let mut history = History::new();
        hear(messages, |_, event| history.note(&event));
        (history.loss, history.carrier_losses)
    }

    #[test]
    fn a_failed_interface_stays_failed_and_carrier_losses_are_counted() {
        let state_of = |flags| state(0, 3, flags);
        assert_eq!(after(&[state_of(UP), state_of(UP)]), (None, 0));
        assert_eq!(after(&[state(7, 3, DOWN)]), (None, 0), "a bridge's port");
        assert_eq!(
            after(&[state_of(UP), state_of(DOWN), state_of(UP)]),
            (Some(Loss::Down), 0)
        );
        let gone = [state_of(DOWN), removed(3), state_of(DOWN)];
        assert_eq!(after(&gone), (Some(Loss::Removed), 0));
        assert_eq!(after(&[error(3, libc::ENODEV)]), (Some(Loss::Removed), 0));
        let flapping = [WITHOUT_CARRIER, WITHOUT_CARRIER, UP, UP, WITHOUT_CARRIER].map(state_of);
        assert_eq!(after(&flapping), (None, 2));
    }
}
