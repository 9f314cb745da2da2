"""A router, event by event: written from what Linux does, and independent of Parshall's models and engine.

A packet passes the link and joins the queue of the router's CPU. A CPU that sleeps must wake first. Then it polls: it
serves waiting packets one by one, up to `poll_packets`. A packet leaves the router when it is served. The CPU then
takes the served packets to the sink, in a poll of its own, and polls the queue again until it is empty.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow

POLL_PACKETS = 64
Time = Callable[[], float]


@dataclass
class EventRouter:
    """A router, and the sender's CPU that may have to wake it. Times are in ns.

    Attributes
    ----------
    service, wake, pause : callable
        Draw a time: to serve a packet, to wake, and that the sender takes when it wakes the router.
    link, transfer, send : float
        Time on the link; that the sender takes for a packet; of a packet in the poll that takes it to the sink.
    takes_part_polls : bool
        The CPU also takes fewer than `poll_packets` packets to the sink, as Linux does. Otherwise that costs nothing.
    look : float
        Time after its last packet until the CPU looks for others, and then sleeps.
    slower_after : callable
        Factor of a wake-up after a time without packets.
    places : int
        Packets that may wait.
    poll_packets : int
        Most packets of a poll.
    stalls : iterable of (begin, length)
        When something else takes the CPU, in order of their begin.
    """

    service: Time
    wake: Time = lambda: 0.0
    pause: Time = lambda: 0.0
    link: float = 0.0
    transfer: float = 0.0
    send: float = 0.0
    takes_part_polls: bool = False
    look: float = 0.0
    slower_after: Callable[[float], float] = lambda idle: 1.0
    places: int = 10**9
    poll_packets: int = POLL_PACKETS
    stalls: Iterable[tuple[float, float]] = ()
    left: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._waiting: deque[int] = deque()
        self._now = 0.0
        self._is_asleep = True
        self._polled = 0
        self._has_looked = False
        self._last_left = float("-inf")
        self._stalls = deque(self.stalls)

    def _spend(self, time_ns: float) -> None:
        """Let the CPU work; a stall that begins meanwhile makes it later."""
        self._now += time_ns
        while self._stalls and self._stalls[0][0] < self._now:
            self._now += self._stalls.popleft()[1]

    def _take_to_the_sink(self) -> None:
        served, self._polled = self._polled, 0
        self._spend(served * self.send)

    def _run_until(self, until_ns: float) -> None:
        """Run all that the CPU begins until then."""
        while not self._is_asleep and self._now <= until_ns:
            if self._polled == self.poll_packets:
                self._take_to_the_sink()
            elif self._waiting:
                packet = self._waiting.popleft()
                self._spend(self.service())
                self.left[packet] = self._last_left = self._now
                self._polled += 1
                self._has_looked = False
            elif self._polled and self.takes_part_polls:
                self._take_to_the_sink()
            elif self.look and not self._has_looked:
                self._has_looked, self._polled = True, 0
                self._spend(self.look)
            else:
                self._is_asleep, self._polled = True, 0

    def _arrive(self, packet: int, at_ns: float) -> bool:
        """Put a packet into the queue; return whether it woke the router."""
        self._run_until(at_ns)
        woke = self._is_asleep
        if woke:
            self._is_asleep, self._now = False, max(self._now, at_ns)
            # Nothing wakes a CPU that something else has.
            while self._stalls and self._stalls[0][0] <= self._now:
                begin, length = self._stalls.popleft()
                self._now = max(self._now, begin + length)
            self._spend(self.wake() * self.slower_after(at_ns - self._last_left))
            self._has_looked = False
        if len(self._waiting) < self.places:
            self._waiting.append(packet)
        return woke

    def table(self, due_ns: np.ndarray) -> pyarrow.Table:
        """Send packets when they are due, and return ``Measurement.table``: when each was sent, and when it left."""
        begin = int(due_ns[0])
        sent, sender_free = [], 0.0
        for packet, due in enumerate((due_ns - begin).tolist()):
            now = max(due, sender_free)
            sent.append(now)
            sender_free = now + self.transfer
            if self._arrive(packet, now + self.link):
                sender_free = max(sender_free, now + self.pause())
        self._run_until(float("inf"))
        left = np.full(len(sent), np.nan)
        left[list(self.left)] = list(self.left.values())
        lost = np.isnan(left)
        departure_ns = begin + np.ceil(np.where(lost, 0, left)).astype(np.int64)
        return pyarrow.table(
            {
                "sequence": np.arange(len(sent), dtype=np.uint64),
                "due_ns": due_ns,
                "arrival_ns": begin + np.floor(sent).astype(np.int64),
                "departure_ns": pyarrow.array(departure_ns, mask=lost),
            }
        )


def poisson_stalls(
    random: np.random.Generator, per_s: float, mean_ns: float, span_ns: float
) -> list[tuple[float, float]]:
    """Return stalls that begin at random and have exponential lengths."""
    begins = np.sort(random.uniform(0, span_ns, random.poisson(per_s * 1e-9 * span_ns)))
    return list(zip(begins.tolist(), random.exponential(mean_ns, len(begins)).tolist(), strict=True))


def drawn(values: np.ndarray) -> Time:
    """Return a function that gives one value after another."""
    return iter(values.tolist()).__next__
