//! What is to change about the subscribers of a ring: requests that wait are made together, in one set of programs, while
//! the present programs run.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::capture::CaptureError;
use crate::capture::dispatcher::CompiledFilter;
use crate::capture::generation::Generation;
use crate::capture::kept_ring::{Joining, KeptRing};
use crate::capture::preparation::Preparation;
use crate::capture::request::Subscription;

use super::limits::User;

type Subscriptions = Vec<(Subscription, CompiledFilter)>;

/// How long a filter that its subscriber applies meanwhile waits for others: a program sets its filter just after it
/// opened the capture, and many programs may start together.
const MERGE_DELAY: Duration = Duration::from_millis(10);

/// What a connection requests.
pub(super) struct ChangeRequest {
    /// The connection that gets the answer.
    pub connection: Option<u64>,
    pub what: ChangeKind,
}

pub(super) enum ChangeKind {
    /// Subscribers come when there are programs for them.
    Join {
        user: User,
        subscriptions: Subscriptions,
        /// Their bits, while the programs are made.
        bits: Vec<usize>,
    },
    /// The filters of subscribers that get every packet meanwhile are merged.
    Merge {
        user: User,
        bits: Vec<usize>,
        since: Instant,
        /// How often each had been changed when the programs were begun.
        changes: Vec<u64>,
    },
    /// Those with these bits leave, whether or not there are programs for the others.
    Leave(Vec<usize>),
}

impl ChangeKind {
    fn user(&self) -> Option<User> {
        match self {
            Self::Join { user, .. } | Self::Merge { user, .. } => Some(*user),
            Self::Leave(_) => None,
        }
    }

    fn is_leave(&self) -> bool {
        matches!(self, Self::Leave(_))
    }
}

/// Requests that are made together: all leave, or none.
struct Batch {
    requests: Vec<ChangeRequest>,
    preparation: Result<Preparation, CaptureError>,
    /// The programs were exchanged, or why not; the old ones may still run.
    installed: Option<Result<(), CaptureError>>,
}

impl Batch {
    fn is_ready(&self) -> bool {
        let Ok(preparation) = &self.preparation else {
            return true;
        };
        let mut waiting = [PollFd::new(preparation, PollFlags::IN)];
        let ready = poll(&mut waiting, Some(&Timespec::default()));
        matches!(ready, Ok(1..)) || preparation.is_late()
    }
}

/// What can be done next.
pub(super) enum Step {
    /// Programs for these requests are there, and are to be installed.
    Install(Vec<Generation>),
    /// These requests were made, and the replaced programs have ended unless `must_wait`; or the installation failed.
    Made {
        requests: Vec<ChangeRequest>,
        installed: Result<(), CaptureError>,
        must_wait: bool,
    },
    /// There are no programs for these requests, and fewer of them cannot be tried.
    Failed(Vec<ChangeRequest>, CaptureError),
}

/// What is to be done, in this order: requests to leave, joins of trusted users, then one join of each
/// other user, a second one of each, and so on.
pub(super) struct Changes {
    waiting: VecDeque<ChangeRequest>,
    batch: Option<Batch>,
    /// Fewer requests are made together after it failed for many: one filter may be too much for the kernel.
    together_max: usize,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            batch: None,
            together_max: usize::MAX,
        }
    }
}

impl Changes {
    /// Subscriptions are to join.
    pub fn join(&mut self, connection: u64, user: User, subscriptions: Subscriptions) {
        let bits = Vec::new();
        self.insert(
            connection,
            ChangeKind::Join {
                user,
                subscriptions,
                bits,
            },
        );
    }

    /// The filters of a connection's subscribers, which get every packet, are to be merged.
    pub fn merge(&mut self, connection: u64, user: User, bits: Vec<usize>) {
        let is_merge = |request: &ChangeRequest| {
            request.connection == Some(connection)
                && matches!(request.what, ChangeKind::Merge { .. })
        };
        if !self.waiting.iter().any(is_merge) {
            let (since, changes) = (Instant::now(), Vec::new());
            self.insert(
                connection,
                ChangeKind::Merge {
                    user,
                    bits,
                    since,
                    changes,
                },
            );
        }
    }

    fn insert(&mut self, connection: u64, what: ChangeKind) {
        let user = what.user();
        let others = self.waiting.iter().filter_map(|one| one.what.user());
        let round = others.filter(|other| Some(*other) == user).count();
        let is_trusted = user.is_some_and(|user| user.is_trusted);
        let mut before: HashMap<u32, usize> = HashMap::new();
        let mut place = self.waiting.len();
        for (index, request) in self.waiting.iter().enumerate() {
            let Some(other) = request.what.user() else {
                continue;
            };
            let earlier = before.entry(other.id).or_default();
            let goes_first = match (is_trusted, other.is_trusted) {
                (true, false) => true,
                (false, false) => *earlier > round,
                (_, true) => false,
            };
            *earlier += 1;
            if goes_first {
                place = index;
                break;
            }
        }
        let connection = Some(connection);
        self.waiting
            .insert(place, ChangeRequest { connection, what });
    }

