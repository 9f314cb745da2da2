//! Queue disciplines: which queue of a priority level a server serves next.
//!
//! Each discipline is a pure function of the queues of a level, numbered from 0, and of the state of the level.

use super::calendar::NEVER;
use super::levels::PollingPlan;

/// First come, first served: the queue whose first packet arrived first; the first of equals. `arrival` is the arrival
/// time of the first packet of a queue, None if it cannot be served.
pub(super) fn first_come_first_served(
    queues: usize,
    arrival: impl Fn(usize) -> Option<u64>,
) -> Option<usize> {
    let arrivals = (0..queues).filter_map(|queue| Some((arrival(queue)?, queue)));
    let first = arrivals.min_by_key(|&(arrival, _)| arrival);
    first.map(|(_, queue)| queue)
}

/// Weighted fair queueing: the queue with the smallest start tag; the first of equals.
pub(super) fn smallest_start_tag(
    queues: usize,
    tag: impl Fn(usize) -> f64,
    is_servable: impl Fn(usize) -> bool,
) -> Option<usize> {
    let mut smallest: Option<usize> = None;
    for queue in 0..queues {
        let is_smaller = smallest.is_none_or(|smallest| tag(queue) < tag(smallest));
        if is_smaller && is_servable(queue) {
            smallest = Some(queue);
        }
    }
    smallest
}

/// Round robin: the next servable queue from `turn` on. `first` is the first of all servable queues.
#[inline(always)]
pub(super) fn round_robin(
    queues: usize,
    turn: usize,
    first: usize,
    is_servable: impl Fn(usize) -> bool,
) -> usize {
    let mut from_turn = turn..queues;
    let next = from_turn.find(|&queue| queue == first || queue > first && is_servable(queue));
    next.unwrap_or(first)
}

/// The queue after this one, in turn.
#[inline(always)]
pub(super) fn following(queue: usize, queues: usize) -> usize {
    if queue + 1 == queues { 0 } else { queue + 1 }
}

/// The state of a polling level. Times are in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PollingState {
    /// The queue that the server visits.
    pub queue: usize,
    /// Packets whose service started in this visit.
    pub visit_packets: u32,
    cycle_packets: u32,
    /// `NEVER` between cycles.
    cycle_began: u64,
    /// The level yields to lower priorities until then. If the server visits empty queues too: when it arrives at the
    /// next queue, if a packet waits.
    pub closed_until: u64,
    /// When the server left the last queue for the next one; `NEVER` at a queue.
    switch_began: u64,
    /// Time of this switch.
    switch_time: u64,
    /// Whether the station was idle since the last service.
    pub is_asleep: bool,
}

/// What a polling server does next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Poll {
    /// It serves this queue.
    Serve(usize),
    /// It yields or switches queues until `closed_until`.
    Close,
    /// It waits for a packet, or is already switching queues.
    Wait,
}

impl PollingState {
    /// `first_switch` is the time of the first switch, if the server switches before it serves.
    pub fn new(first_switch: Option<u64>) -> Self {
        Self {
            queue: 0,
            visit_packets: 0,
            cycle_packets: 0,
            cycle_began: NEVER,
            closed_until: 0,
            switch_began: first_switch.map_or(NEVER, |_| 0),
            switch_time: first_switch.unwrap_or(0),
            is_asleep: true,
        }
    }

    /// The station is idle: the next packet begins a new cycle.
    pub fn end_cycle(&mut self) {
        self.visit_packets = 0;
        self.cycle_packets = 0;
        self.cycle_began = NEVER;
        self.is_asleep = true;
    }
}

/// Limited polling of the queues with packets: up to a batch of each queue in turn, then, at the end of the budget of a
/// cycle, a yield. `first` is the first of all servable queues.
pub(super) fn poll(
    mut state: PollingState,
    plan: &PollingPlan,
    queues: usize,
    now: u64,
    first: usize,
    is_servable: impl Fn(usize) -> bool,
) -> (PollingState, Poll) {
    let continues = is_servable(state.queue) && state.visit_packets < plan.batch;
    if state.cycle_began == NEVER {
        state.cycle_began = now;
    }
    if state.visit_packets > 0 {
        if continues {
            return (state, Poll::Serve(state.queue));
        }
        state.cycle_packets += state.visit_packets;
        state.visit_packets = 0;
        state.queue = following(state.queue, queues);
        let spent_time = now - state.cycle_began;
        if state.cycle_packets >= plan.budget || spent_time >= plan.budget_time {
            state.cycle_packets = 0;
            state.cycle_began = NEVER;
            if plan.yield_time > 0 {
                state.closed_until = now + plan.yield_time;
                return (state, Poll::Close);
            }
        }
    }
    state.queue = round_robin(queues, state.queue, first, is_servable);
    (state, Poll::Serve(state.queue))
}

/// Random switches of an idle time that are drawn. Of more, the first count with their mean: after so many, the position
/// is random anyway, and an idle time takes a bounded number of steps.
const SWITCHES_DRAWN: u64 = 1024;

/// Polling of all queues, empty or not, by an idle server that needs the time that `draw` gives to switch to the next
/// queue.
///
/// While no packet can be served, switching takes no events: the position follows from the time since it began.
pub(super) fn poll_all(
    mut state: PollingState,
    plan: &PollingPlan,
    queues: usize,
    now: u64,
    mut draw: impl FnMut() -> u64,
    is_servable: impl Fn(usize) -> bool,
) -> (PollingState, Poll) {
    if state.switch_began != NEVER {
        if state.closed_until > now {
            return (state, Poll::Wait);
        }
        if state.closed_until == now && now > 0 {
            state.queue = following(state.queue, queues);
            state.visit_packets = 0;
            state.switch_began = NEVER;
        } else {
            let elapsed = now - state.switch_began;
            let drawn = if plan.is_visit_random {
                SWITCHES_DRAWN
            } else {
                0
            };
            let skipped = (elapsed / plan.visit_time).saturating_sub(drawn);
            state.queue = (state.queue + (skipped % queues as u64) as usize) % queues;
            state.switch_began += skipped * plan.visit_time;
            while now - state.switch_began >= state.switch_time {
                state.switch_began += state.switch_time;
                state.queue = following(state.queue, queues);
                state.switch_time = draw();
            }
        }
    }
    if state.switch_began == NEVER {
        if state.visit_packets < plan.batch && is_servable(state.queue) {
            return (state, Poll::Serve(state.queue));
        }
        state.switch_began = now;
        state.switch_time = draw();
        state.closed_until = 0;
    }
    if !(0..queues).any(is_servable) {
        return (state, Poll::Wait);
    }
    let arrival = state.switch_began.saturating_add(state.switch_time);
    state.closed_until = arrival.min(NEVER - 1);
    (state, Poll::Close)
}
