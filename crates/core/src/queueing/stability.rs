//! Whether a queue without a limit gets more work than its station can do.
//!
//! Only what no queue can lose is counted: how much of its work a queue with a limit gets done, and at which
//! rate packets come out of it, is not known before the run. What is left uncertain is caught while it runs
//! (`jobs_max`).

use super::error::ModelError;
use super::model::StationKind;
use super::network::{Network, QueuePlan, UNLIMITED};
use super::time::PS_PER_NS;

/// Rate in packets per picosecond and mean length of a class at a place.
#[derive(Clone, Copy, Default)]
struct Flow {
    rate: f64,
    byte_rate: f64,
}

/// Solves the traffic equations by following the flows until what is still on its way is negligible.
fn flows(network: &Network) -> Vec<Flow> {
    let (queues, classes) = (network.queues.len(), network.classes);
    let mut total = vec![Flow::default(); queues * classes];
    let mut open: Vec<(usize, usize, Flow)> = Vec::new();
    let mut entering = 0.0;
    for (number, source) in network.sources.iter().enumerate() {
        let gap_ps = source.gap.mean(0.0) * PS_PER_NS as f64;
        if gap_ps > 0.0 && !source.ends() {
            let rate = 1.0 / gap_ps;
            entering += rate;
            let byte_rate = rate * source.size.mean(0.0);
            open.push((
                queues + number,
                usize::from(source.class),
                Flow { rate, byte_rate },
            ));
        }
    }
    // A network whose loops never let go would not end: the number of rounds is limited.
    for _ in 0..10_000 {
        let mut arriving = vec![Flow::default(); queues * classes];
        for (origin, class, flow) in open.drain(..) {
            for way in network.ways_of(origin, class) {
                let class = way.becomes.map_or(class, usize::from);
                let single = [(1.0, way.place)];
                let choices = if way.choices.is_empty() {
                    &single[..]
                } else {
                    &way.choices[..]
                };
                let mut before = 0.0;
                for &(up_to, place) in choices {
                    if (place as usize) < queues {
                        let at = &mut arriving[place as usize * classes + class];
                        at.rate += flow.rate * (up_to - before);
                        at.byte_rate += flow.byte_rate * (up_to - before);
                    }
                    before = up_to;
                }
            }
        }
        for (at, flow) in arriving.into_iter().enumerate() {
            if flow.rate <= entering * 1e-9 {
                continue;
            }
            let plan = &network.queues[at / classes];
            total[at].rate += flow.rate;
            total[at].byte_rate += flow.byte_rate;
            if is_endless(plan) {
                open.push((at / classes, at % classes, flow));
            }
        }
        if open.is_empty() {
            break;
        }
    }
    total
}

/// Whether a queue loses nothing, however many packets it holds.
fn is_endless(queue: &QueuePlan) -> bool {
    queue.capacity_packets == UNLIMITED && queue.capacity_bytes == UNLIMITED
}

/// Refuses networks in which a queue without a limit would certainly grow for ever.
pub(super) fn check(network: &Network) -> Result<(), ModelError> {
    let (model, classes) = (&network.model, network.classes);
    let flows = flows(network);
    let work = |queue: usize| -> f64 {
        let plan = &network.queues[queue];
        let per_class = (0..classes).map(|class| {
            let flow = flows[queue * classes + class];
            let bytes = if flow.rate > 0.0 {
                flow.byte_rate / flow.rate
            } else {
                0.0
            };
            let batch = plan.batch_cost as f64 / f64::from(plan.batch_packets);
            flow.rate * (network.services[queue * classes + class].mean(bytes) + batch)
        });
        per_class.sum()
    };
    for (number, station) in network.stations.iter().enumerate() {
        if station.kind == StationKind::Delay {
            continue;
        }
        let mut load = 0.0;
        for level in &station.levels {
            let endless = || {
                let queues = level.queues.iter().map(|&queue| queue as usize);
                queues.filter(|&queue| is_endless(&network.queues[queue]))
            };
            load += endless().map(work).sum::<f64>() / station.servers as f64;
            let used = endless().find(|queue| {
                let own = &flows[queue * classes..(queue + 1) * classes];
                own.iter().any(|flow| flow.rate > 0.0)
            });
            if let (true, Some(queue)) = (load >= 1.0, used) {
                return Err(ModelError::Unstable {
                    station: model.stations[number].name.clone(),
                    load,
                    queue: model.queues[queue].name.clone(),
                });
            }
        }
    }
    Ok(())
}
