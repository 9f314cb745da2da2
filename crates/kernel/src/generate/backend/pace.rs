//! When a packet may leave, for senders in user space.

use crate::clock::monotonic_ns;
use crate::generate::plan_ring::PlanRing;
use parshall_core::workload::Packet;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec};

/// A longer wait sleeps, and spins for this long at its end: waking takes some ten microseconds.
const SPIN_NS: u64 = 100_000;
/// A sleep is never longer, so that a run that is stopped ends.
const SLEEP_NS_MAX: u64 = 20_000_000;

/// A packet that may leave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    /// Its number in the plan.
    pub sequence: u64,
    /// What it is.
    pub packet: Packet,
    /// `CLOCK_MONOTONIC`, ns; 0 when the time is not needed.
    pub now_ns: u64,
}

/// Takes packets from the plan, each when it is due. The schedule is absolute: what was late is caught up.
pub(crate) struct Pace<'a> {
    ring: &'a PlanRing,
    is_stamped: bool,
    next: u64,
    drawn: u64,
    start_ns: Option<u64>,
}

impl<'a> Pace<'a> {
    /// From the next packet of the ring on.
    pub fn new(ring: &'a PlanRing, is_stamped: bool) -> Self {
        Self {
            ring,
            is_stamped,
            next: ring.next(),
            drawn: 0,
            start_ns: None,
        }
    }

    /// Whether the next packet can be had without waiting.
    pub fn is_ready(&mut self) -> bool {
        if self.ring.is_stopped() || self.next >= self.ring.end() || !self.is_drawn() {
            return false;
        }
        !self.ring.is_paced() || self.due_ns().is_some_and(|due| monotonic_ns() >= due)
    }

    /// Waits for the next packet; None at the end, or when the run is stopped.
    pub fn next(&mut self) -> Option<Due> {
        if self.next >= self.ring.end() || self.ring.is_stopped() {
            return None;
        }
        if !self.is_drawn() {
            self.ring.starved();
            while !self.is_drawn() {
                // The end may be lowered to what was already sent.
                if self.ring.is_stopped() || self.next >= self.ring.end() {
                    return None;
                }
                std::thread::yield_now();
            }
        }
        let now_ns = if self.ring.is_paced() {
            self.wait()?
        } else {
            if self.next == 0 {
                self.ring.begin(monotonic_ns());
            }
            if self.is_stamped { monotonic_ns() } else { 0 }
        };
        let number = self.next;
        let (_, packet) = self.ring.sent(number);
        if let Some(start_ns) = self.start_ns {
            self.ring.set_sent_ns(number, now_ns - start_ns);
        }
        self.next += 1;
        Some(Due {
            sequence: self.ring.shape.sequence(number),
            packet,
            now_ns,
        })
    }

    /// Every packet that was taken has left, but for the last `unsent` of them.
    pub fn report(&self, unsent: u64) {
        self.ring.set_sent(self.next - unsent);
    }

    /// Whether the run should end.
    pub fn is_stopped(&self) -> bool {
        self.ring.is_stopped()
    }

    fn is_drawn(&mut self) -> bool {
        if self.next >= self.drawn {
            self.drawn = self.ring.drawn();
        }
        self.next < self.drawn
    }

    fn due_ns(&self) -> Option<u64> {
        let (_, packet) = self.ring.sent(self.next);
        self.start_ns.map(|start_ns| start_ns + packet.due_ns)
    }

    fn wait(&mut self) -> Option<u64> {
        while self.start_ns.is_none() {
            if self.ring.is_stopped() {
                return None;
            }
            std::thread::yield_now();
            self.start_ns = self.ring.start_ns();
        }
        let due_ns = self.due_ns()?;
        loop {
            let now_ns = monotonic_ns();
            if now_ns >= due_ns {
                return Some(now_ns);
            }
            if self.ring.is_stopped() {
                return None;
            }
            let left_ns = due_ns - now_ns;
            if left_ns > SPIN_NS {
                sleep_until(now_ns + (left_ns - SPIN_NS).min(SLEEP_NS_MAX));
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// A signal may end it early; the caller reads the clock again anyhow.
fn sleep_until(time_ns: u64) {
    let time = Timespec {
        tv_sec: (time_ns / 1_000_000_000) as i64,
        tv_nsec: (time_ns % 1_000_000_000) as _,
    };
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &time);
}
