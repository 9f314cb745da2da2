//! How many packets come to each queue, and whether a queue without a limit gets more work than its station can do.
//!
//! Only what no queue can lose is counted: how much of its work a queue with a limit gets done, and at which
//! rate packets come out of it, is not known before the run. What is left uncertain is caught while it runs
//! (`jobs_max`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::ModelError;
use super::model::StationKind;
use super::network::{Network, QueuePlan, UNLIMITED, Way};
use super::order::order;
use super::time::PS_PER_NS;

/// Of the rate of all sources; less is not followed any further.
const NEGLIGIBLE: f64 = 1e-9;

/// Of the rate of all sources; a queue that gets more is in a loop that packets do not leave.
const ENDLESS: f64 = 1e6;

/// Steps after which flows that still go round are left as they are: too small.
const STEPS_MAX: u64 = 1 << 24;

/// Steps between two looks at whether the caller wants to stop.
const STEPS_UNWATCHED: u64 = 1 << 16;

/// Rate in packets per picosecond, and of their bytes.
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

/// The flows of a network, from sources that never end.
pub(super) struct Flows {
    // of [queue][class]
    arriving: Vec<Flow>,
    entering: f64,
}

impl Flows {
    /// Solves the traffic equations by following the flows until what is still on its way is negligible.
    ///
    /// Queues take their turn in the order in which packets come to them, so that without loops each has one; what
    /// goes back waits for the next round (the method of Gauss and Seidel).
    pub fn of(network: &Network, stop: &AtomicBool) -> Result<Self, ModelError> {
        let (queues, classes) = (network.queues.len(), network.classes);
        let turn_of = turns_of(network);
        let mut at_turn = vec![0; turn_of.len()];
        for (at, &turn) in turn_of.iter().enumerate() {
            at_turn[turn] = at;
        }
        let mut flows = Self {
            arriving: vec![Flow::default(); queues * classes],
            entering: 0.0,
        };
        // Of each queue and class what it has not passed on yet, and the turns of those that have something.
        let mut waiting = flows.arriving.clone();
        let (mut turns, mut next_round) = (BinaryHeap::new(), BinaryHeap::new());
        for (number, source) in network.sources.iter().enumerate() {
            let gap_ps = source.gap.mean(0.0) * source.stretch * PS_PER_NS as f64;
            if gap_ps > 0.0 && !source.ends() {
                let class = usize::from(source.class);
                let rate = 1.0 / gap_ps;
                let byte_rate = rate * source.size.mean(0.0);
                flows.entering += rate;
                let ways = network.ways_of(queues + number, class);
                let flow = Flow { rate, byte_rate };
                pass_on(ways, class, |class, place, part| {
                    if place < queues {
                        let at = place * classes + class;
                        waiting[at].add(flow, part);
                        turns.push(Reverse(turn_of[at]));
                    }
                });
            }
        }
        let mut steps = 0;
        loop {
            if turns.is_empty() {
                std::mem::swap(&mut turns, &mut next_round);
            }
            let Some(Reverse(turn)) = turns.pop() else {
                break;
            };
            let at = at_turn[turn];
            // One that had several entries has passed all of it on already.
            if waiting[at].rate <= flows.entering * NEGLIGIBLE {
                continue;
            }
            let flow = std::mem::take(&mut waiting[at]);
            let (queue, class) = (at / classes, at % classes);
            flows.arriving[at].add(flow, 1.0);
            steps += 1;
            if steps == STEPS_MAX || flows.arriving[at].rate > flows.entering * ENDLESS {
                break;
            }
            if steps.is_multiple_of(STEPS_UNWATCHED) && stop.load(Ordering::Relaxed) {
                return Err(ModelError::Stopped);
            }
            if !is_endless(&network.queues[queue]) {
                continue;
            }
            let ways = network.ways_of(queue, class);
            pass_on(ways, class, |class, place, part| {
                if place < queues {
                    let at = place * classes + class;
                    waiting[at].add(flow, part);
                    let round = if turn_of[at] > turn {
                        &mut turns
                    } else {
                        &mut next_round
                    };
                    round.push(Reverse(turn_of[at]));
                }
            });
        }
        Ok(flows)
    }

    /// Arrivals at sources and queues.
    pub fn arrivals_per_ps(&self) -> f64 {
        let arriving = self.arriving.iter().map(|flow| flow.rate);
        self.entering + arriving.sum::<f64>()
    }

    /// Refuses networks in which a queue without a limit would certainly grow for ever.
    pub fn check(&self, network: &Network) -> Result<(), ModelError> {
        let (model, classes) = (&network.model, network.classes);
        let endless = |flow: &Flow| flow.rate > self.entering * ENDLESS;
        if let Some(at) = self.arriving.iter().position(endless) {
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
                let endless = || {
                    let queues = level.queues.iter().map(|&queue| queue as usize);
                    queues.filter(|&queue| is_endless(&network.queues[queue]))
                };
                let work = endless().map(|queue| self.work(network, queue));
                load += work.sum::<f64>() / station.servers as f64;
                let used = endless().find(|queue| {
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

    /// Work that comes to a queue, per time.
    fn work(&self, network: &Network, queue: usize) -> f64 {
        let plan = &network.queues[queue];
        let batch = plan.batch_cost as f64 / f64::from(plan.batch_packets);
        let own = queue * network.classes..(queue + 1) * network.classes;
        let services = network.services[own.clone()].iter();
        let flows = services.zip(&self.arriving[own]);
        let work = flows
            .filter(|(_, flow)| flow.rate > 0.0)
            .map(|(service, flow)| flow.rate * (service.mean(flow.byte_rate / flow.rate) + batch));
        work.sum()
    }
}

/// Gives each place of some ways its part of a flow, with the class that packets have there.
fn pass_on(ways: &[Way], class: usize, mut give: impl FnMut(usize, usize, f64)) {
    for way in ways {
        let mut before = 0.0;
        for (number, (class, place)) in way.ends(class).enumerate() {
            let up_to = way.choices.get(number).map_or(1.0, |choice| choice.0);
            give(class, place, up_to - before);
            before = up_to;
        }
    }
}

/// Of each queue and class its number in an order in which packets come to them: after all from which they come, but
/// for loops.
fn turns_of(network: &Network) -> Vec<usize> {
    let (queues, classes) = (network.queues.len(), network.classes);
    order(queues * classes, |at| {
        let (queue, class) = (at / classes, at % classes);
        let ends = network.ways_of(queue, class).iter();
        let ends = ends.flat_map(|way| way.ends(class));
        ends.filter(|&(_, place)| place < queues)
            .map(|(class, place)| place * classes + class)
            .collect()
    })
}

/// Whether a queue loses nothing, however many packets it holds.
fn is_endless(queue: &QueuePlan) -> bool {
    queue.capacity_packets == UNLIMITED && queue.capacity_bytes == UNLIMITED
}
