//! Checks that packets reach every part of a network and have a route from every queue.

use super::error::ModelError;
use super::network::Network;

/// Checks that packets reach every queue, station and sink, with a service and a route in every queue.
pub(super) fn check_reachability(network: &Network) -> Result<(), ModelError> {
    let (model, classes, queues) = (&network.model, network.classes, network.queues.len());
    let mut seen = vec![false; (queues + model.sinks.len()) * classes];
    let mut open: Vec<(usize, usize)> = Vec::new();
    let sources = network.sources.iter().enumerate();
    open.extend(sources.map(|(number, source)| (queues + number, usize::from(source.class))));
    // Origins beyond the queues are sources: the first round has only them, later rounds only queues.
    let mut is_source = true;
    while !open.is_empty() {
        for (origin, class) in std::mem::take(&mut open) {
            let routes = network.routes_of(origin, class);
            if routes.is_empty() {
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
            for (class, place) in routes.iter().flat_map(|route| route.destinations(class)) {
                let at = place * classes + class;
                if std::mem::replace(&mut seen[at], true) || place >= queues {
                    continue;
                }
                if network.services[at].is_none() {
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
