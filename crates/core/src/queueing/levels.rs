//! The priority levels of the stations, and the policy of each.

use super::amount::Amount;
use super::error::ModelError;
use super::model::{Model, Policy, Tags, Visited};
use super::names::Names;
use super::sampler::Sampler;
use super::time::picoseconds;
use super::traces::Traces;

/// The queues of a station that have the same priority.
#[derive(Clone, Debug)]
pub(super) struct LevelPlan {
    pub priority: u32,
    pub queues: Vec<u32>,
    pub policy: PolicyPlan,
    /// Time to wake the server, ns, if its policy is polling and has one.
    pub wake: Option<Sampler>,
    /// Time to switch to a queue, ns, if its policy is polling and the time is random.
    pub visit: Option<Sampler>,
}

/// A policy with times in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PolicyPlan {
    /// A single queue, first come, first served.
    Single,
    Fcfs,
    RoundRobin {
        quantum: u64,
    },
    Polling(PollingPlan),
    WeightedFair(Tags),
}

/// The parameters of limited polling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PollingPlan {
    pub batch: u32,
    pub budget: u32,
    pub budget_time: u64,
    pub yield_time: u64,
    /// The mean, if the time is random.
    pub visit_time: u64,
    pub is_visit_random: bool,
    /// Whether the server visits empty queues too, and needs time to switch to each.
    pub visits_empty: bool,
    /// Number among the polling levels of the network.
    pub number: usize,
}

impl LevelPlan {
    /// The parameters of the policy if it is polling.
    pub fn polling(&self) -> Option<&PollingPlan> {
        match &self.policy {
            PolicyPlan::Polling(plan) => Some(plan),
            _ => None,
        }
    }

    /// The levels of every station, in the order of their priorities.
    pub fn of_stations(
        model: &Model,
        names: &Names,
        traces: &Traces,
    ) -> Result<Vec<Vec<Self>>, ModelError> {
        let mut all = vec![Vec::<Self>::new(); model.stations.len()];
        for (number, queue) in model.queues.iter().enumerate() {
            let place = format!("queue {:?}", queue.name);
            let levels = &mut all[names.station(&queue.station, &place)?];
            let mut same = levels.iter_mut();
            match same.find(|level| level.priority == queue.priority) {
                Some(level) => level.queues.push(number as u32),
                None => levels.push(Self {
                    priority: queue.priority,
                    queues: vec![number as u32],
                    policy: PolicyPlan::Fcfs,
                    wake: None,
                    visit: None,
                }),
            }
        }
        let mut polling_levels = 0;
        for (levels, station) in all.iter_mut().zip(&model.stations) {
            levels.sort_by_key(|level| level.priority);
            for level in levels {
                let mut policies = station.policies.iter();
                let given = policies.find(|policy| policy.priority == level.priority);
                let given = given.map(|given| &given.policy);
                let mut visit_time = 0;
                if let Some(Policy::Polling {
                    wake_ns,
                    visit_ns,
                    visits,
                    ..
                }) = given
                {
                    let place = |field| format!("station {:?}, {field}", station.name);
                    let wake = wake_ns.as_ref();
                    let wake = wake.map(|time| times(time, &place("wake_ns"), true, traces));
                    level.wake = wake.transpose()?;
                    // A server that visits empty queues does not switch for a packet.
                    let of_packet = *visits == Visited::Nonempty;
                    let visit = times(visit_ns, &place("visit_ns"), of_packet, traces)?;
                    visit_time = picoseconds(visit.mean(0.0));
                    level.visit = (!matches!(visit, Sampler::Constant(_))).then_some(visit);
                }
                level.policy = policy(given, level, visit_time, &mut polling_levels);
            }
        }
        Ok(all)
    }
}

fn policy(
    given: Option<&Policy>,
    level: &LevelPlan,
    visit_time: u64,
    polling_levels: &mut usize,
) -> PolicyPlan {
    match given {
        None | Some(Policy::Fcfs) if level.queues.len() == 1 => PolicyPlan::Single,
        None | Some(Policy::Fcfs) => PolicyPlan::Fcfs,
        Some(Policy::RoundRobin { quantum_ns }) => PolicyPlan::RoundRobin {
            quantum: quantum_ns.map_or(u64::MAX, picoseconds),
        },
        Some(Policy::Polling {
            batch,
            budget,
            budget_ns,
            yield_ns,
            visit_ns: _,
            wake_ns: _,
            visits,
        }) => {
            *polling_levels += 1;
            PolicyPlan::Polling(PollingPlan {
                batch: *batch,
                budget: budget.unwrap_or(u32::MAX),
                budget_time: budget_ns.map_or(u64::MAX, picoseconds),
                yield_time: picoseconds(*yield_ns),
                visit_time,
                is_visit_random: level.visit.is_some(),
                // If switching takes no time, visits to empty queues change nothing.
                visits_empty: *visits == Visited::All && visit_time > 0,
                number: *polling_levels - 1,
            })
        }
        Some(Policy::WeightedFair { tags }) => PolicyPlan::WeightedFair(*tags),
    }
}

/// The sampler of times, which may depend on the length of a packet if they are of a packet.
fn times(
    time: &Amount,
    place: &str,
    of_packet: bool,
    traces: &Traces,
) -> Result<Sampler, ModelError> {
    let wrong =
        |found| ModelError::value(place, "the distribution", found, "a distribution of times");
    match time.sampler(place, traces)? {
        Sampler::Gaps(_) => Err(wrong("a gap process")),
        Sampler::Table(..) if !of_packet => Err(wrong("a table over the length")),
        sampler => Ok(sampler),
    }
}