    fn requests(&self) -> impl Iterator<Item = &ChangeRequest> {
        let made = self.batch.iter().flat_map(|batch| &batch.requests);
        made.chain(&self.waiting)
    }

    /// Number of joins of a user that wait.
    pub fn joins_of(&self, user: User) -> usize {
        let waiting = self.waiting_subscriptions();
        waiting.filter(|(other, _)| *other == user).count()
    }

    /// Whose subscriptions wait, and how many.
    pub fn waiting_subscriptions(&self) -> impl Iterator<Item = (User, usize)> {
        self.requests().filter_map(|request| match &request.what {
            ChangeKind::Join {
                user,
                subscriptions,
                ..
            } => Some((*user, subscriptions.len())),
            _ => None,
        })
    }

    /// Bits of those that are about to join.
    pub fn reserved_bits(&self) -> u64 {
        let joining = self.requests().filter_map(|request| match &request.what {
            ChangeKind::Join { bits, .. } => Some(bits),
            _ => None,
        });
        joining.flatten().fold(0, |mask, bit| mask | 1 << bit)
    }

    /// Subscriptions leave, or their connection has closed.
    pub fn leave(&mut self, connection: Option<u64>, bits: Vec<usize>) {
        // Programs for others are made again, without them.
        self.interrupt(|requests| requests.iter().all(|one| !one.what.is_leave()));
        let place = self.waiting.iter().position(|one| !one.what.is_leave());
        let place = place.unwrap_or(self.waiting.len());
        let what = ChangeKind::Leave(bits);
        self.waiting
            .insert(place, ChangeRequest { connection, what });
    }

    /// A connection has ended: its requests are dropped, except those to leave.
    pub fn forget(&mut self, connection: u64) {
        let is_its = |request: &ChangeRequest| {
            request.connection == Some(connection) && !request.what.is_leave()
        };
        self.interrupt(|requests| requests.iter().any(is_its));
        self.waiting.retain(|request| !is_its(request));
    }

    /// Lets requests wait again whose programs are being made.
    fn interrupt(&mut self, is_meant: impl Fn(&[ChangeRequest]) -> bool) {
        let batch = self
            .batch
            .take_if(|batch| batch.installed.is_none() && is_meant(&batch.requests));
        if let Some(batch) = batch {
            self.wait_again(batch.requests);
        }
    }

    fn wait_again(&mut self, requests: Vec<ChangeRequest>) {
        for mut request in requests.into_iter().rev() {
            if let ChangeKind::Join { bits, .. } = &mut request.what {
                bits.clear();
            }
            self.waiting.push_front(request);
        }
    }

    /// Whether a connection has a join that waits.
    pub fn has_join_of(&self, connection: u64) -> bool {
        self.requests().any(|request| {
            request.connection == Some(connection)
                && matches!(request.what, ChangeKind::Join { .. })
        })
    }

