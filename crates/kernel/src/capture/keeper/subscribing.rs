//! How subscribers come, change and leave: who may, and what becomes of the changes once their programs are there.

use super::changes::{ChangeKind, ChangeRequest, Step};
use super::limits::{self, User, WAITING_OF_A_MEMBER_MAX};
use super::message::{Answer, Left};
use super::{Keeper, Reply};
use crate::capture::CaptureError;
use crate::capture::dispatcher::CompiledFilter;
use crate::capture::request::Subscription;

impl Keeper {
    pub(super) fn may_subscribe(&self, number: usize, asked: usize) -> Result<(), CaptureError> {
        let connection = &self.connections[number];
        let is_waiting = self.changes.has_join_of(connection.number);
        if !connection.is_member || !connection.bits.is_empty() || is_waiting {
            return Err(CaptureError::keeper("join first, and subscribe once"));
        }
        let user = connection.user;
        let subscribed = self
            .connections
            .iter()
            .map(|one| (one.user, one.bits.len()));
        limits::may_subscribe(
            user,
            asked,
            subscribed.chain(self.changes.waiting_subscriptions()),
        )
        .map_err(|reason| self.full(reason))
    }

    pub(super) fn may_wait(&self, user: User) -> Result<(), CaptureError> {
        if !user.is_trusted && self.changes.joins_of(user) >= WAITING_OF_A_MEMBER_MAX {
            let reason = format!(
                "{WAITING_OF_A_MEMBER_MAX} requests of user {} wait already; try again soon",
                user.id
            );
            return Err(self.full(reason));
        }
        Ok(())
    }

    /// Adds subscribers that get every packet, until their filters are merged.
    pub(super) fn subscribe_at_once(
        &mut self,
        number: usize,
        subscriptions: Vec<(Subscription, CompiledFilter)>,
        is_immediate: bool,
    ) -> Result<Reply, CaptureError> {
        self.enter(number);
        match self.ring.add(subscriptions, self.changes.reserved_bits()) {
            Ok((bits, starts)) => {
                let connection = &mut self.connections[number];
                connection.bits.clone_from(&bits);
                self.changes
                    .merge(connection.number, connection.user, bits.clone());
                let user = connection.user.id;
                // A kernel without them has the subscriber poll.
                let bell = match bits[..] {
                    [bit] if is_immediate => self.ring.wake(bit, user).ok(),
                    _ => None,
                };
                let answer = Answer::Subscribed { bits, starts };
                Ok(Reply::Beside(answer, bell.into_iter().collect()))
            }
            Err(error) => {
                self.withdraw(number);
                Err(error)
            }
        }
    }

    /// Under slow-reader preference: from now on no record may be overwritten that a connection has not read.
    fn enter(&self, number: usize) {
        if let Some(slot) = self.connections[number].reader_slot {
            let positions = self.ring.positions();
            for (readers, position) in self.ring.readers.iter().zip(positions) {
                readers.enter(slot, position);
            }
        }
    }

    fn withdraw(&self, number: usize) {
        if let Some(slot) = self.connections[number].reader_slot {
            self.ring.readers.iter().for_each(|one| one.leave(slot));
        }
    }

    fn number_of(&self, connection: Option<u64>) -> Option<usize> {
        let mut connections = self.connections.iter();
        connections.position(|one| Some(one.number) == connection)
    }

    /// Applies the changes whose programs are ready, and starts to prepare the next ones.
    pub(super) fn make_changes(&mut self) {
        while let Some(step) = self.changes.next(&self.ring) {
            match step {
                Step::Install(programs) => {
                    self.let_in();
                    let installed = self.ring.install(programs);
                    self.changes.installed(installed);
                }
                Step::Made {
                    requests,
                    installed,
                    must_wait,
                } => {
                    let waited = match must_wait {
                        true => self.ring.wait(),
                        false => Ok(()),
                    };
                    // The counts of the replaced programs are added even after a failure: nothing else has them.
                    let result = waited.and(self.ring.rest()).and(installed);
                    if result.is_ok() {
                        self.ring.forget_stale_bits();
                    }
                    for request in requests {
                        self.complete(request, result.as_ref().err());
                    }
                }
                Step::Failed(requests, error) => {
                    for request in requests {
                        self.fail(request, &error);
                    }
                }
            }
        }
    }

    /// Makes subscribers of those whose programs are about to be installed.
    fn let_in(&mut self) {
        let mut joining = Vec::new();
        for request in self.changes.being_made() {
            if let ChangeKind::Join {
                subscriptions,
                bits,
                ..
            } = &mut request.what
            {
                let subscriptions = std::mem::take(subscriptions);
                joining.push((request.connection, bits.clone(), subscriptions));
            }
        }
        for (connection, bits, subscriptions) in joining {
            // Before the programs serve the new readers: from then on no record of theirs may be overwritten.
            let number = self.number_of(connection);
            number.into_iter().for_each(|number| self.enter(number));
            let starts = self.ring.join(&bits, subscriptions);
            if let Some(number) = number {
                self.connections[number].starts = starts;
            }
        }
    }

    /// Answers a request whose programs run, or could not be installed.
    fn complete(&mut self, request: ChangeRequest, failure: Option<&CaptureError>) {
        let ChangeRequest { connection, what } = request;
        let number = self.number_of(connection);
        match (what, failure) {
            (ChangeKind::Join { bits, .. }, None) => match number {
                Some(number) => {
                    let starts = std::mem::take(&mut self.connections[number].starts);
                    self.connections[number].bits.clone_from(&bits);
                    let answer = Answer::Subscribed { bits, starts };
                    self.reply(number, Ok(Reply::Plain(answer)));
                }
                None => self.changes.leave(None, bits),
            },
            (ChangeKind::Join { bits, .. }, Some(error)) => {
                self.ring.remove(&bits, false);
                if let Some(number) = number {
                    self.withdraw(number);
                    self.connections[number].refuse(error);
                }
            }
            (ChangeKind::Merge { bits, changes, .. }, None) => {
                // If they changed meanwhile, another request waits.
                if changes == self.ring.changes(&bits)
                    && let Some(number) = number
                    && self.connections[number].bits == bits
                {
                    self.ring.mark_merged(&bits);
                    if !self.ring.have_everything(&bits)
                        && let Some(changes) = changes.first().copied()
                    {
                        self.connections[number].reply(&Answer::Merged { changes }, Vec::new());
                    }
                }
            }
            // They get every packet as before.
            (ChangeKind::Merge { .. }, Some(_)) => {}
            (ChangeKind::Leave(bits), failure) => {
                let counts = self.ring.remove(&bits, failure.is_none());
                let Some(number) = number else { return };
                match failure {
                    None => {
                        let left = Left {
                            counts,
                            run_times: self.ring.run_times(),
                            ends: self.ring.positions(),
                        };
                        self.reply(number, Ok(Reply::Plain(Answer::Left(left))));
                    }
                    Some(error) => self.connections[number].refuse(error),
                }
            }
        }
    }

    /// Answers a request for which there are no programs.
    fn fail(&mut self, request: ChangeRequest, error: &CaptureError) {
        match request.what {
            ChangeKind::Join { .. } => {
                if let Some(number) = self.number_of(request.connection) {
                    self.connections[number].refuse(error);
                }
            }
            ChangeKind::Merge { user, bits, .. } => {
                if !self.ring.have_everything(&bits)
                    && let Some(connection) = request.connection
                {
                    self.ring.give_everything(&bits);
                    self.changes.merge(connection, user, bits);
                }
            }
            ChangeKind::Leave(_) => self.complete(request, Some(error)),
        }
    }
}
