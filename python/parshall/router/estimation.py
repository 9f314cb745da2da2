"""Estimates of a router's parameters from when packets arrived and left: pure functions of such tables.

A packet leaves when three things have passed: the link (the work before the router's queue), the wait, and its service.
The wait ends when the server is free; a server that slept must wake first.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow

# A service longer than so many medians is a stall: another task of the CPU, an interrupt, the hypervisor.
STALL_MEDIANS = 4.0
# Packets that had arrived so long before the last one left were waiting, whatever the link takes.
_WAITING_NS = 3_000
_SHORTEST = 1e-3


@dataclass(frozen=True)
class Stalls:
    """What else takes the server while packets wait.

    Attributes
    ----------
    per_s : float
        Stalls in a second of busy time.
    times_ns : numpy.ndarray
        How long each stall was.
    share : float
        Share of the services that had one: the second band of their histogram.
    chapter_per_s : float
        The rate by that band: its share over the mean service without it (lambda = p / T).
    """

    per_s: float
    times_ns: np.ndarray
    share: float
    chapter_per_s: float


@dataclass(frozen=True)
class Passages:
    """Packets that left, in their order.

    Attributes
    ----------
    arrival_ns, departure_ns : numpy.ndarray
        int64.
    """

    arrival_ns: np.ndarray
    departure_ns: np.ndarray

    @classmethod
    def of(cls, table: pyarrow.Table) -> "Passages":
        """Take the packets of ``Measurement.table`` that left, by the time at which they left."""
        left = table.drop_null()
        arrival_ns, departure_ns = (left.column(name).to_numpy() for name in ("arrival_ns", "departure_ns"))
        order = np.argsort(departure_ns, kind="stable")
        return cls(arrival_ns[order], departure_ns[order])

    @property
    def latency_ns(self) -> np.ndarray:
        """Departure less arrival."""
        return self.departure_ns - self.arrival_ns

    def services_ns(self) -> np.ndarray:
        """Return the service times of packets that waited while the one before them was served, stalls included."""
        waited = self.departure_ns[:-1] - self.arrival_ns[1:] > _WAITING_NS
        return np.diff(self.departure_ns)[waited]

    def first_latencies_ns(self) -> np.ndarray:
        """Return the latencies of packets that arrived when the router was empty."""
        was_empty = self.arrival_ns[1:] > self.departure_ns[:-1]
        return self.latency_ns[1:][was_empty]


def split(services_ns: np.ndarray) -> tuple[np.ndarray, Stalls]:
    """Split service times into plain ones and stalls.

    Returns
    -------
    plain_ns : numpy.ndarray
        Services without a stall.
    stalls : Stalls
        The stalls: what a service with one takes longer than the median.
    """
    median_ns = float(np.median(services_ns))
    is_stalled = services_ns > STALL_MEDIANS * median_ns
    plain_ns = services_ns[~is_stalled]
    times_ns = services_ns[is_stalled] - median_ns
    # Time without the stalls themselves: the model stops counting while it stalls, too.
    busy_s = 1e-9 * (float(plain_ns.sum()) + median_ns * len(times_ns))
    share = len(times_ns) / len(services_ns)
    return plain_ns, Stalls(len(times_ns) / busy_s, times_ns, share, share / (1e-9 * float(plain_ns.mean())))


def link_ns(latency_ns: np.ndarray, service_ns: np.ndarray) -> float:
    """Return the time before the router's queue: the shortest latencies less the shortest services."""
    shortest = float(np.quantile(latency_ns, _SHORTEST)) - float(np.quantile(service_ns, 0.1))
    return max(0.0, shortest)


def wakes_ns(first_latency_ns: np.ndarray, link: float, service_ns: np.ndarray, stalls_per_s: float) -> np.ndarray:
    """Return the times to wake: latencies of packets at an empty router, less link and service.

    A model adds stalls to wake-ups, too. So as many of the longest are left out as stalls would hit.
    """
    times = np.sort(np.maximum(0.0, first_latency_ns - link - float(np.median(service_ns))))
    hit = 1e-9 * stalls_per_s * float(times.mean())
    return times[: max(1, round(len(times) * (1 - min(0.5, hit))))]


def histogram(times_ns: np.ndarray, bins: int = 60) -> tuple[list[float], list[int]]:
    """Return bounds and counts of bins that are even in the logarithm, without empty ones at the ends."""
    low, high = max(1.0, float(times_ns.min())), max(2.0, float(times_ns.max()) + 1)
    if high <= low * 1.01:
        high = low * 1.01 + 1
    bounds = np.unique(np.round(np.geomspace(low, high, bins + 1), 1))
    bounds[0], bounds[-1] = min(bounds[0], float(times_ns.min())), max(bounds[-1], high)
    counts, _ = np.histogram(times_ns, bounds)
    return [float(bound) for bound in bounds], [int(count) for count in counts]
