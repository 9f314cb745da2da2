//! All senders of a run.

use super::backend::trace_memory::TraceMemory;
use super::plan_ring::Shape;
use super::schedule::Schedule;
use super::sender::{Place, Sender, Sent};
use super::{BackendKind, GenerateError, Request};
use parshall_core::workload::{Packets, Workload};
use std::sync::Arc;

/// Planned packets at most, of all senders together: 0.1 s of the fastest. None can be farther ahead of another.
const CAPACITY_MAX: u64 = 1 << 20;
/// The same for sockets, which are slower.
const CAPACITY_MAX_SOCKET: u64 = 1 << 17;
const CAPACITY_MIN: u64 = 1 << 12;

/// The senders, each with its packets of the plan.
pub(super) struct Team {
    senders: Vec<Sender>,
}

impl Team {
    /// Starts a sender for each of the CPUs that are asked for, or one that may run on any of them; they wait for [`Team::go`].
    pub fn start(
        request: &Request,
        workload: &Arc<Workload>,
        packets: &Arc<Packets>,
    ) -> Result<Self, GenerateError> {
        let of = request.senders()? as u64;
        let most = match request.backend {
            BackendKind::Xdp => CAPACITY_MAX,
            _ => CAPACITY_MAX_SOCKET,
        };
        let capacity = (request.count.unwrap_or(u64::MAX) / of)
            .clamp(CAPACITY_MIN, (most / of).max(CAPACITY_MIN))
            .next_power_of_two();
        let trace = match (&workload.replay, request.backend) {
            (Some(replay), BackendKind::Xdp) => {
                Some(Arc::new(TraceMemory::of(replay, of as usize)?))
            }
            _ => None,
        };
        let sender = |index: u64| {
            let place = Place {
                interface: request.interface.clone(),
                namespace: request.namespace.clone(),
                cpu: request.cpus.get(index as usize).copied(),
                queue: match request.queues.get(index as usize) {
                    Some(queue) => *queue,
                    None => index as u32,
                },
                backend: request.backend,
                count: request.count,
                trace: trace.clone(),
            };
            let shape = Shape {
                sender: index,
                senders: of,
                capacity: capacity as u32,
                is_paced: !workload.gaps.is_none(),
            };
            Sender::start(place, Arc::clone(workload), Arc::clone(packets), shape)
        };
        let team = Self {
            senders: (0..of).map(sender).collect::<Result<_, _>>()?,
        };
        team.schedule().set_end(request.count.unwrap_or(u64::MAX));
        Ok(team)
    }

    /// Senders.
    pub fn size(&self) -> usize {
        self.senders.len()
    }

    /// Their rings.
    pub fn schedule(&self) -> Schedule {
        Schedule::new(
            self.senders
                .iter()
                .map(|sender| Arc::clone(&sender.ring))
                .collect(),
        )
    }

    /// Begin to send; or, after a halt, send the rest.
    pub fn go(&self) {
        for sender in &self.senders {
            sender.go();
        }
    }

    /// Whether all senders have ended.
    pub fn has_ended(&self) -> bool {
        self.senders.iter().all(Sender::has_ended)
    }

    /// Whether all senders have halted or ended.
    pub fn is_at_rest(&self) -> bool {
        self.senders
            .iter()
            .all(|sender| sender.is_halted() || sender.has_ended())
    }

    /// Whether all senders are ready for the first packet to be due.
    pub fn is_ready(&self) -> bool {
        self.senders
            .iter()
            .all(|sender| sender.ring.has_waited() || sender.has_ended())
    }

    /// Whether a sender has ended before it has sent all of its packets.
    pub fn has_failed(&self) -> bool {
        self.senders
            .iter()
            .any(|sender| sender.has_ended() && sender.ring.next() < sender.ring.end())
    }

    /// Interrupts the senders that should end, which may be in the kernel's loop.
    pub fn interrupt(&self) {
        for sender in &self.senders {
            if sender.ring.is_stopped() || sender.ring.taken() == sender.ring.end() {
                sender.interrupt();
            }
        }
    }

    /// CPUs to which senders are bound.
    pub fn cpus(&self) -> Vec<usize> {
        self.senders
            .iter()
            .filter_map(|sender| sender.cpu)
            .collect()
    }

    /// Packets that each of them has sent, as far as they have reported.
    pub fn sent(&self) -> impl Iterator<Item = u64> + Clone {
        self.senders.iter().map(|sender| sender.ring.taken())
    }

    /// What each of them found; waits for their end.
    pub fn join(self) -> Result<Vec<Sent>, GenerateError> {
        self.senders.into_iter().map(Sender::join).collect()
    }
}

impl Request {
    /// How many senders are asked for.
    fn senders(&self) -> Result<usize, GenerateError> {
        let listed = |numbers: Vec<String>| numbers.join(",");
        let cpus = || listed(self.cpus.iter().map(usize::to_string).collect());
        let refused = |option, found: String, expected: &str| {
            Err(GenerateError::option(option, found, expected))
        };
        if (1..self.cpus.len()).any(|index| self.cpus[..index].contains(&self.cpus[index])) {
            return refused(
                "--cpu",
                cpus(),
                "each CPU once, since each has a sender of its own",
            );
        }
        let senders = self.cpus.len().max(1);
        if self.backend == BackendKind::Pktgen && senders > 1 {
            return refused(
                "--cpu",
                cpus(),
                "one CPU with --backend pktgen; xdp, af-packet and af-xdp send from several",
            );
        }
        if self.queues.is_empty() {
            return Ok(senders);
        }
        let queues = || listed(self.queues.iter().map(u32::to_string).collect());
        if self.backend != BackendKind::AfXdp {
            return refused(
                "--queue",
                queues(),
                "--backend af-xdp beside it: what others send by is the driver's choice",
            );
        }
        if self.queues.len() != senders {
            return refused(
                "--queue",
                queues(),
                "as many queues as there are CPUs in --cpu, one for each",
            );
        }
        if (1..senders).any(|index| self.queues[..index].contains(&self.queues[index])) {
            return refused("--queue", queues(), "each queue once");
        }
        Ok(senders)
    }
}
