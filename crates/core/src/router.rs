//! A router and its sender, packet by packet: when each packet is sent, and when it leaves.
//!
//! Sender and router are CPUs of one machine. To wake a router that sleeps takes the sender time, in which it sends
//! nothing, so arrivals depend on the router. The router polls its queue: it takes waiting packets in lists, passes
//! each list through its layers together, and so its packets leave shortly after each other. What was drawn for each
//! packet is given; nothing here is random.

use std::collections::VecDeque;

/// What is the same for all packets. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Router {
    /// From the sender's stamp to the router's queue.
    pub link: f64,
    /// That the sender takes for a packet.
    pub transfer: f64,
    /// Most packets that the sender sends at once.
    pub sender_batch: usize,
    /// Most packets of a list.
    pub list: usize,
    /// Between two packets of a list that leave.
    pub between: f64,
    /// From the last packet of a poll until the router looks for others: then it sleeps, or polls again.
    pub look: f64,
    /// Most packets of a poll.
    pub poll: usize,
    /// That a poll of the other device takes after as many packets.
    pub visit: f64,
    /// Packets that may wait.
    pub places: usize,
}

/// What was drawn, one value a packet, and what takes the CPU meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Drawn<'a> {
    /// When it is due, in order.
    pub due: &'a [f64],
    /// That the router takes for it.
    pub service: &'a [f64],
    /// That the router takes to wake for it.
    pub wake: &'a [f64],
    /// That the sender takes when the packet wakes the router.
    pub pause: &'a [f64],
    /// Begin and length of each stall, in order.
    pub stalls: &'a [(f64, f64)],
    /// Factors of the wake-ups after idle times, which rise: a CPU that slept for longer wakes more slowly.
    pub after_idle: &'a [(f64, f64)],
}

/// When each packet was sent, and when it left; NaN when it was lost.
#[derive(Debug, PartialEq)]
pub struct Passages {
    /// When each packet was sent.
    pub sent: Vec<f64>,
    /// When it left the router.
    pub left: Vec<f64>,
}

impl Router {
    /// Sends packets when they are due, in this order, or as soon as the sender is free.
    ///
    /// # Panics
    ///
    /// Fewer services, wake-ups or pauses were drawn than packets are due.
    #[must_use]
    pub fn passages(&self, drawn: &Drawn<'_>) -> Passages {
        let (count, mut first, mut free) = (drawn.due.len(), 0, 0.0_f64);
        let mut sent = vec![0.0; count];
        let mut cpu = Cpu::new(self, drawn);
        while first < count {
            let now = drawn.due[first].max(free);
            let most = self.sender_batch.clamp(1, count - first);
            let more = drawn.due[first + 1..first + most].iter();
            let end = first + 1 + more.take_while(|due| **due <= now).count();
            let at = now + self.link;
            free = now + (end - first) as f64 * self.transfer;
            if cpu.wakes(at, drawn.wake[first]) {
                free = free.max(now + drawn.pause[first]);
            }
            sent[first..end].fill(now);
            (first..end).for_each(|packet| cpu.join(packet, at));
            first = end;
        }
        cpu.run_until(f64::INFINITY);
        Passages {
            sent,
            left: cpu.left,
        }
    }
}

/// The router's CPU.
struct Cpu<'a> {
    router: &'a Router,
    drawn: &'a Drawn<'a>,
    /// Packets that are in no list yet, and when they joined the queue.
    queue: VecDeque<(usize, f64)>,
    /// When packets leave that were in the queue lately.
    leaving: VecDeque<f64>,
    left: Vec<f64>,
    is_asleep: bool,
    /// Whether its poll is over, and it is about to look for more.
    has_ended: bool,
    /// When it can take the next list.
    free: f64,
    polled: usize,
    stalls: usize,
    last_left: f64,
}

impl<'a> Cpu<'a> {
    fn new(router: &'a Router, drawn: &'a Drawn<'a>) -> Self {
        Self {
            router,
            drawn,
            queue: VecDeque::new(),
            leaving: VecDeque::new(),
            left: vec![f64::NAN; drawn.due.len()],
            is_asleep: true,
            has_ended: false,
            free: 0.0,
            polled: 0,
            stalls: 0,
            last_left: f64::NEG_INFINITY,
        }
    }

