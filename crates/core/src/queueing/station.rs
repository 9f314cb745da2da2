//! The state of a station and of its servers during a run.

use std::ops::Range;

use super::jobs::NONE;
use super::levels::{LevelPlan, PolicyPlan};
use super::model::StationKind;
use super::network::{Network, StationPlan};
use super::sharing::Shared;
use super::statistics::BlockedTime;

/// The job of a server whose packet is blocked after service: the server is neither idle nor busy.
pub(super) const BLOCKED: u32 = NONE - 1;

/// A server. Its number is the number of its event. A shared station has one.
#[derive(Clone, Copy)]
pub(super) struct Server {
    pub station: u32,
    /// The packet in service, `NONE` or `BLOCKED`.
    pub job: u32,
    pub queue: u32,
    /// Number among the levels of its station.
    pub level: u32,
    /// When this service, or this quantum of it, began.
    pub began: u64,
    /// Work left after this quantum, ps.
    pub unfinished: u64,
}

// The alignment makes the size a power of two, so that an index becomes a shift.
#[derive(Clone)]
#[repr(align(256))]
pub(super) struct StationState<'n> {
    pub preempts: bool,
    pub first_server: usize,
    pub servers: usize,
    pub first_level: usize,
    pub idle: usize,
    /// Levels with a waiting packet, one bit each.
    pub ready: u64,
    /// Levels with a single queue that blocks before service.
    pub blocking: u64,
    pub has_polling: bool,
    /// Whether its server also visits empty queues.
    pub visits_empty: bool,
    pub shared: Option<Shared<'n>>,
    pub blocked: BlockedTime,
}

impl Server {
    pub fn idle(station: usize) -> Self {
        Self {
            station: station as u32,
            job: NONE,
            queue: 0,
            level: 0,
            began: 0,
            unfinished: 0,
        }
    }
}

impl<'n> StationState<'n> {
    pub fn new(plan: &'n StationPlan, network: &Network) -> Self {
        let levels = plan.levels.iter().enumerate();
        let blocks = |level: &LevelPlan| {
            level.policy == PolicyPlan::Single
                && network.queues[level.queues[0] as usize].blocks_before_service
        };
        let blocking = levels.filter(|(_, level)| blocks(level));
        let polling = || plan.levels.iter().filter_map(LevelPlan::polling);
        Self {
            preempts: plan.kind == StationKind::PreemptiveResume,
            first_server: plan.first_event,
            servers: plan.servers,
            first_level: plan.first_level,
            idle: plan.servers,
            ready: 0,
            blocking: blocking.fold(0, |bits, (level, _)| bits | 1 << level),
            has_polling: polling().next().is_some(),
            visits_empty: polling().any(|polling| polling.visits_empty),
            shared: plan.kind.is_shared().then(|| Shared::new(plan)),
            blocked: BlockedTime::default(),
        }
    }

    #[inline]
    pub fn server_range(&self) -> Range<usize> {
        self.first_server..self.first_server + self.servers
    }

    /// Whether every server has a blocked packet; at a shared station, whether all its packets are blocked.
    pub fn is_held_up(&self) -> bool {
        match &self.shared {
            Some(shared) => shared.is_empty() && self.blocked.now > 0,
            None => self.blocked.now as usize == self.servers,
        }
    }
}
