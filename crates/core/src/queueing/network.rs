//! A checked model with its names resolved to numbers: what the engine simulates.
//!
//! A *place* is the number of a queue or, counted on from the queues, of a sink. An *origin* is the number of a queue
//! or, counted on from the queues, of a source. Tables of [queue][class] are flat.

use std::ops::Range;

use super::levels::LevelPlan;
use super::model::{Model, StationKind};
use super::routes::{Route, Routes};
use super::service_time::ServiceTime;
use super::sources::SourcePlan;

/// A model that can be run.
#[derive(Clone, Debug)]
pub struct Network {
    pub(super) model: Model,
    pub(super) sources: Vec<SourcePlan>,
    pub(super) stations: Vec<StationPlan>,
    pub(super) queues: Vec<QueuePlan>,
    // of [queue][class]; None where the queue has no service for the class
    pub(super) services: Vec<Option<ServiceTime>>,
    // of [origin][class]
    pub(super) routes: Vec<Routes>,
    pub(super) classes: usize,
    /// Numbers of the events of polling levels; events of servers come before, those of sources after them.
    pub(super) polling_events: Range<usize>,
    /// Lower bound of the arrival rate at all sources and queues, per picosecond.
    pub(super) arrivals_per_ps: f64,
    /// Whether stations that block after service form a cycle.
    pub(super) can_deadlock: bool,
}

#[derive(Clone, Debug)]
pub(super) struct StationPlan {
    pub kind: StationKind,
    pub servers: usize,
    /// The event of its first server. A shared station has one event: its next departure.
    pub first_event: usize,
    /// The number of its first level among those of all stations.
    pub first_level: usize,
    pub levels: Vec<LevelPlan>,
}

impl StationPlan {
    /// Number of events of its servers that can be scheduled at a time.
    pub fn events(&self) -> usize {
        if self.kind.is_shared() {
            1
        } else {
            self.servers
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct QueuePlan {
    pub station: u32,
    /// Number among the levels of the station.
    pub level: u32,
    /// Whether it is the only queue of its level, first come, first served.
    pub is_single: bool,
    /// Maximum time of an uninterrupted service, ps.
    pub quantum: u64,
    pub weight: f64,
    pub capacity_packets: u64,
    pub capacity_bytes: u64,
    pub frees_at_end: bool,
    pub batch_packets: u32,
    pub batch_time: u64,
    pub blocks_before_service: bool,
    pub blocks_after_service: bool,
    /// Stations with a queue that this one, when full, blocks before service.
    pub upstream: Vec<u32>,
}

impl QueuePlan {
    /// Whether it accepts every packet.
    pub fn is_unlimited(&self) -> bool {
        self.capacity_packets == u64::MAX && self.capacity_bytes == u64::MAX
    }
}

impl Network {
    /// The model of this network.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Whether all its sources end.
    pub(super) fn ends(&self) -> bool {
        self.sources.iter().all(SourcePlan::ends)
    }

    /// Number of events that can be scheduled at a time.
    pub(super) fn events(&self) -> usize {
        self.polling_events.end + self.sources.len()
    }

    /// The routes of a class from a queue or source.
    pub(super) fn routes_of(&self, origin: usize, class: usize) -> &[Route] {
        &self.routes[origin * self.classes + class].all
    }

    /// Whether a queue of a station blocks after service.
    pub(super) fn blocks_after_service(&self, station: usize) -> bool {
        let mut queues = self.queues.iter();
        queues.any(|queue| queue.station as usize == station && queue.blocks_after_service)
    }
}