    /// Wakes the router when it sleeps at a time; says whether it did.
    fn wakes(&mut self, at: f64, wake: f64) -> bool {
        self.run_until(at);
        let was_asleep = self.is_asleep;
        if was_asleep {
            let wake = wake * factor(self.drawn.after_idle, at - self.last_left);
            self.free = self.spent(at, wake);
            (self.is_asleep, self.has_ended, self.polled) = (false, false, 0);
        }
        was_asleep
    }

    /// Puts a packet into the queue, unless that is full.
    fn join(&mut self, packet: usize, at: f64) {
        while self.leaving.front().is_some_and(|left| *left <= at) {
            self.leaving.pop_front();
        }
        if self.leaving.len() + self.queue.len() < self.router.places {
            self.queue.push_back((packet, at));
        }
    }

    /// Does what begins before a time, as far as packets of later times do not matter.
    fn run_until(&mut self, until: f64) {
        while !self.is_asleep {
            if self.queue.is_empty() {
                if until <= self.free {
                    return;
                }
                if !self.has_ended {
                    self.end_poll();
                    continue;
                }
                self.is_asleep = true;
            } else if !self.serve_list(until) {
                return;
            }
        }
    }

    fn end_poll(&mut self) {
        (self.has_ended, self.polled) = (true, 0);
        self.free += self.router.look;
    }

    /// Serves the next list; false: packets until this time may belong to it.
    fn serve_list(&mut self, until: f64) -> bool {
        let router = self.router;
        let most = router.list.min(router.poll - self.polled).max(1);
        // The list is taken from the queue one by one.
        let (mut count, mut taken, mut whole) = (0, self.free, 0.0);
        while count < most {
            match self.queue.get(count) {
                Some(&(packet, joined)) if count == 0 || joined <= taken => {
                    let service = self.drawn.service[packet];
                    whole += service;
                    taken += (service - router.between).max(0.0);
                    count += 1;
                }
                None if until <= taken => return false,
                _ => break,
            }
        }
        self.has_ended = false;
        self.free = self.spent(self.free, whole);
        self.last_left = self.free;
        for (place, (packet, _)) in self.queue.drain(..count).enumerate() {
            let left = self.free - (count - 1 - place) as f64 * router.between;
            self.left[packet] = left;
            self.leaving.push_back(left);
        }
        self.polled += count;
        if self.polled >= router.poll {
            (self.free, self.polled) = (self.spent(self.free, router.visit), 0);
        } else if count < most {
            self.end_poll();
        }
        true
    }

    /// Returns when work that begins at a time is done, which stalls delay.
    fn spent(&mut self, from: f64, work: f64) -> f64 {
        let mut now = from;
        let (stalls, mut passed) = (&self.drawn.stalls[self.stalls..], 0);
        // Some of them began while it had nothing to do.
        while let Some((begin, lasts)) = stalls.get(passed).filter(|(begin, _)| *begin <= now) {
            now = now.max(begin + lasts);
            passed += 1;
        }
        now += work;
        while let Some((_, lasts)) = stalls.get(passed).filter(|(begin, _)| *begin < now) {
            now += lasts;
            passed += 1;
        }
        self.stalls += passed;
        now
    }
}