    /// What says when the next step can be made.
    pub fn preparation(&self) -> Option<BorrowedFd<'_>> {
        let preparation = self.batch.as_ref()?.preparation.as_ref().ok()?;
        Some(preparation.as_fd())
    }

    /// How long a request waits for others that may come.
    pub fn delay(&self) -> Option<Duration> {
        if self.batch.is_some() {
            return None;
        }
        self.first_batch().1
    }

    /// How many of those that wait are made together next, and how long they wait for others.
    fn first_batch(&self) -> (usize, Option<Duration>) {
        let Some(first) = self.waiting.front() else {
            return (0, None);
        };
        let requests = self.waiting.iter();
        let Some(user) = first.what.user() else {
            return (requests.take_while(|one| one.what.is_leave()).count(), None);
        };
        let mut users = Vec::new();
        let is_together = |other: User| {
            // Of users who are not trusted: one of each.
            let is_one = other.is_trusted || !users.contains(&other.id);
            users.push(other.id);
            other.is_trusted == user.is_trusted && is_one
        };
        let mut is_together = is_together;
        let count = requests
            .map_while(|one| one.what.user())
            .take_while(|other| is_together(*other))
            .take(self.together_max)
            .count();
        let oldest = self.waiting.iter().take(count).map(|one| match one.what {
            ChangeKind::Merge { since, .. } => Some(since),
            _ => None,
        });
        let since = oldest.reduce(|one, other| Some(one?.min(other?))).flatten();
        let left = since.map(|since| MERGE_DELAY.saturating_sub(since.elapsed()));
        (count, left.filter(|left| !left.is_zero()))
    }

    /// Begins to make programs for the requests that come next.
    fn begin(&mut self, ring: &KeptRing) -> Option<Step> {
        let (count, delay) = self.first_batch();
        if count == 0 || delay.is_some() {
            return None;
        }
        let mut requests: Vec<ChangeRequest> = self.waiting.drain(..count).collect();
        let mut reserved = 0;
        let (mut leaving, mut merging) = (Vec::new(), Vec::new());
        for number in 0..requests.len() {
            match &mut requests[number].what {
                ChangeKind::Leave(bits) => leaving.extend_from_slice(bits),
                ChangeKind::Merge { bits, changes, .. } => {
                    *changes = ring.changes(bits);
                    merging.extend_from_slice(bits);
                }
                ChangeKind::Join {
                    bits,
                    subscriptions,
                    ..
                } => match ring.free_bits(subscriptions.len(), reserved) {
                    Ok(free) => {
                        reserved |= free.iter().fold(0, |mask, bit| mask | 1 << bit);
                        *bits = free;
                    }
                    Err(error) => {
                        let refused = requests.remove(number);
                        self.wait_again(requests);
                        return Some(Step::Failed(vec![refused], error));
                    }
                },
            }
        }
        let joining: Vec<Joining<'_>> = requests
            .iter()
            .filter_map(|request| match &request.what {
                ChangeKind::Join {
                    bits,
                    subscriptions,
                    ..
                } => Some((&bits[..], &subscriptions[..])),
                _ => None,
            })
            .collect();
        let preparation = ring.prepare(&leaving, &merging, &joining);
        self.batch = Some(Batch {
            requests,
            preparation,
            installed: None,
        });
        None
    }

    /// What can be done now; `None` when it is to be waited for.
    pub fn next(&mut self, ring: &KeptRing) -> Option<Step> {
        if self.batch.is_none()
            && let Some(step) = self.begin(ring)
        {
            return Some(step);
        }
        let mut batch = self.batch.take_if(|batch| batch.is_ready())?;
        if let Some(installed) = batch.installed {
            let has_rested = batch.preparation.is_ok_and(|mut one| one.has_rested());
            self.together_max = self.together_max.saturating_mul(2);
            return Some(Step::Made {
                requests: batch.requests,
                installed,
                must_wait: !has_rested,
            });
        }
        match batch
            .preparation
            .and_then(|mut one| Ok((one.programs()?, one)))
        {
            Ok((programs, preparation)) => {
                batch.preparation = Ok(preparation);
                self.batch = Some(batch);
                Some(Step::Install(programs))
            }
            Err(_) if batch.requests.len() > 1 && !batch.requests[0].what.is_leave() => {
                self.together_max = batch.requests.len() / 2;
                self.wait_again(batch.requests);
                self.next(ring)
            }
            Err(error) => {
                self.together_max = self.together_max.saturating_mul(2);
                Some(Step::Failed(batch.requests, error))
            }
        }
    }

    /// The requests whose programs are about to be installed.
    pub fn being_made(&mut self) -> &mut [ChangeRequest] {
        match &mut self.batch {
            Some(batch) => &mut batch.requests,
            None => &mut [],
        }
    }

    /// The programs were installed, or why not.
    pub fn installed(&mut self, result: Result<(), CaptureError>) {
        if let Some(batch) = &mut self.batch {
            if let Ok(preparation) = &batch.preparation {
                preparation.begin_rest();
            }
            batch.installed = Some(result);
        }
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
            changes.join(connection, user, Vec::new());
        }
        changes.leave(Some(8), vec![3]);
        let order: Vec<_> = changes
            .waiting
            .iter()
            .filter_map(|request| request.connection)
            .collect();
        assert_eq!(order, [8, 5, 7, 1, 4, 2, 6, 3]);
        assert_eq!((changes.joins_of(one), changes.joins_of(two)), (3, 2));
        // Together: all who leave; the trusted; one of each other user.
        let mut counts = Vec::new();
        while !changes.waiting.is_empty() {
            counts.push(changes.first_batch().0);
            changes.waiting.drain(..counts[counts.len() - 1]);
        }
        assert_eq!(counts, [1, 2, 2, 2, 1]);
    }

    #[test]
    fn requests_of_a_connection_that_ended_are_dropped() {
        let one = User::new(1, 0);
        let mut changes = Changes::default();
        changes.join(2, one, Vec::new());
        changes.join(3, one, Vec::new());
        changes.forget(2);
        assert!(!changes.has_join_of(2) && changes.has_join_of(3));
    }

    #[test]
    fn filters_wait_for_others_and_a_join_does_not() {
        let root = User::new(0, 0);
        let mut changes = Changes::default();
        changes.merge(1, root, vec![0]);
        changes.merge(1, root, vec![0]);
        assert_eq!(changes.waiting.len(), 1);
        assert!(changes.delay().is_some_and(|delay| delay <= MERGE_DELAY));
        changes.join(2, root, Vec::new());
        assert_eq!(changes.delay(), None);
    }
}
