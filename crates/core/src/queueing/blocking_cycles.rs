//! Cycles of blocking transitions.

use std::collections::{BTreeSet, VecDeque};

use super::error::ModelError;
use super::network::Network;
use super::order::topological_order;
use super::routes::Route;

/// Refuses cycles with a transition that blocks before service. Returns whether stations that block after service form
/// a cycle, in which they can deadlock.
pub(super) fn check_blocking_cycles(network: &Network) -> Result<bool, ModelError> {
    let queues = network.queues.len();
    // of [queue]: the queues in which its packets need room, and the reverse
    let mut next: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); queues];
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); queues];
    for (at, routes) in network.routes[..queues * network.classes]
        .iter()
        .enumerate()
    {
        let queue = at / network.classes;
        for place in blocking_places(network, &routes.all) {
            if next[queue].insert(place) {
                before[place].push(queue);
            }
        }
    }
    let component_of = components(&next, &before);
    let is_on_cycle = |queue: usize, to: usize| component_of[queue] == component_of[to];
    let mut blocking = (0..queues).filter(|&queue| network.queues[queue].blocks_before_service);
    let Some(first) = blocking.find(|&queue| next[queue].iter().any(|&to| is_on_cycle(queue, to)))
    else {
        return Ok(can_deadlock(network));
    };
    // Find a shortest cycle by breadth-first search.
    let mut came_from = vec![None; queues];
    let mut open = VecDeque::from([first]);
    while let (None, Some(at)) = (came_from[first], open.pop_front()) {
        for &to in next[at].iter().filter(|&&to| is_on_cycle(first, to)) {
            if came_from[to].is_none() {
                came_from[to] = Some(at);
                open.push_back(to);
            }
        }
    }
    let mut walked = vec![first];
    while let Some(at) = came_from[walked[walked.len() - 1]] {
        walked.push(at);
        if at == first {
            break;
        }
    }
    let names = walked.iter().rev();
    let names = names.map(|&queue| network.model.queues[queue].name.clone());
    Err(ModelError::Deadlock {
        queues: names.collect(),
    })
}

/// The queues in which packets on these routes may wait for room.
fn blocking_places<'n>(
    network: &'n Network,
    routes: &'n [Route],
) -> impl Iterator<Item = usize> + 'n {
    // The class at the destination does not matter.
    let destinations = routes
        .iter()
        .filter(|route| route.blocks)
        .flat_map(|route| route.destinations(0));
    destinations
        .map(|(_, place)| place)
        .filter(|&place| place < network.queues.len())
}

/// The number of the strongly connected component of each queue (Sharir 1981).
fn components(next: &[BTreeSet<usize>], before: &[Vec<usize>]) -> Vec<usize> {
    let order = topological_order(next.len(), |at| next[at].iter().copied().collect());
    let mut component_of = vec![usize::MAX; next.len()];
    for first in order {
        let mut open = vec![first];
        while let Some(at) = open.pop() {
            if component_of[at] == usize::MAX {
                component_of[at] = first;
                open.extend(
                    before[at]
                        .iter()
                        .filter(|&&from| component_of[from] == usize::MAX),
                );
            }
        }
    }
    component_of
}

/// Whether stations form a cycle in which each can be blocked after service by a queue of the next.
fn can_deadlock(network: &Network) -> bool {
    let mut next: Vec<Vec<usize>> = vec![Vec::new(); network.stations.len()];
    for (number, queue) in network.queues.iter().enumerate() {
        if !queue.blocks_after_service {
            continue;
        }
        for class in 0..network.classes {
            let places = blocking_places(network, network.routes_of(number, class));
            next[queue.station as usize]
                .extend(places.map(|place| network.queues[place].station as usize));
        }
    }
    // Remove stations without predecessors one by one (Kahn 1962). The remaining ones have a cycle.
    let mut predecessors = vec![0; next.len()];
    next.iter().flatten().for_each(|&to| predecessors[to] += 1);
    let mut open: Vec<usize> = (0..next.len())
        .filter(|&at| predecessors[at] == 0)
        .collect();
    let mut removed = 0;
    while let Some(at) = open.pop() {
        removed += 1;
        for &to in &next[at] {
            predecessors[to] -= 1;
            if predecessors[to] == 0 {
                open.push(to);
            }
        }
    }
    removed < next.len()
}
