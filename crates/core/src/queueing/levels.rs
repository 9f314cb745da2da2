//! The priority levels of the stations, and the policy of each.

use super::error::ModelError;
use super::model::{Model, Policy, Station, Tags, Visited};
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
    pub visit_time: u64,
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
                }),
            }
        }
        let mut polling_levels = 0;
        for (levels, station) in all.iter_mut().zip(&model.stations) {
            levels.sort_by_key(|level| level.priority);
            for level in levels {
                level.policy = policy(level, station, &mut polling_levels);
                level.wake = wake(level, station, traces)?;
            }
        }
        Ok(all)
    }
}

fn policy(level: &LevelPlan, station: &Station, polling_levels: &mut usize) -> PolicyPlan {
    let mut policies = station.policies.iter();
    let given = policies.find(|policy| policy.priority == level.priority);
    match given.map(|given| &given.policy) {
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
            visit_ns,
            wake_ns: _,
            visits,
        }) => {
            *polling_levels += 1;
            PolicyPlan::Polling(PollingPlan {
                batch: *batch,
                budget: budget.unwrap_or(u32::MAX),
                budget_time: budget_ns.map_or(u64::MAX, picoseconds),
                yield_time: picoseconds(*yield_ns),
                visit_time: picoseconds(*visit_ns),
                // If switching takes no time, visits to empty queues change nothing.
                visits_empty: *visits == Visited::All && picoseconds(*visit_ns) > 0,
                number: *polling_levels - 1,
            })
        }
        Some(Policy::WeightedFair { tags }) => PolicyPlan::WeightedFair(*tags),
    }
}

fn wake(
    level: &LevelPlan,
    station: &Station,
    traces: &Traces,
) -> Result<Option<Sampler>, ModelError> {
    let mut policies = station.policies.iter();
    let given = policies.find(|policy| policy.priority == level.priority);
    let Some(Policy::Polling {
        wake_ns: Some(time),
        ..
    }) = given.map(|given| &given.policy)
    else {
        return Ok(None);
    };
    let place = format!("station {:?}, wake_ns", station.name);
    match time.sampler(&place, traces)? {
        Sampler::Gaps(_) => Err(ModelError::value(
            &place,
            "the distribution",
            "a gap process",
            "a distribution of times",
        )),
        sampler => Ok(Some(sampler)),
    }
}
