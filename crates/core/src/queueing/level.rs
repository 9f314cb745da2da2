//! Which of the queues of one priority is served next.

use super::calendar::NEVER;
use super::engine::{Engine, QueueState};
use super::model::Tags;
use super::network::{LevelPlan, PolicyPlan};
use super::scale::Scale;

/// The state of a level's policy.
#[derive(Clone)]
#[repr(align(64))]
pub(super) struct Level<'n> {
    pub plan: &'n LevelPlan,
    /// Queues with somebody in them.
    pub nonempty: u32,
    /// Queues with somebody whom a higher priority interrupted.
    pub interrupted: u32,
    /// The queue whose turn it is.
    turn: usize,
    /// Start time of the packet in service: the virtual time of weighted fair queueing.
    virtual_time: f64,
    visit_packets: u32,
    cycle_packets: u32,
    cycle_began: u64,
    /// Until then it gives way to lower priorities, if they have work; or, where the server goes around among all
    /// queues, the time at which it reaches the next one, if it is known that it is awaited.
    pub closed_until: u64,
    /// When the server set out for the next queue; `NEVER` while it is at one.
    walk_began: u64,
}

impl<'n> Level<'n> {
    pub fn new(plan: &'n LevelPlan) -> Self {
        Self {
            plan,
            nonempty: 0,
            interrupted: 0,
            turn: 0,
            virtual_time: 0.0,
            visit_packets: 0,
            cycle_packets: 0,
            cycle_began: NEVER,
            closed_until: 0,
            walk_began: if plan.policy.walks() { 0 } else { NEVER },
        }
    }

    /// The station is idle: the next packet begins a new cycle of polling.
    pub fn end_cycle(&mut self) {
        self.visit_packets = 0;
        self.cycle_packets = 0;
        self.cycle_began = NEVER;
    }

    /// A queue that was empty has saved up no share.
    #[inline]
    pub fn catch_up(&self, queue: &mut QueueState) {
        queue.tag = queue.tag.max(self.virtual_time);
    }

    /// Charges a queue for a service that starts; returns what the policy itself costs, ps.
    #[inline]
    pub fn charge(&mut self, queue: &mut QueueState, work: u64, bytes: u32) -> u64 {
        match self.plan.policy {
            PolicyPlan::WeightedFair(tags) => {
                self.virtual_time = queue.tag;
                let share = match tags {
                    Tags::Bytes => f64::from(bytes),
                    Tags::Packets => 1.0,
                    Tags::Time => work as f64,
                };
                queue.tag += share / queue.plan.weight;
                0
            }
            PolicyPlan::Polling { visit, walks, .. } => {
                self.visit_packets += 1;
                if self.visit_packets == 1 && !walks {
                    visit
                } else {
                    0
                }
            }
            PolicyPlan::Single | PolicyPlan::Fcfs | PolicyPlan::RoundRobin { .. } => 0,
        }
    }
}

