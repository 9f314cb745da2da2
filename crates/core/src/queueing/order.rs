//! Topological order.

/// The nodes `0..count`, each before those that it leads to, except on cycles: the reverse postorder of a depth-first
/// search.
pub(super) fn topological_order(count: usize, next: impl Fn(usize) -> Vec<usize>) -> Vec<usize> {
    let mut order = Vec::with_capacity(count);
    let mut is_seen = vec![false; count];
    for first in 0..count {
        if std::mem::replace(&mut is_seen[first], true) {
            continue;
        }
        let mut path = vec![(first, next(first))];
        while let Some((at, successors)) = path.last_mut() {
            match successors.pop() {
                Some(to) if std::mem::replace(&mut is_seen[to], true) => {}
                Some(to) => path.push((to, next(to))),
                None => {
                    order.push(*at);
                    path.pop();
                }
            }
        }
    }
    order.reverse();
    order
}
