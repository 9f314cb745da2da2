//! The traffic of a network before it runs: arrival rates of the queues, and whether unlimited queues are stable.
//!
//! The throughput of a lossy queue is not known beforehand, so traffic is followed only up to it. Overload behind it is
//! detected during the run (`jobs_max`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::ModelError;
use super::model::StationKind;
use super::network::Network;
use super::order::topological_order;
use super::routes::Route;
use super::time::PS_PER_NS;

/// Fraction of the rate of all sources below which a flow is not followed.
const NEGLIGIBLE: f64 = 1e-9;

/// Multiple of the rate of all sources above which a queue is in a loop that packets do not leave.
const TRAPPED: f64 = 1e6;

/// Maximum number of steps: flows that still circulate then are too small to matter.
const STEPS_MAX: u64 = 1 << 24;

/// Steps between two checks of `stop`.
const STEPS_PER_CHECK: u64 = 1 << 16;

/// A rate in packets per picosecond, and in bytes.
#[derive(Clone, Copy, Default)]
struct Flow {
    rate: f64,
    byte_rate: f64,
}

impl Flow {
    fn add(&mut self, other: Self, part: f64) {
        self.rate += other.rate * part;
        self.byte_rate += other.byte_rate * part;
    }
}

/// The flows of a network from the sources that never end.
pub(super) struct Traffic {
    // of [queue][class]
    arriving: Vec<Flow>,
    entering: f64,
}

impl Traffic {
    /// Solves the traffic equations by the method of Gauss and Seidel: it follows the flows until the rest is
    /// negligible.
    ///
    /// Queues pass on their flow in topological order, so that a network without loops takes one round. Flow that
    /// goes back waits for the next round.
    pub fn of(network: &Network, stop: &AtomicBool) -> Result<Self, ModelError> {
        let (queues, classes) = (network.queues.len(), network.classes);
        let order = order(network);
        let mut rank_of = vec![0; order.len()];
        for (rank, &at) in order.iter().enumerate() {
            rank_of[at] = rank;
        }
        let mut traffic = Self {
            arriving: vec![Flow::default(); queues * classes],
            entering: 0.0,
        };
        // of [queue][class]: flow that was not passed on yet; and the ranks of those that have some
        let mut pending = traffic.arriving.clone();
        let (mut round, mut next_round) = (BinaryHeap::new(), BinaryHeap::new());
        for (number, source) in network.sources.iter().enumerate() {
            let gap_ps = source.gap.mean(0.0) * source.stretch * PS_PER_NS as f64;
            if gap_ps > 0.0 && !source.ends() {
                let class = usize::from(source.class);
                let rate = 1.0 / gap_ps;
                let byte_rate = rate * source.size.mean(0.0);
                traffic.entering += rate;
                let routes = network.routes_of(queues + number, class);
                let flow = Flow { rate, byte_rate };
                pass_on(routes, class, |class, place, part| {
                    if place < queues {
                        let at = place * classes + class;
                        pending[at].add(flow, part);
                        round.push(Reverse(rank_of[at]));
                    }
                });
            }
        }
        let mut steps = 0;
        loop {
            if round.is_empty() {
                std::mem::swap(&mut round, &mut next_round);
            }
            let Some(Reverse(rank)) = round.pop() else {
                break;
            };
            let at = order[rank];
            // A queue may have several entries; the first one passes on all of its flow.
            if pending[at].rate <= traffic.entering * NEGLIGIBLE {
                continue;
            }
            let flow = std::mem::take(&mut pending[at]);
            let (queue, class) = (at / classes, at % classes);
            traffic.arriving[at].add(flow, 1.0);
            steps += 1;
            if steps == STEPS_MAX || traffic.arriving[at].rate > traffic.entering * TRAPPED {
                break;
            }
            if steps.is_multiple_of(STEPS_PER_CHECK) && stop.load(Ordering::Relaxed) {
                return Err(ModelError::Stopped);
            }
            if !network.queues[queue].is_unlimited() {
                continue;
            }
            let routes = network.routes_of(queue, class);
            pass_on(routes, class, |class, place, part| {
                if place < queues {
                    let at = place * classes + class;
                    pending[at].add(flow, part);
                    let entries = if rank_of[at] > rank {
                        &mut round
                    } else {
                        &mut next_round
                    };
                    entries.push(Reverse(rank_of[at]));
                }
            });
        }
        Ok(traffic)
    }

    pub fn arrivals_per_ps(&self) -> f64 {
        let arriving = self.arriving.iter().map(|flow| flow.rate);
        self.entering + arriving.sum::<f64>()
    }

    /// Refuses networks in which an unlimited queue has a load of 1 or more.
    pub fn check_stability(&self, network: &Network) -> Result<(), ModelError> {
        let (model, classes) = (&network.model, network.classes);
        let is_trapped = |flow: &Flow| flow.rate > self.entering * TRAPPED;
        if let Some(at) = self.arriving.iter().position(is_trapped) {
            return Err(ModelError::Trapped {
                queue: model.queues[at / classes].name.clone(),
                class: model.classes[at % classes].clone(),
            });
        }
        for (number, station) in network.stations.iter().enumerate() {
            if station.kind == StationKind::Delay {
                continue;
            }
            let mut load = 0.0;
            for level in &station.levels {
                let unlimited = || {
                    let queues = level.queues.iter().map(|&queue| queue as usize);
                    queues.filter(|&queue| network.queues[queue].is_unlimited())
                };
                let work = unlimited().map(|queue| self.work(network, queue));
                load += work.sum::<f64>() / station.servers as f64;
                let used = unlimited().find(|queue| {
                    let own = &self.arriving[queue * classes..(queue + 1) * classes];
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

    /// Work that arrives at a queue, per time.
    fn work(&self, network: &Network, queue: usize) -> f64 {
        let plan = &network.queues[queue];
        let batch = plan.batch_time as f64 / f64::from(plan.batch_packets);
        let own = queue * network.classes..(queue + 1) * network.classes;
        let flows = network.services[own.clone()]
            .iter()
            .zip(&self.arriving[own]);
        let work = flows
            .filter(|(_, flow)| flow.rate > 0.0)
            .map(|(service, flow)| {
                let service = service.as_ref();
                let mean = service.map_or(0.0, |time| time.mean(flow.byte_rate / flow.rate));
                flow.rate * (mean + batch)
            });
        work.sum()
    }
}

/// Calls `add` with each class and place of these routes, and the fraction of the flow that goes there.
fn pass_on(routes: &[Route], class: usize, mut add: impl FnMut(usize, usize, f64)) {
    for route in routes {
        let mut before = 0.0;
        for (number, (class, place)) in route.destinations(class).enumerate() {
            let cumulative = route.choices.get(number).map_or(1.0, |choice| choice.0);
            add(class, place, cumulative - before);
            before = cumulative;
        }
    }
}

/// The topological order of queues and classes, as numbers of [queue][class].
fn order(network: &Network) -> Vec<usize> {
    let (queues, classes) = (network.queues.len(), network.classes);
    topological_order(queues * classes, |at| {
        let (queue, class) = (at / classes, at % classes);
        let routes = network.routes_of(queue, class).iter();
        let destinations = routes.flat_map(|route| route.destinations(class));
        destinations
            .filter(|&(_, place)| place < queues)
            .map(|(class, place)| place * classes + class)
            .collect()
    })
}
