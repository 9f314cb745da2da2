//! The shape of a network, checked before it runs: packets reach every part, and blocking leads in no circle.

use std::collections::{BTreeSet, VecDeque};

use super::error::ModelError;
use super::network::{Network, Way};
use super::order::order;

/// Checks that packets reach every queue, station and sink, and have a way on wherever they come.
pub(super) fn reached(network: &Network) -> Result<(), ModelError> {
    let (model, classes, queues) = (&network.model, network.classes, network.queues.len());
    let mut seen = vec![false; (queues + model.sinks.len()) * classes];
    let mut open: Vec<(usize, usize)> = Vec::new();
    let sources = network.sources.iter().enumerate();
    open.extend(sources.map(|(number, source)| (queues + number, usize::from(source.class))));
    // Sources share their numbers with sinks: the first round is theirs, then only queues go on.
    let mut is_source = true;
    while !open.is_empty() {
        for (origin, class) in std::mem::take(&mut open) {
            let ways = network.ways_of(origin, class);
            if ways.is_empty() {
                let (kind, name) = if is_source {
                    ("source", &model.sources[origin - queues].name)
                } else {
                    ("queue", &model.queues[origin].name)
                };
                return Err(ModelError::DeadEnd {
                    kind,
                    name: name.clone(),
                    class: model.classes[class].clone(),
                });
            }
            for (class, place) in ways.iter().flat_map(|way| way.ends(class)) {
                let at = place * classes + class;
                if std::mem::replace(&mut seen[at], true) || place >= queues {
                    continue;
                }
                if !network.is_served[at] {
                    return Err(ModelError::value(
                        &format!("queue {:?}", model.queues[place].name),
                        "service",
                        format!("given for other classes than {:?}", model.classes[class]),
                        "one for every class that comes here",
                    ));
                }
                open.push((place, class));
            }
        }
        is_source = false;
    }
    let is_reached = |place: usize| seen[place * classes..(place + 1) * classes].contains(&true);
    let queue_names = model.queues.iter().map(|queue| ("queue", &queue.name));
    let names = queue_names.chain(model.sinks.iter().map(|sink| ("sink", sink)));
    let mut unreached = names.enumerate().filter(|(place, _)| !is_reached(*place));
    if let Some((_, (kind, name))) = unreached.next() {
        let name = name.clone();
        return Err(ModelError::Unreachable { kind, name });
    }
    let mut stations = network.stations.iter().zip(&model.stations);
    match stations.find(|(plan, _)| plan.levels.is_empty()) {
        Some((_, idle)) => Err(ModelError::Unreachable {
            kind: "station",
            name: idle.name.clone(),
        }),
        None => Ok(()),
    }
}

/// Checks that transitions that block before service lead in no circle; returns whether those after service lead
/// stations in one, so that they can come to wait for each other, or for themselves, for ever.
pub(super) fn circles_of_blocking(network: &Network) -> Result<bool, ModelError> {
    let queues = network.queues.len();
    // of each queue, those that it waits for, and those that wait for it
    let mut next: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); queues];
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); queues];
    for (at, ways) in network.ways[..queues * network.classes].iter().enumerate() {
        let queue = at / network.classes;
        for place in blocking_places(network, &ways.all) {
            if next[queue].insert(place) {
                before[place].push(queue);
            }
        }
    }
    let circle_of = circles(&next, &before);
    let is_on_circle = |queue: usize, to: usize| circle_of[queue] == circle_of[to];
    let mut blocking = (0..queues).filter(|&queue| network.queues[queue].blocks);
    let Some(first) = blocking.find(|&queue| next[queue].iter().any(|&to| is_on_circle(queue, to)))
    else {
        return Ok(can_deadlock(network));
    };
    // A shortest way back to where it begins.
    let mut came_from = vec![None; queues];
    let mut open = VecDeque::from([first]);
    while let (None, Some(at)) = (came_from[first], open.pop_front()) {
        for &to in next[at].iter().filter(|&&to| is_on_circle(first, to)) {
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

/// The queues for whose room packets on some ways wait.
fn blocking_places<'n>(network: &'n Network, ways: &'n [Way]) -> impl Iterator<Item = usize> + 'n {
    // Which class they have there does not matter.
    let ends = ways
        .iter()
        .filter(|way| way.blocks)
        .flat_map(|way| way.ends(0));
    ends.map(|(_, place)| place)
        .filter(|&place| place < network.queues.len())
}

/// Of each queue a number, which those have in common from which each leads to all others and back (Sharir 1981).
fn circles(next: &[BTreeSet<usize>], before: &[Vec<usize>]) -> Vec<usize> {
    let turn_of = order(next.len(), |at| next[at].iter().copied().collect());
    let mut at_turn = vec![0; turn_of.len()];
    for (at, &turn) in turn_of.iter().enumerate() {
        at_turn[turn] = at;
    }
    let mut circle_of = vec![usize::MAX; next.len()];
    for first in at_turn {
        let mut open = vec![first];
        while let Some(at) = open.pop() {
            if circle_of[at] == usize::MAX {
                circle_of[at] = first;
                open.extend(
                    before[at]
                        .iter()
                        .filter(|&&from| circle_of[from] == usize::MAX),
                );
            }
        }
    }
    circle_of
}

/// Whether stations stand in a circle in which a packet at a server of each can wait, after its service, for room in a
/// queue of the next.
fn can_deadlock(network: &Network) -> bool {
    let mut next: Vec<Vec<usize>> = vec![Vec::new(); network.stations.len()];
    for (number, queue) in network.queues.iter().enumerate() {
        if !queue.waits {
            continue;
        }
        for class in 0..network.classes {
            let places = blocking_places(network, network.ways_of(number, class));
            next[queue.station as usize]
                .extend(places.map(|place| network.queues[place].station as usize));
        }
    }
    // Stations to which none comes are taken away one after the other (Kahn 1962): what is left has a circle.
    let mut coming = vec![0; next.len()];
    next.iter().flatten().for_each(|&to| coming[to] += 1);
    let mut open: Vec<usize> = (0..next.len()).filter(|&at| coming[at] == 0).collect();
    let mut gone = 0;
    while let Some(at) = open.pop() {
        gone += 1;
        for &to in &next[at] {
            coming[to] -= 1;
            if coming[to] == 0 {
                open.push(to);
            }
        }
    }
    gone < next.len()
}
