//! What is to change about the subscribers of a ring: one thing after another, while its programs run.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::capture::CaptureError;
use crate::capture::dispatcher::CompiledFilter;
use crate::capture::kept_ring::{Join, KeptRing};
use crate::capture::preparation::Preparation;
use crate::capture::request::Subscription;

use super::limits::User;

type Subscriptions = Vec<(Subscription, CompiledFilter)>;

/// What a connection requests.
pub(super) struct ChangeRequest {
    /// The connection that gets the answer.
    pub connection: Option<u64>,
    what: ChangeKind,
}

enum ChangeKind {
    /// With the bits whose subscriptions these replace; without any, they get free bits.
    Join(User, Subscriptions, Vec<usize>),
    Leave(Vec<usize>),
}

/// A change that can be made.
pub(super) enum Change {
    /// Subscribers come.
    Join(Join, Subscriptions),
    /// Those with these bits leave, whether or not there are programs for the others.
    Leave(Result<Preparation, CaptureError>, Vec<usize>),
}

enum Preparing {
    Join(Join),
    Leave(Result<Preparation, CaptureError>),
}

impl Preparing {
    fn preparation(&self) -> Option<&Preparation> {
        match self {
            Self::Join(join) => Some(&join.preparation),
            Self::Leave(preparation) => preparation.as_ref().ok(),
        }
    }

    fn is_ready(&self) -> bool {
        self.preparation().is_none_or(|preparation| {
            let mut waiting = [PollFd::new(preparation, PollFlags::IN)];
            let ready = poll(&mut waiting, Some(&Timespec::default()));
            matches!(ready, Ok(1..)) || preparation.is_late()
        })
    }
}

/// What is to be done, in this order: requests to leave, joins of trusted users, then one join of each
/// other user, a second one of each, and so on.
#[derive(Default)]
pub(super) struct Changes {
    waiting: VecDeque<ChangeRequest>,
    /// Programs for the first change that waits.
    preparing: Option<Preparing>,
}

impl Changes {
    /// Subscriptions are to join, or to replace those of the same connection that have these bits.
    pub fn join(
        &mut self,
        connection: u64,
        user: User,
        subscriptions: Subscriptions,
        replaced: Vec<usize>,
    ) {
        let round = self.joins_of(user);
        let mut before: HashMap<u32, usize> = HashMap::new();
        // The change in preparation stays first.
        let first = usize::from(self.preparing.is_some());
        let mut place = self.waiting.len();
        for (index, request) in self.waiting.iter().enumerate() {
            let ChangeKind::Join(other, ..) = &request.what else {
                continue;
            };
            let earlier = before.entry(other.id).or_default();
            let goes_first = match (user.is_trusted, other.is_trusted) {
                (true, false) => true,
                (false, false) => *earlier > round,
                (_, true) => false,
            };
            *earlier += 1;
            if goes_first && index >= first {
                place = index;
                break;
            }
        }
        let request = ChangeRequest {
            connection: Some(connection),
            what: ChangeKind::Join(user, subscriptions, replaced),
        };
        self.waiting.insert(place, request);
    }

    /// Number of subscriptions of a user that wait.
    pub fn joins_of(&self, user: User) -> usize {
        let waiting = self.waiting_subscriptions();
        waiting.filter(|(other, _)| *other == user).count()
    }

    /// Whose subscriptions wait, and how many.
    pub fn waiting_subscriptions(&self) -> impl Iterator<Item = (User, usize)> {
        self.waiting
            .iter()
            .filter_map(|request| match &request.what {
                // Those that replace others are counted with these.
                ChangeKind::Join(user, subscriptions, replaced) => {
                    Some((*user, subscriptions.len() - replaced.len()))
                }
                ChangeKind::Leave(_) => None,
            })
    }

    /// Subscriptions leave, or their connection has closed.
    pub fn leave(&mut self, connection: Option<u64>, bits: Vec<usize>) {
        let joins = |request: &ChangeRequest| matches!(request.what, ChangeKind::Join(..));
        let place = self.waiting.iter().position(joins);
        let place = place.unwrap_or(self.waiting.len());
        if place == 0 {
            // The preparation starts again, without them.
            self.preparing = None;
        }
        self.waiting.insert(
            place,
            ChangeRequest {
                connection,
                what: ChangeKind::Leave(bits),
            },
        );
    }

    /// A connection has ended: its waiting requests are dropped.
    pub fn forget(&mut self, connection: u64) {
        let is_its_join = |request: &ChangeRequest| {
            request.connection == Some(connection) && matches!(request.what, ChangeKind::Join(..))
        };
        if self.waiting.front().is_some_and(is_its_join) {
            self.preparing = None;
        }
        self.waiting.retain(|request| !is_its_join(request));
    }

    /// Whether a connection has a join that waits.
    pub fn has_join_of(&self, connection: u64) -> bool {
        let mut waiting = self.waiting.iter();
        waiting.any(|request| {
            request.connection == Some(connection) && matches!(request.what, ChangeKind::Join(..))
        })
    }

    /// What says when the next change can be made.
    pub fn preparation(&self) -> Option<BorrowedFd<'_>> {
        let preparation = self.preparing.as_ref()?.preparation()?;
        Some(preparation.as_fd())
    }

    /// The next change that can be made, or why it cannot; `None` when there is none yet.
    pub fn next(
        &mut self,
        ring: &KeptRing,
    ) -> Option<(ChangeRequest, Result<Change, CaptureError>)> {
        let first = self.waiting.front()?;
        let preparing = match self.preparing.take() {
            Some(preparing) => preparing,
            None => match &first.what {
                ChangeKind::Join(_, subscriptions, replaced) => {
                    match ring.prepare_join(subscriptions, replaced) {
                        Ok(join) => Preparing::Join(join),
                        Err(error) => return Some((self.waiting.pop_front()?, Err(error))),
                    }
                }
                ChangeKind::Leave(bits) => Preparing::Leave(ring.prepare_leave(bits)),
            },
        };
        if !preparing.is_ready() {
            self.preparing = Some(preparing);
            return None;
        }
        let mut request = self.waiting.pop_front()?;
        let what = std::mem::replace(&mut request.what, ChangeKind::Leave(Vec::new()));
        let change = match (preparing, what) {
            (Preparing::Join(join), ChangeKind::Join(_, subscriptions, _)) => {
                Change::Join(join, subscriptions)
            }
            (Preparing::Leave(preparation), ChangeKind::Leave(bits)) => {
                Change::Leave(preparation, bits)
            }
            _ => unreachable!("what is prepared is the first that waits"),
        };
        Some((request, Ok(change)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_take_turns_and_the_trusted_come_first() {
        let (root, one, two) = (User::new(0, 0), User::new(1, 0), User::new(2, 0));
        let mut changes = Changes::default();
        for (connection, user) in [
            (1, one),
            (2, one),
            (3, one),
            (4, two),
            (5, root),
            (6, two),
            (7, root),
        ] {
            changes.join(connection, user, Vec::new(), Vec::new());
        }
        changes.leave(Some(8), vec![3]);
        let order: Vec<_> = changes
            .waiting
            .iter()
            .filter_map(|request| request.connection)
            .collect();
        assert_eq!(order, [8, 5, 7, 1, 4, 2, 6, 3]);
        assert_eq!((changes.joins_of(one), changes.joins_of(two)), (3, 2));
        changes.forget(2);
        assert!(!changes.has_join_of(2) && changes.has_join_of(3));
    }
}
