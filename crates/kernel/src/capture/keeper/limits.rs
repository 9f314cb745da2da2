//! Limits on what readers of a ring may use of its keeper. Root and the user that created the ring are
//! trusted. Other users are members of a group, and a limit for each leaves room for the rest.

use std::time::Duration;

/// Connections at a time.
const CONNECTIONS_MAX: usize = 256;
/// Of these, those of all users who are not trusted, and of one of them.
const CONNECTIONS_OF_MEMBERS_MAX: usize = 192;
const CONNECTIONS_OF_A_MEMBER_MAX: usize = 32;

/// Subscriptions of all users who are not trusted, and of one of them.
const SUBSCRIPTIONS_OF_MEMBERS_MAX: usize = 48;
const SUBSCRIPTIONS_OF_A_MEMBER_MAX: usize = 16;

/// Requests that wait for their programs, of one user who is not trusted.
pub(super) const WAITING_OF_A_MEMBER_MAX: usize = 4;

/// Longest message of a user who is not trusted: a filter of some thousand ports.
pub(super) const MESSAGE_OF_A_MEMBER_MAX_BYTES: usize = 1 << 20;

/// Messages that are not whole yet, of all such users together.
pub(super) const UNFINISHED_OF_MEMBERS_MAX_BYTES: usize = 16 << 20;

/// How long a connection may take to join, or to finish a message that it began.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(10);

/// How long a member may take to subscribe afterwards: it looks up names and compiles its filters
/// meanwhile. The ring is kept until then.
pub(super) const UNSUBSCRIBED_MAX: Duration = Duration::from_secs(120);

/// Bytes of a filter's text that others are shown.
pub(super) const SHOWN_FILTER_MAX_BYTES: usize = 4096;

/// The user of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct User {
    /// The kernel's number.
    pub id: u32,
    /// Root, or the user that created the ring.
    pub is_trusted: bool,
}

impl User {
    /// A user who connects to a keeper that runs as `own`.
    pub fn new(id: u32, own: u32) -> Self {
        Self {
            id,
            is_trusted: id == 0 || id == own,
        }
    }
}

/// Whether a user may connect, beside those who are connected; if not, why.
pub(super) fn may_connect(user: User, connected: impl Iterator<Item = User>) -> Result<(), String> {
    let connected: Vec<User> = connected.collect();
    let share = Share {
        what: "connections to it",
        of_a_member: CONNECTIONS_OF_A_MEMBER_MAX,
        of_members: CONNECTIONS_OF_MEMBERS_MAX,
    };
    share.check(user, 1, connected.iter().map(|one| (*one, 1)))?;
    if connected.len() >= CONNECTIONS_MAX {
        return Err(format!(
            "there are {CONNECTIONS_MAX} connections to it; end one first"
        ));
    }
    Ok(())
}

/// Whether a user may have `asked` more subscriptions, beside those that users have; if not, why.
pub(super) fn may_subscribe(
    user: User,
    asked: usize,
    subscribed: impl Iterator<Item = (User, usize)>,
) -> Result<(), String> {
    let share = Share {
        what: "filters in it",
        of_a_member: SUBSCRIPTIONS_OF_A_MEMBER_MAX,
        of_members: SUBSCRIPTIONS_OF_MEMBERS_MAX,
    };
    share.check(user, asked, subscribed)
}

struct Share {
    what: &'static str,
    of_a_member: usize,
    of_members: usize,
}

impl Share {
    fn check(
        &self,
        user: User,
        asked: usize,
        taken: impl Iterator<Item = (User, usize)>,
    ) -> Result<(), String> {
        if user.is_trusted {
            return Ok(());
        }
        let (mut own, mut all) = (0, 0);
        for (other, count) in taken.filter(|(other, _)| !other.is_trusted) {
            all += count;
            own += if other.id == user.id { count } else { 0 };
        }
        let what = self.what;
        if own + asked > self.of_a_member {
            return Err(format!(
                "user {} has {own} {what}, and may have {}; end one first",
                user.id, self.of_a_member
            ));
        }
        if all + asked > self.of_members {
            return Err(format!(
                "members of its group have {all} {what}, and may have {}; somebody has to end first",
                self.of_members
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: User = User {
        id: 0,
        is_trusted: true,
    };

    fn member(id: u32) -> User {
        User::new(id, 0)
    }

    #[test]
    fn one_member_leaves_room_for_others_and_all_of_them_for_root() {
        let greedy = vec![member(1); CONNECTIONS_OF_A_MEMBER_MAX];
        let refused = may_connect(member(1), greedy.iter().copied()).unwrap_err();
        assert_eq!(
            refused,
            "user 1 has 32 connections to it, and may have 32; end one first"
        );
        assert!(may_connect(member(2), greedy.iter().copied()).is_ok());
        let many: Vec<User> = (0..CONNECTIONS_OF_MEMBERS_MAX as u32)
            .map(|number| member(1 + number / 32))
            .collect();
        assert!(may_connect(member(99), many.iter().copied()).is_err());
        assert!(may_connect(ROOT, many.iter().copied()).is_ok());
        assert!(may_connect(ROOT, vec![ROOT; CONNECTIONS_MAX].into_iter()).is_err());
    }

    #[test]
    fn subscriptions_are_limited_per_user() {
        assert!(may_subscribe(member(1), 16, std::iter::empty()).is_ok());
        assert!(may_subscribe(member(1), 17, std::iter::empty()).is_err());
        let taken = [(member(1), 16), (member(2), 16), (member(3), 10), (ROOT, 9)];
        assert!(may_subscribe(member(4), 6, taken.into_iter()).is_ok());
        assert!(may_subscribe(member(4), 7, taken.into_iter()).is_err());
        assert!(may_subscribe(ROOT, 7, taken.into_iter()).is_ok());
        assert!(User::new(1000, 1000).is_trusted && !User::new(1000, 0).is_trusted);
    }
}
