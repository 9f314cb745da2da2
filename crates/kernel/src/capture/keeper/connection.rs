//! A connection to a keeper: what it holds of the ring, and whether it still may.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::limits::{IDLE_MAX, MESSAGE_OF_A_MEMBER_MAX_BYTES, UNSUBSCRIBED_MAX, User};
use super::message::{Answer, Request};
use crate::capture::CaptureError;
use crate::capture::kept_ring::Start;
use crate::session::InstrumentError as _;

/// Who is connected.
pub(super) struct Connection {
    /// Never used twice.
    pub number: u64,
    /// Its socket.
    pub channel: Channel,
    /// Whose it is.
    pub user: User,
    /// When it connected, finished its last request, or began the incomplete one.
    pub since: Instant,
    /// It reads the ring or is about to.
    pub is_member: bool,
    pub reader_slot: Option<usize>,
    pub bits: Vec<usize>,
    /// From where it reads, while its first programs are installed.
    pub starts: Vec<Start>,
    /// It closed, or cannot be reached.
    pub is_over: bool,
}

impl Connection {
    /// One that has sent no message yet.
    pub fn new(number: u64, mut channel: Channel, user: User) -> Self {
        if !user.is_trusted {
            channel.accept_at_most(MESSAGE_OF_A_MEMBER_MAX_BYTES);
        }
        Self {
            number,
            channel,
            user,
            since: Instant::now(),
            is_member: false,
            reader_slot: None,
            bits: Vec::new(),
            starts: Vec::new(),
            is_over: false,
        }
    }

    /// Bytes of an incomplete message, for a user who is not trusted.
    pub fn unfinished_bytes(&self) -> usize {
        if self.user.is_trusted {
            0
        } else {
            self.channel.unfinished_bytes()
        }
    }

    /// It has taken too long to join, to finish a message, or, when it is not trusted, to subscribe.
    pub fn is_idle(&self, waits_for_programs: bool) -> bool {
        let waits_for_us = !self.bits.is_empty() || waits_for_programs;
        let patience = if !self.is_member || self.channel.unfinished_bytes() > 0 {
            IDLE_MAX
        } else if !self.user.is_trusted && !waits_for_us {
            UNSUBSCRIBED_MAX
        } else {
            return false;
        };
        self.since.elapsed() > patience
    }

    /// Its request, once complete. A connection that violates the protocol ends.
    pub fn request(&mut self) -> Option<Request> {
        let had_begun = self.channel.unfinished_bytes() > 0;
        let received = self.channel.receive(Duration::ZERO);
        match self.channel.flush().and(received) {
            Ok((request, _)) => {
                self.since = Instant::now();
                return Some(request);
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                // A connection that has not joined has this time in all.
                if self.is_member && !had_begun && self.channel.unfinished_bytes() > 0 {
                    self.since = Instant::now();
                }
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::InvalidData {
                    self.refuse(&CaptureError::keeper(
                        "that is no request, or one that is too long",
                    ));
                }
                // Or it has closed.
                self.is_over = true;
            }
        }
        None
    }

    /// Answers, as far as there is room, and never waits.
    pub fn reply(&mut self, answer: &Answer, descriptors: Vec<OwnedFd>) {
        self.is_over |= self.channel.queue(answer, descriptors).is_err();
    }

    /// Sends the reason why something was not done.
    pub fn refuse(&mut self, error: &CaptureError) {
        self.reply(&refusal(error), Vec::new());
    }
}

/// The answer to a request that cannot be met.
pub(super) fn refusal(error: &CaptureError) -> Answer {
    Answer::Refused {
        message: error.to_string(),
        is_usage: error.is_usage(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that began so many seconds ago.
    fn of(user: User, age_s: u64) -> Connection {
        let (socket, _) = Channel::sockets().unwrap();
        let mut made = Connection::new(1, Channel::new(socket), user);
        made.since = Instant::now()
            .checked_sub(Duration::from_secs(age_s))
            .unwrap();
        made
    }

    #[test]
    fn a_connection_without_subscriptions_times_out() {
        let (root, member) = (User::new(0, 0), User::new(1000, 0));
        for user in [root, member] {
            assert!(!of(user, 9).is_idle(false) && of(user, 11).is_idle(false));
        }
        for (user, age_s, waits, is_idle) in [
            (member, 119, false, false),
            (member, 121, false, true),
            (member, 121, true, false),
            (root, 3600, false, false),
        ] {
            let mut joined = of(user, age_s);
            joined.is_member = true;
            assert_eq!(joined.is_idle(waits), is_idle, "{user:?} after {age_s} s");
            joined.bits.push(3);
            assert!(!joined.is_idle(waits));
        }
    }

    #[test]
    fn a_connection_that_sends_requests_is_not_idle() {
        let (socket, other) = Channel::sockets().unwrap();
        let mut made = Connection::new(1, Channel::new(socket), User::new(1000, 0));
        made.is_member = true;
        made.since = Instant::now()
            .checked_sub(Duration::from_secs(3600))
            .unwrap();
        Channel::new(other).send(&Request::Leave, &[]).unwrap();
        assert!(made.is_idle(false));
        assert!(matches!(made.request(), Some(Request::Leave)));
        assert!(!made.is_idle(false));
    }
}
