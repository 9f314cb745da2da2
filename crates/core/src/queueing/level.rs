//! A priority level of a station during a run.

use super::levels::{LevelPlan, PolicyPlan, PollingPlan};
use super::model::Tags;
use super::policy::{self, Poll, PollingState};
use super::queues::Queues;
use super::sampler::Sampler;
use super::scale::Scale;
use super::time::picoseconds;
use crate::distributions::Rng;

/// The state of a level and of its policy. The alignment makes the size a power of two, so that an index becomes a
/// shift.
#[derive(Clone)]
#[repr(align(128))]
pub(super) struct Level<'n> {
    pub plan: &'n LevelPlan,
    /// Queues with a waiting packet.
    pub nonempty: u32,
    pub interrupted: u32,
    /// Round robin: the queue whose turn it is.
    turn: usize,
    /// Weighted fair queueing: the start tag of the packet in service.
    virtual_time: f64,
    polling: PollingState,
    wake: Option<Box<Times>>,
    /// If the times to switch are random.
    visit: Option<Box<Times>>,
}

/// Draws the times to wake the server of a level, or to switch to a queue.
#[derive(Clone)]
struct Times {
    sampler: Sampler,
    rng: Rng,
}

impl Times {
    fn new(sampler: Option<&Sampler>, stream: impl FnOnce() -> Rng) -> Option<Box<Self>> {
        sampler.map(|sampler| {
            Box::new(Self {
                sampler: sampler.clone(),
                rng: stream(),
            })
        })
    }

    fn draw(&mut self, bytes: u32) -> u64 {
        // A trace restarts at its end.
        let mut sample = || self.sampler.sample(bytes, &mut self.rng);
        picoseconds(sample().or_else(&mut sample).unwrap_or(0.0))
    }
}

/// The decision of a policy.
pub(super) enum Selection<'n> {
    Queue(usize),
    /// The level yields or switches queues until `Level::closed_until`.
    Close(&'n PollingPlan),
    Wait,
}

impl<'n> Level<'n> {
    /// The level of a plan; `stream` gives random number streams to wake-ups and to random times to switch.
    pub fn new(plan: &'n LevelPlan, mut stream: impl FnMut() -> Rng) -> Self {
        let wake = Times::new(plan.wake.as_ref(), &mut stream);
        let mut visit = Times::new(plan.visit.as_ref(), &mut stream);
        let switches_first = plan.polling().filter(|plan| plan.visits_empty);
        Self {
            plan,
            nonempty: 0,
            interrupted: 0,
            turn: 0,
            virtual_time: 0.0,
            polling: PollingState::new(switches_first.map(|plan| to_next(&mut visit, plan))),
            wake,
            visit,
        }
    }

    /// When a level that yields opens again, or its server arrives at the next queue, ps.
    #[inline]
    pub fn closed_until(&self) -> u64 {
        self.polling.closed_until
    }

    /// The station is idle: the next packet begins a new cycle of polling.
    pub fn end_cycle(&mut self) {
        self.polling.end_cycle();
    }

    /// The start tag of a packet that arrives at an empty queue, whose last tag is given: an idle queue does not save
    /// up its share.
    #[inline]
    pub fn start_tag(&self, tag: f64) -> f64 {
        tag.max(self.virtual_time)
    }

    /// Selects a queue; `first` is the first of its servable queues.
    #[inline]
    pub fn select<S: Scale>(
        &mut self,
        queues: &Queues<S>,
        now: u64,
        first: usize,
    ) -> Selection<'n> {
        let level = self.plan;
        let own = &level.queues;
        let number = |at: usize| own[at] as usize;
        let is_servable = |at: usize| queues.is_servable(number(at));
        if self.interrupted > 0 {
            // An interrupted packet resumes before other packets of its priority.
            let mut own = own.iter().map(|&queue| queue as usize);
            let resumed = own.find(|&queue| queues[queue].interrupted > 0);
            return resumed.map_or(Selection::Wait, Selection::Queue);
        }
        let selected = match &level.policy {
            PolicyPlan::Single => Some(0),
            PolicyPlan::Fcfs => policy::first_come_first_served(own.len(), |at| {
                let head = queues[number(at)].fifo.head;
                is_servable(at).then(|| queues.jobs[head].arrived)
            }),
            PolicyPlan::RoundRobin { .. } => {
                let selected = policy::round_robin(own.len(), self.turn, first, is_servable);
                self.turn = policy::following(selected, own.len());
                Some(selected)
            }
            PolicyPlan::WeightedFair(_) => {
                let tag = |at: usize| queues[number(at)].tag;
                policy::smallest_start_tag(own.len(), tag, is_servable)
            }
            PolicyPlan::Polling(plan) => {
                let decided = policy::poll(self.polling, plan, own.len(), now, first, is_servable);
                return self.apply(decided, plan);
            }
        };
        selected.map_or(Selection::Wait, |at| Selection::Queue(number(at)))
    }

    /// Moves the idle server of a level that visits all queues.
    pub fn visit<S: Scale>(&mut self, queues: &Queues<S>, now: u64) -> Selection<'n> {
        let level = self.plan;
        let own = &level.queues;
        let Some(plan) = level.polling() else {
            return Selection::Wait;
        };
        let is_servable = |at: usize| queues.is_servable(own[at] as usize);
        let draw = || to_next(&mut self.visit, plan);
        let decided = policy::poll_all(self.polling, plan, own.len(), now, draw, is_servable);
        self.apply(decided, plan)
    }

    fn apply(
        &mut self,
        (state, next): (PollingState, Poll),
        plan: &'n PollingPlan,
    ) -> Selection<'n> {
        self.polling = state;
        match next {
            Poll::Serve(at) => Selection::Queue(self.plan.queues[at] as usize),
            Poll::Close => Selection::Close(plan),
            Poll::Wait => Selection::Wait,
        }
    }

    /// Charges a queue for a service that starts: changes its start tag. Returns the time to wake the server and to
    /// switch to the queue, ps.
    #[inline]
    pub fn charge(&mut self, tag: &mut f64, weight: f64, work: u64, bytes: u32) -> u64 {
        match &self.plan.policy {
            PolicyPlan::WeightedFair(tags) => {
                self.virtual_time = *tag;
                let cost = match tags {
                    Tags::Bytes => f64::from(bytes),
                    Tags::Packets => 1.0,
                    Tags::Time => work as f64,
                };
                *tag += cost / weight;
                0
            }
            PolicyPlan::Polling(plan) => {
                self.polling.visit_packets += 1;
                let is_first = self.polling.visit_packets == 1;
                let was_asleep = std::mem::replace(&mut self.polling.is_asleep, false);
                match &mut self.wake {
                    Some(wake) if was_asleep => wake.draw(bytes),
                    _ if is_first && !plan.visits_empty => match &mut self.visit {
                        Some(visit) => visit.draw(bytes),
                        None => plan.visit_time,
                    },
                    _ => 0,
                }
            }
            PolicyPlan::Single | PolicyPlan::Fcfs | PolicyPlan::RoundRobin { .. } => 0,
        }
    }
}

/// The time to switch to the next queue, empty or not, ps. Above 0, so that a server that finds no packet moves on in
/// time.
fn to_next(visit: &mut Option<Box<Times>>, plan: &PollingPlan) -> u64 {
    visit
        .as_mut()
        .map_or(plan.visit_time, |visit| visit.draw(0).max(1))
}