impl<S: Scale, const TRACED: bool> Engine<'_, S, TRACED> {
    /// The queue of a level to serve, of whose queues that of number `servable` is the first that can be
    /// served; None when the level has just decided to give way.
    #[inline]
    pub(super) fn select(&mut self, level: usize, servable: usize) -> Option<usize> {
        let state = &self.levels[level];
        let plan = state.plan;
        if state.interrupted > 0 {
            // Who was interrupted goes on before anybody else of his priority.
            let resumed = plan
                .queues
                .iter()
                .find(|&&queue| self.queues[queue as usize].interrupted > 0);
            return resumed.map(|&queue| queue as usize);
        }
        if S::PLAIN {
            // The only policy that plain networks have besides that of a single queue.
            return Some(self.take_turn(level, servable));
        }
        match plan.policy {
            PolicyPlan::Single => Some(plan.queues[0] as usize),
            PolicyPlan::Fcfs => {
                let mut first: Option<(u64, usize)> = None;
                for &queue in &plan.queues {
                    let queue = queue as usize;
                    if self.is_servable(queue) {
                        let arrived = self.jobs[self.queues[queue].line.head].arrived;
                        if first.is_none_or(|(soonest, _)| arrived < soonest) {
                            first = Some((arrived, queue));
                        }
                    }
                }
                first.map(|(_, queue)| queue)
            }
            PolicyPlan::RoundRobin { .. } => Some(self.take_turn(level, servable)),
            PolicyPlan::WeightedFair(_) => {
                let mut first: Option<usize> = None;
                for &queue in &plan.queues {
                    let queue = queue as usize;
                    let is_before =
                        first.is_none_or(|first| self.queues[queue].tag < self.queues[first].tag);
                    if is_before && self.is_servable(queue) {
                        first = Some(queue);
                    }
                }
                first
            }
            PolicyPlan::Polling { .. } => self.poll(level, servable),
        }
    }

    /// The next queue that can be served, whose turn this was.
    #[inline(always)]
    fn take_turn(&mut self, level: usize, servable: usize) -> usize {
        let (queue, after) = self.next_in_turn(level, servable);
        self.levels[level].turn = after;
        queue
    }

    /// The next queue that can be served, and whose turn it is after it; that of number `servable` is the
    /// first of all that can be.
    #[inline(always)]
    fn next_in_turn(&mut self, level: usize, servable: usize) -> (usize, usize) {
        let state = &self.levels[level];
        let (queues, turn) = (&state.plan.queues, state.turn);
        let after = |at: usize| if at + 1 == queues.len() { 0 } else { at + 1 };
        for (at, &queue) in queues.iter().enumerate().skip(turn) {
            if at == servable || at > servable && self.is_servable(queue as usize) {
                return (queue as usize, after(at));
            }
        }
        // None from the one whose turn it is on: the first of all.
        (queues[servable] as usize, after(servable))
    }

    /// Limited polling: a batch of each queue in turn, a budget for each cycle.
    fn poll(&mut self, level: usize, servable: usize) -> Option<usize> {
        let plan = self.levels[level].plan;
        let PolicyPlan::Polling {
            batch,
            budget,
            budget_time,
            rest,
            timer,
            ..
        } = plan.policy
        else {
            return None;
        };
        let now = self.now;
        let current = plan.queues[self.levels[level].turn] as usize;
        let goes_on = self.is_servable(current);
        let state = &mut self.levels[level];
        if state.cycle_began == NEVER {
            state.cycle_began = now;
        }
        if state.visit_packets > 0 && (!goes_on || state.visit_packets >= batch) {
            state.cycle_packets += state.visit_packets;
            state.visit_packets = 0;
            state.turn = (state.turn + 1) % plan.queues.len();
            if state.cycle_packets >= budget || now - state.cycle_began >= budget_time {
                state.cycle_packets = 0;
                state.cycle_began = NEVER;
                if rest > 0 {
                    state.closed_until = now + rest;
                    self.set_timer(timer, now + rest);
                    return None;
                }
            }
        } else if state.visit_packets > 0 {
            return Some(current);
        }
        let (queue, after) = self.next_in_turn(level, servable);
        self.levels[level].turn = (after + plan.queues.len() - 1) % plan.queues.len();
        Some(queue)
    }

    /// Lets a server go around among all queues of its station, empty or not, and serve where it is.
    ///
    /// While no packet can be served its way takes no events: where it is follows from when it set out.
    #[cold]
    #[inline(never)]
    pub(super) fn walk(&mut self, station: usize) {
        let state = &self.stations[station];
        let (server, level) = (state.first_server, state.first_level);
        if state.idle == 0 {
            return;
        }
        let plan = self.levels[level].plan;
        let PolicyPlan::Polling {
            batch,
            visit,
            timer,
            ..
        } = plan.policy
        else {
            return;
        };
        let (now, queues) = (self.now, plan.queues.len());
        let state = &mut self.levels[level];
        if state.walk_began != NEVER {
            if state.closed_until > now {
                return;
            }
            if state.closed_until == now && now > 0 {
                state.turn = (state.turn + 1) % queues;
                state.visit_packets = 0;
                state.walk_began = NEVER;
            } else {
                let visited = (now - state.walk_began) / visit;
                state.turn = (state.turn + (visited % queues as u64) as usize) % queues;
                state.walk_began += visited * visit;
            }
        }
        if self.levels[level].walk_began == NEVER {
            let current = plan.queues[self.levels[level].turn] as usize;
            if self.levels[level].visit_packets < batch && self.is_servable(current) {
                self.start(server, current);
                return;
            }
            let state = &mut self.levels[level];
            state.walk_began = now;
            state.closed_until = 0;
        }
        if self.servable(level).is_some() {
            let state = &mut self.levels[level];
            let arrives = state.walk_began.saturating_add(visit).min(NEVER - 1);
            state.closed_until = arrives;
            self.set_timer(timer, arrives);
        }
    }
}