/// Returns the factor after an idle time: between two points in proportion to the logarithm, beyond them constant.
fn factor(after_idle: &[(f64, f64)], idle: f64) -> f64 {
    let above = after_idle.partition_point(|(point, _)| *point <= idle);
    match (
        above.checked_sub(1).map(|at| after_idle[at]),
        after_idle.get(above),
    ) {
        (Some((low, before)), Some(&(high, after))) => {
            before + (after - before) * (idle / low).ln() / (high / low).ln()
        }
        (Some((_, only)), None) | (None, Some(&(_, only))) => only,
        (None, None) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Router = Router {
        link: 0.0,
        transfer: 0.0,
        sender_batch: 1,
        list: 1,
        between: 0.0,
        look: 0.0,
        poll: 64,
        visit: 0.0,
        places: usize::MAX,
    };

    fn passages(router: Router, due: &[f64], service: f64, stalls: &[(f64, f64)]) -> Passages {
        let all = |value| vec![value; due.len()];
        let (service, wake, pause) = (all(service), all(9_000.0), all(6_000.0));
        router.passages(&Drawn {
            due,
            service: &service,
            wake: &wake,
            pause: &pause,
            stalls,
            after_idle: &[],
        })
    }

    #[test]
    fn a_router_that_slept_for_longer_wakes_more_slowly() {
        let points = [(1_000.0, 1.0), (100_000.0, 2.0)];
        let factors =
            [500.0, 1_000.0, 10_000.0, 1e6, f64::INFINITY].map(|idle| factor(&points, idle));
        assert_eq!(factors, [1.0, 1.0, 1.5, 2.0, 2.0]);
        assert_eq!(factor(&[], 5.0), 1.0);
        let found = PLAIN.passages(&Drawn {
            due: &[0.0, 21_000.0],
            service: &[1_000.0; 2],
            wake: &[1_000.0; 2],
            pause: &[0.0; 2],
            stalls: &[],
            after_idle: &points,
        });
        // Before the first packet it slept for longer than all that was measured; then from 3,000 to 21,000.
        let after = 1_000.0 * factor(&points, 18_000.0);
        assert_eq!(found.left, [3_000.0, 22_000.0 + after]);
    }

    #[test]
    fn the_sender_waits_while_it_wakes_the_router() {
        let router = Router {
            link: 1_000.0,
            transfer: 500.0,
            sender_batch: 2,
            ..PLAIN
        };
        let found = passages(router, &[0.0, 100.0, 7_000.0, 7_000.0], 1_000.0, &[]);
        assert_eq!(found.sent, [0.0, 6_000.0, 7_000.0, 7_000.0]);
        assert_eq!(found.left, [11_000.0, 12_000.0, 13_000.0, 14_000.0]);
    }

    #[test]
    fn packets_of_a_list_leave_together() {
        let router = Router {
            list: 4,
            between: 100.0,
            ..PLAIN
        };
        let found = passages(router, &[0.0; 6], 1_000.0, &[]);
        // The first one wakes it, and the others wait 6 us for the sender: they find it awake.
        let ends = [13_000.0, 15_000.0];
        let all = [300.0, 200.0, 100.0, 0.0].map(|before| ends[0] - before);
        assert_eq!(
            found.sent,
            [0.0, 6_000.0, 6_000.0, 6_000.0, 6_000.0, 6_000.0]
        );
        assert_eq!(found.left[..4], all);
        assert_eq!(found.left[4..], [ends[1] - 100.0, ends[1]]);
    }

    #[test]
    fn a_list_takes_what_joins_while_it_is_taken_and_no_more() {
        let router = Router {
            list: 4,
            between: 400.0,
            ..PLAIN
        };
        // Woken at 9,000; the first is taken until 9,600, the second until 10,200.
        let found = passages(router, &[0.0, 9_500.0, 10_300.0], 1_000.0, &[]);
        assert_eq!(found.left, [10_600.0, 11_000.0, 12_000.0]);
    }

    #[test]
    fn a_router_that_looks_once_more_needs_no_waking() {
        let router = Router {
            list: 8,
            look: 2_000.0,
            ..PLAIN
        };
        let found = passages(router, &[0.0, 11_500.0, 18_000.0], 1_000.0, &[]);
        // It left at 10,000, looks at 12,000, leaves at 13,000, and sleeps from 15,000 on.
        assert_eq!(found.left, [10_000.0, 13_000.0, 28_000.0]);
    }

    #[test]
    fn what_finds_no_place_is_lost_and_a_visit_follows_a_full_poll() {
        let router = Router {
            sender_batch: 400,
            places: 100,
            visit: 6_400.0,
            ..PLAIN
        };
        let found = passages(router, &[0.0; 400], 1_000.0, &[]);
        let left: Vec<f64> = found
            .left
            .iter()
            .copied()
            .filter(|at| !at.is_nan())
            .collect();
        assert_eq!(left.len(), 100);
        assert_eq!(
            (left[63] - left[62], left[64] - left[63]),
            (1_000.0, 7_400.0)
        );
    }

    #[test]
    fn a_stall_delays_the_packet_that_it_meets() {
        let idle = passages(PLAIN, &[0.0, 50_000.0], 1_000.0, &[(45_000.0, 20_000.0)]);
        assert_eq!(idle.left, [10_000.0, 75_000.0]);
        let busy = passages(PLAIN, &[0.0, 50_000.0], 1_000.0, &[(9_500.0, 20_000.0)]);
        assert_eq!(busy.left, [30_000.0, 60_000.0]);
    }
}
