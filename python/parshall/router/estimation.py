"""Estimates of a router's parameters from when packets arrived and left: pure functions of such tables.

A packet leaves when three things have passed: the link (the work before the router's queue), the wait, its service.
The wait ends when the server is free; a server that slept must wake first. The CPU polls two devices: its backlog,
whose packets leave the router, and the far end of the link, which takes them to the sink.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow

# A service longer than so many medians is more than a service: another poll, an interrupt, another task.
STALL_MEDIANS = 4.0
# A wait longer than so many wake-ups or polls is a stall.
STALL_PARTS = 1.6
# The sender stalls, too, when so small a share of the usual arrivals comes.
_ARRIVING_SHARE = 0.4
# Packets of a poll (net.core.dev_weight): then the CPU polls its other device, which takes the packets to the sink.
POLL_PACKETS = 64
# Packets that had arrived so long before the last one left were waiting, whatever the link takes.
_WAITING_NS = 3_000
# These arrived before the server could sleep again, even if the link took long.
_LONG_NS = 8_000
_SHORTEST = 1e-3
# Without polls of another device, few long services are a poll apart.
_POLLS_SEEN = 0.3


@dataclass(frozen=True)
class Stalls:
    """What else takes the server while packets wait.

    Attributes
    ----------
    per_s : float
        Stalls in a second.
    times_ns : numpy.ndarray
        How long each stall was.
    """

    per_s: float
    times_ns: np.ndarray


@dataclass(frozen=True)
class Band:
    """The chapter's estimate of noise: the second band of the services, those above `STALL_MEDIANS` medians.

    Attributes
    ----------
    share : float
        Share p of the services. Polls of the other device are among them.
    per_s : float
        Rate p / T, with T the mean service of the first band.
    """

    share: float
    per_s: float


@dataclass(frozen=True)
class Passages:
    """Packets that left, in their order.

    Attributes
    ----------
    arrival_ns, departure_ns : numpy.ndarray
        int64.
    gap_ns : float
        Mean gap between arrivals, those of lost packets among them.
    """

    arrival_ns: np.ndarray
    departure_ns: np.ndarray
    gap_ns: float

    @classmethod
    def of(cls, table: pyarrow.Table) -> "Passages":
        """Take the packets of ``Measurement.table`` that left, by the time at which they left."""
        left = table.drop_null()
        arrival_ns, departure_ns = (left.column(name).to_numpy() for name in ("arrival_ns", "departure_ns"))
        order = np.argsort(departure_ns, kind="stable")
        every_ns = table.column("arrival_ns").to_numpy()
        gap_ns = float(np.ptp(every_ns)) / max(1, len(every_ns) - 1) if len(every_ns) else 0.0
        return cls(arrival_ns[order], departure_ns[order], gap_ns)

    @property
    def latency_ns(self) -> np.ndarray:
        """Departure less arrival."""
        latencies: np.ndarray = self.departure_ns - self.arrival_ns
        return latencies

    def services_ns(self) -> np.ndarray:
        """Return the service times of packets that waited while the one before them was served, within a poll."""
        waited = self.departure_ns[:-1] - self.arrival_ns[1:] > _WAITING_NS
        return _plain(np.diff(self.departure_ns)[waited])

    def first_latencies_ns(self) -> np.ndarray:
        """Return the latencies of packets that arrived when the router was empty."""
        was_empty = self.arrival_ns[1:] > self.departure_ns[:-1]
        latencies: np.ndarray = self.latency_ns[1:][was_empty]
        return latencies


def _plain(services_ns: np.ndarray) -> np.ndarray:
    if len(services_ns) == 0:
        return services_ns
    plain: np.ndarray = services_ns[services_ns <= STALL_MEDIANS * np.median(services_ns)]
    return plain


def send_ns(passages: Passages) -> tuple[float, Band]:
    """Return the time of a packet in the poll that takes it to the sink, from a router that always has packets.

    After each `POLL_PACKETS` packets one service is longer: the poll of the other device. So a long service is one when
    another is that far away.
    """
    waited = passages.departure_ns[:-1] - passages.arrival_ns[1:]
    places = np.flatnonzero(waited > _LONG_NS)
    services = np.diff(passages.departure_ns)[places]
    if len(services) == 0:
        return 0.0, Band(0.0, 0.0)
    median = float(np.median(services))
    is_long = services > STALL_MEDIANS * median
    long, long_places = services[is_long] - median, places[is_long]
    is_poll = np.isin(long_places - POLL_PACKETS, long_places) | np.isin(long_places + POLL_PACKETS, long_places)
    has_polls = is_poll.sum() > _POLLS_SEEN * len(services) / POLL_PACKETS
    share = float(is_long.mean())
    band = Band(share, share / (1e-9 * float(_plain(services).mean())))
    return (float(np.median(long[is_poll])) / POLL_PACKETS if has_polls else 0.0), band


def stalls(passages: Passages, service: float, send: float, link: float, wake: float) -> tuple[Stalls, np.ndarray]:
    """Return what else took the server, at a load at which nearly all the time a packet is in the router.

    Only stalls are seen that are longer than a poll or a wake-up: shorter ones are a part of those.

    Parameters
    ----------
    passages : Passages
        Packets at such a load.
    service, send, link, wake : float
        Median times, ns.

    Returns
    -------
    stalls : Stalls
        Stalls of the server: packets arrived meanwhile.
    held_ns : numpy.ndarray
        Stalls during which none arrived: the sender's CPU held the packet, and those behind it.
    """
    began = np.maximum(passages.arrival_ns[1:] + link, passages.departure_ns[:-1])
    taken = passages.departure_ns[1:] - began - service
    was_asleep = passages.arrival_ns[1:] + link > passages.departure_ns[:-1]
    expected = np.where(was_asleep, wake, 0.0)
    is_stall = taken > STALL_PARTS * max(wake, POLL_PACKETS * send)
    times = (taken - expected)[is_stall]
    arrivals = np.sort(passages.arrival_ns)
    span_ns = float(arrivals[-1] - arrivals[0])
    ends = passages.departure_ns[1:][is_stall]
    # Arrivals of the second half: a packet or two may have come before the sender stalled, too.
    seen = np.searchsorted(arrivals, ends) - np.searchsorted(arrivals, ends - times / 2)
    is_sender = seen < _ARRIVING_SHARE * times / 2 * len(arrivals) / span_ns
    own = times[~is_sender]
    return Stalls(len(own) / (1e-9 * span_ns), own), times[is_sender]


def link_ns(latency_ns: np.ndarray, service_ns: np.ndarray) -> float:
    """Return the time before the router's queue: the shortest latencies less the shortest services."""
    shortest = float(np.quantile(latency_ns, _SHORTEST)) - float(np.quantile(service_ns, 0.1))
    return max(0.0, shortest)


def wakes_ns(first_latency_ns: np.ndarray, link: float, service_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the times to wake: latencies of packets at an empty router, less link and service.

    Returns
    -------
    plain, late : numpy.ndarray
        Plain ones, and those that a stall made longer.
    """
    times = np.maximum(0.0, first_latency_ns - link - float(np.median(service_ns)))
    is_plain = times <= STALL_PARTS * np.median(times)
    return times[is_plain], times[~is_plain]


def histogram(times_ns: np.ndarray, bins: int = 60) -> tuple[list[float], list[int]]:
    """Return bounds and counts of bins that are even in the logarithm, without empty ones at the ends."""
    low, high = max(1.0, float(times_ns.min())), max(2.0, float(times_ns.max()) + 1)
    if high <= low * 1.01:
        high = low * 1.01 + 1
    bounds = np.unique(np.round(np.geomspace(low, high, bins + 1), 1))
    bounds[0], bounds[-1] = min(bounds[0], float(times_ns.min())), max(bounds[-1], high)
    counts, _ = np.histogram(times_ns, bounds)
    return [float(bound) for bound in bounds], [int(count) for count in counts]
