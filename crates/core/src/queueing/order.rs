//! The order in which one thing comes after others.

/// Of each of so many things its number in an order in which all come before those that they lead to, but for loops:
/// the reverse of the order in which a search in depth leaves them.
pub(super) fn order(count: usize, next: impl Fn(usize) -> Vec<usize>) -> Vec<usize> {
    let mut turn_of = vec![usize::MAX; count];
    let mut is_seen = vec![false; count];
    let mut left = count;
    for first in 0..count {
        if std::mem::replace(&mut is_seen[first], true) {
            continue;
        }
        let mut open = vec![(first, next(first))];
        while let Some((at, to)) = open.last_mut() {
            match to.pop() {
                Some(to) if std::mem::replace(&mut is_seen[to], true) => {}
                Some(to) => open.push((to, next(to))),
                None => {
                    left -= 1;
                    turn_of[*at] = left;
                    open.pop();
                }
            }
        }
    }
    turn_of
}
