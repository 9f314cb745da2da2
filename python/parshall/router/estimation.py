"""Estimates of a router's parameters from when packets arrived and left: pure functions of such tables.

A packet leaves when three things have passed: the link (the work before the router's queue), the wait, its service.
The wait ends when the server is free; a server that slept must wake first. The CPU polls two devices: its backlog,
whose packets leave the router, and the far end of the link, which takes them to the sink.

No time is left over: what the server takes for a packet is its wake-up, its service, a poll of the other device, or
long beyond `Limits.long_ns`. What is long belongs to packets (a long service) or to time (a stall): overload, which has
more packets in a second, has more of the first, and as many of the second (`long_rates`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow
from scipy import special

from parshall.statistics.summary import student

# A time longer than so many wake-ups, polls or 99th percentiles of the services is long; so is a late wake-up.
LONG_PARTS = 1.6
_LONG_QUANTILE = 0.99
# What is beyond the median by less than so many times this quantile is as usual services vary.
_USUAL_QUANTILE, _USUAL_PARTS = 0.9, 3.0
# The sender stalls, too, when so small a share of the usual arrivals comes.
_ARRIVING_SHARE = 0.4
# The longest link, in shortest ones: the sender's CPU hands packets over in lists, and wakes the router first.
_LONGEST_LINKS = 5.0
# Polls that are folded to find the place of the visit among their packets.
FOLDED_POLLS = 16
# Quantiles of the latencies from which the link is found, points of the services, and steps of the search.
_SHORTEST, _SHORT = 1e-3, 4e-3
_SERVICES, _HALVINGS = 1000, 40
# Gaps that show no groups, and points of the exponential distribution in place of them.
_FEW_STALLS, _QUANTILES = 10, 1000
_CONFIDENCE = 0.95
# Points of the wake-ups after idle times, and packets that each needs.
_IDLE_POINTS, _IDLE_PACKETS = 8, 50
# A packet that joins so early in a look comes before its end: of shares of the link.
_EARLY_LINKS = 0.5
# Confidence with which overload must have more long times than half load, so that they belong to packets.
_SURE = 0.998


@dataclass(frozen=True)
class Passages:
    """Packets that left, in their order.

    Attributes
    ----------
    arrival_ns, departure_ns : numpy.ndarray
        int64.
    every_ns : numpy.ndarray
        Arrivals of all packets, those of lost ones among them, in their order.
    """

    arrival_ns: np.ndarray
    departure_ns: np.ndarray
    every_ns: np.ndarray

    @classmethod
    def of(cls, table: pyarrow.Table) -> "Passages":
        """Take the packets of ``Measurement.table`` that left, by the time at which they left."""
        left = table.drop_null()
        arrival_ns, departure_ns = (left.column(name).to_numpy() for name in ("arrival_ns", "departure_ns"))
        order = np.argsort(departure_ns, kind="stable")
        return cls(arrival_ns[order], departure_ns[order], np.sort(table.column("arrival_ns").to_numpy()))

    @property
    def gap_ns(self) -> float:
        """Mean gap between arrivals, those of lost packets among them."""
        return float(np.ptp(self.every_ns)) / max(1, len(self.every_ns) - 1) if len(self.every_ns) else 0.0

    @property
    def span_s(self) -> float:
        """Time from the first departure to the last."""
        return 1e-9 * float(np.ptp(self.departure_ns)) if len(self.departure_ns) else 0.0

    @property
    def latency_ns(self) -> np.ndarray:
        """Departure less arrival."""
        latencies: np.ndarray = self.departure_ns - self.arrival_ns
        return latencies

    @property
    def shortest_ns(self) -> float:
        """A short latency: no link takes longer."""
        return float(np.quantile(self.latency_ns, _SHORTEST)) if len(self.latency_ns) else 0.0

    def waited(self, shortest_ns: float) -> np.ndarray:
        """Return whether each packet but the first had surely arrived before the one before it left."""
        has_waited: np.ndarray = self.departure_ns[:-1] - self.arrival_ns[1:] > shortest_ns
        return has_waited

    def served_before(self, link: float) -> np.ndarray:
        """Return how many packets were served, before each but the first, since the server was without any."""
        places = np.arange(len(self.departure_ns) - 1)
        was_empty = self.arrival_ns[1:] + link > self.departure_ns[:-1]
        counted: np.ndarray = places - np.maximum.accumulate(np.where(was_empty, places, -1), axis=0)
        return counted

    def visits(self, link: float, batch: int) -> np.ndarray:
        """Return whether a poll was full before each packet but the first, so that the other device was polled."""
        served = self.served_before(link)
        is_visit: np.ndarray = (served > 0) & (served % batch == 0)
        return is_visit

    def services_ns(self, batch: int, link: float | None = None) -> np.ndarray:
        """Return the times between departures of packets that waited, before a poll of `batch` packets was full.

        The link is the shortest one: some packets take longer, and find a server that sleeps. Without a link no packet
        surely found the server empty that had arrived before the last one left.
        """
        waited = self.waited(self.shortest_ns if link is None else _LONGEST_LINKS * link)
        services: np.ndarray = np.diff(self.departure_ns)[waited & (self.served_before(link or 0.0) < batch)]
        return services

    def busy_services_ns(self, visit_ns: float) -> np.ndarray:
        """Return the times between departures of a router that is hardly ever without packets, but for long ones.

        It has few first polls, and a poll ends at places that are not known for sure, so what is longer than the median
        by half of a visit at the other device may be one, and is left out, with services as long. Where a visit takes
        hardly any time, that would be half of the services: what varies as these do is one.
        """
        gaps: np.ndarray = np.diff(self.departure_ns)[self.waited(self.shortest_ns)]
        if not len(gaps):
            return gaps
        median, upper = np.quantile(gaps, [0.5, _USUAL_QUANTILE])
        short: np.ndarray = gaps[gaps <= median + max(visit_ns / 2, _USUAL_PARTS * (upper - median))]
        return short

    def first_latencies_ns(self) -> np.ndarray:
        """Return the latencies of packets that arrived when the router was empty."""
        was_empty = self.arrival_ns[1:] > self.departure_ns[:-1]
        latencies: np.ndarray = self.latency_ns[1:][was_empty]
        return latencies

    def idle_ns(self, link: float) -> np.ndarray:
        """Return for how long the router had no packet before those of `first_latencies_ns` joined its queue."""
        free, arrived = self.departure_ns[:-1], self.arrival_ns[1:]
        idle: np.ndarray = (arrived - free)[arrived > free] + link
        return idle


@dataclass(frozen=True)
class Limits:
    """What divides the times of a router: typical times in ns, and packets of a poll."""

    service: float
    send: float
    link: float
    wake: float
    long_ns: float
    batch: int


def long_ns(services_ns: np.ndarray, send: float, wake: float, batch: int) -> float:
    """Return the time beyond a service from which on it is long."""
    spread = float(np.quantile(services_ns, _LONG_QUANTILE)) - float(np.median(services_ns))
    return LONG_PARTS * max(wake, batch * send, spread)


def send_ns(passages: Passages, shortest_ns: float, batch: int) -> tuple[float, np.ndarray]:
    """Return the time of a packet in the poll that takes it to the sink, from a router that always has packets.

    After each `batch` packets one service is longer: the poll of the other device. Its place among them is found in
    every second poll, and its length in the others, so that the longest of many places is not taken for it.

    Returns
    -------
    send : float
        0 when the router was not always busy.
    is_visit : numpy.ndarray
        Whether the poll of the other device is in the time before each departure but the first.
    """
    gaps, waited = np.diff(passages.departure_ns), passages.waited(shortest_ns)
    is_visit = passages.visits(shortest_ns, batch)
    longer: list[np.ndarray] = []
    rest: list[np.ndarray] = []
    size = FOLDED_POLLS * batch
    for begin in range(0, len(gaps) - size + 1, size):
        if not waited[begin : begin + size].all():
            continue
        folded = gaps[begin : begin + size].reshape(FOLDED_POLLS, batch)
        place = int(np.argmax(np.median(folded[::2], axis=0)))
        longer.append(folded[1::2, place])
        rest.append(np.delete(folded[1::2], place, axis=1).ravel())
        is_visit[begin : begin + size] = np.arange(size) % batch == place
    if not longer:
        return 0.0, is_visit
    visits_ns, services_ns = np.concatenate(longer), np.concatenate(rest)
    return max(0.0, float(np.median(visits_ns) - np.median(services_ns)) / batch), is_visit


@dataclass(frozen=True)
class Parts:
    """The parts of the time from arrival to departure, one value a packet but the first, ns.

    Attributes
    ----------
    link, wait, wake, service, send, long : numpy.ndarray
        Their sum is the latency.
    idle : numpy.ndarray
        Time that the server had no packet: with all but link and wait it is the time between two departures.
    """

    link: np.ndarray
    wait: np.ndarray
    wake: np.ndarray
    service: np.ndarray
    send: np.ndarray
    long: np.ndarray
    idle: np.ndarray


def parts(passages: Passages, limits: Limits, is_visit: np.ndarray | None = None) -> Parts:
    """Divide the time of each packet.

    Parameters
    ----------
    passages : Passages
        The packets.
    limits : Limits
        What divides them.
    is_visit : numpy.ndarray, optional
        Where the poll of the other device is; default: after each `Limits.batch` packets since the server was empty.
    """
    if is_visit is None:
        is_visit = passages.visits(limits.link, limits.batch)
    # Times since the first arrival are exact in floating point.
    base = passages.arrival_ns[:1]
    queued, free = passages.arrival_ns[1:] - base + limits.link, passages.departure_ns[:-1] - base
    taken = passages.departure_ns[1:] - base - np.maximum(queued, free)
    was_asleep = queued > free
    visit = limits.batch * limits.send
    send = np.where(is_visit & ~was_asleep & (taken > visit), visit, 0.0)
    rest = taken - send
    beyond = rest - limits.service - np.where(was_asleep, limits.wake, 0.0)
    long = np.where(beyond > limits.long_ns, beyond, 0.0)
    rest = rest - long
    service = np.where(was_asleep, np.minimum(rest, limits.service), rest)
    link = np.full(len(taken), limits.link)
    wait, idle = np.maximum(0, free - queued), np.maximum(0, queued - free)
    return Parts(link, wait, rest - service, service, send, long, idle)


def owners(passages: Passages, long: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whose the long times are.

    Returns
    -------
    is_held, is_unknown : numpy.ndarray
        Those of the sender: nothing arrived meanwhile, so its CPU held the packet, and others. Those in which less than
        one packet was expected, so that nobody knows.
    """
    expected = long * len(passages.every_ns) / max(1.0, float(np.ptp(passages.every_ns)))
    ends = passages.departure_ns[1:]
    # Arrivals of the second half: a packet or two may have come before the sender stalled, too.
    seen = np.searchsorted(passages.every_ns, ends) - np.searchsorted(passages.every_ns, ends - long / 2)
    # After the last arrival it is not known.
    is_unknown = (long > 0) & ((expected < 1) | (ends > passages.every_ns[-1]))
    is_held = (long > 0) & ~is_unknown & (seen < _ARRIVING_SHARE * expected / 2)
    return is_held, is_unknown


def gaps_ns(begins_ns: Sequence[np.ndarray], spans_ns: Sequence[float]) -> np.ndarray:
    """Return the gaps between stalls, of runs put one behind the other; few ones as of a Poisson process.

    Stalls come in groups. A process of two states, with stalls in one of them only, has independent gaps of a
    hyperexponential distribution (Kuczura, Bell System Technical Journal 52, 1973), so the gaps are all of it.
    """
    before = np.concatenate([[0.0], np.cumsum(spans_ns)])
    begins = np.concatenate([own + start for own, start in zip(begins_ns, before[:-1], strict=True)])
    whole, count = float(before[-1]), len(begins)
    if count < _FEW_STALLS:
        return -np.log1p(-(np.arange(_QUANTILES) + 0.5) / _QUANTILES) * whole / max(1, count)
    return np.diff(begins, append=begins[0] + whole)


@dataclass(frozen=True)
class LongRates:
    """To what long times belong.

    Attributes
    ----------
    per_s, low_per_s, high_per_s : float
        Stalls in a second, with their 95 % confidence interval.
    per_packet : float
        Share of the packets whose services are long.
    """

    per_s: float
    low_per_s: float
    high_per_s: float
    per_packet: float


def long_rates(
    counts: Sequence[Sequence[int]], spans_s: Sequence[Sequence[float]], rates_pps: Sequence[float]
) -> LongRates:
    """Divide long times into stalls, as many in each second, and services, as many of each packet.

    Parameters
    ----------
    counts, spans_s : sequence of sequence
        Long times, and seconds, of each run at half load; the same under overload.
    rates_pps : sequence of float
        Packets in a second of both.

    Notes
    -----
    Long times come in groups, so their counts vary more than a Poisson variable: variances and the exact interval
    (Garwood 1936) are of counts divided by the dispersion over the runs.
    """
    total, seconds = (np.array([sum(each) for each in of], float) for of in (counts, spans_s))
    seconds = np.maximum(seconds, 1e-9)
    rates, chi_square, runs = total / seconds, 0.0, sum(map(len, counts))
    for of, over, rate in zip(counts, spans_s, rates, strict=True):
        expected = rate * np.array(over)
        chi_square += float(np.sum((np.array(of) - expected) ** 2 / np.maximum(expected, 1e-9)))
    dispersion = max(1.0, chi_square / (runs - len(counts))) if runs > len(counts) else 1.0
    at_half, scale = float(rates[0]), dispersion / float(seconds[0])
    ends = np.array([0, 2]) + 2 * float(total[0]) / dispersion
    low, high = np.nan_to_num(special.chdtri(ends, [(1 + _CONFIDENCE) / 2, (1 - _CONFIDENCE) / 2])) / 2 * scale
    if rates_pps[1] <= rates_pps[0]:
        return LongRates(at_half, float(low), float(high), 0.0)
    share = rates_pps[0] / (rates_pps[1] - rates_pps[0])
    variance = dispersion * total / seconds**2
    more, per_s = rates[1] - rates[0], (1 + share) * rates[0] - share * rates[1]
    half = special.ndtri((1 + _CONFIDENCE) / 2) * np.sqrt((1 + share) ** 2 * variance[0] + share**2 * variance[1])
    # One run of each has no spread to count in.
    if more <= student(runs - len(counts) or math.inf, _SURE) * np.sqrt(variance.sum()):
        # What of them belongs to packets is not known to be anything, nor to be nothing.
        return LongRates(at_half, max(0.0, min(float(low), float(per_s - half))), float(high), 0.0)
    # Overload decides how half load is divided, and adds nothing: there the kernel gives the CPU to others, too.
    per_packet = min(more / (rates_pps[1] - rates_pps[0]), rates[0] / rates_pps[0])
    return LongRates(*(max(0.0, float(each)) for each in (per_s, per_s - half, per_s + half, per_packet)))


def link_ns(latency_ns: np.ndarray, service_ns: np.ndarray, send: float) -> tuple[float, float, float]:
    """Return the time before the router's queue, from the shortest latencies.

    A packet that arrives while the last one before it is served waits for the rest of that service, which is uniform
    near 0. So the share of the latencies below x is proportional to the mean of max(0, x - link - service): the link is
    the value for which two quantiles have the ratio of their shares.

    Returns
    -------
    link, low, high : float
        The ends are those of two pairs of quantiles, without and with packets that arrive while one packet is taken to
        the sink: these wait for the rest of `send`.
    """
    services = np.quantile(service_ns, (np.arange(_SERVICES) + 0.5) / _SERVICES)
    found = [
        _link_ns(np.quantile(latency_ns, [scale * _SHORTEST, scale * _SHORT]), services, part)
        for scale in (1, 2)
        for part in (0.0, send)
    ]
    return found[0], min(found), max(found)


def _link_ns(ends_ns: np.ndarray, services: np.ndarray, part: float) -> float:
    low_ns, high_ns = ends_ns.tolist()

    def below(x: float, link: float) -> float:
        over = np.maximum(0.0, x - link - services)
        return float((over + np.minimum(over, part)).mean())

    begin, end = 0.0, max(0.0, float(low_ns - services[0]))
    for _ in range(_HALVINGS):
        link = (begin + end) / 2
        # The nearer the link, the less is below the lower one.
        if below(high_ns, link) * _SHORTEST < below(low_ns, link) * _SHORT:
            begin = link
        else:
            end = link
    return (begin + end) / 2


def look_ns(runs: Sequence[Passages], link: float, service: float) -> float:
    """Return the time from the last packet of a poll until a NAPI thread looks for others, at half load.

    Packets that join soon after that packet left wait for the look, whenever they come: they need no waking.
    """
    gaps = []
    for each in runs:
        since = each.arrival_ns[1:] + link - each.departure_ns[:-1]
        gaps.append(np.diff(each.departure_ns)[(since > 0) & (since < _EARLY_LINKS * link)])
    found = np.concatenate(gaps) if gaps else np.empty(0)
    return max(0.0, float(np.median(found)) - service) if len(found) >= _IDLE_PACKETS else 0.0


def after_idle(idle_ns: np.ndarray, first_latency_ns: np.ndarray, before: float) -> list[tuple[float, float]]:
    """Return how wake-ups grow with the time that the router was idle: a CPU that sleeps for longer sleeps deeper.

    Parameters
    ----------
    idle_ns, first_latency_ns : numpy.ndarray
        Of packets at an empty router.
    before : float
        Link and service, which are no part of a wake-up.

    Returns
    -------
    list of (idle_ns, factor)
        Medians of equal shares of the packets, over the median of all; none where these are too few.
    """
    wakes = first_latency_ns - before
    middle = float(np.median(wakes)) if len(wakes) else 0.0
    points = min(_IDLE_POINTS, len(wakes) // _IDLE_PACKETS)
    if middle <= 0 or points < 2:
        return []
    order = np.argsort(idle_ns, kind="stable")
    shares = [(np.median(idle_ns[own]), np.median(wakes[own])) for own in np.array_split(order, points)]
    found: list[tuple[float, float]] = []
    for idle, wake in shares:
        if idle > (found[-1][0] if found else 0.0):
            found.append((float(idle), max(0.0, float(wake) / middle)))
    return found if len(found) > 1 else []


def factors(after: Sequence[tuple[float, float]], idle_ns: np.ndarray) -> np.ndarray:
    """Return the factors of wake-ups after idle times: in proportion to the logarithm between two points."""
    if not after:
        return np.ones(len(idle_ns))
    points, values = np.array(after).T
    found: np.ndarray = np.interp(np.log(np.maximum(idle_ns, 1.0)), np.log(points), values)
    return found


def wakes_ns(
    first_latency_ns: np.ndarray, link: float, service_ns: np.ndarray, per_ns: float, long: float
) -> np.ndarray:
    """Return the times to wake: latencies of packets at an empty router, less link and service.

    Late ones, of more than `LONG_PARTS` medians, are fewer by those which long services and stalls explain: the model
    draws these on their own.

    Parameters
    ----------
    first_latency_ns, service_ns : numpy.ndarray
        Latencies of packets at an empty router, and services.
    link, per_ns, long : float
        Link, stalls in a ns, and their mean length.
    """
    middle = float(np.median(service_ns))
    typical = max(0.0, float(np.median(first_latency_ns)) - link - middle)
    late = (LONG_PARTS - 1) * typical
    usual = service_ns[service_ns <= middle + late]
    times = first_latency_ns - link - float(usual.mean())
    is_late = times + usual.mean() > typical + middle + late
    explained = 1 - len(usual) / len(service_ns) + per_ns * (long + typical + middle)
    # What varies is the wake-up and the service: only the part of the first one is kept.
    plain, mean = times[~is_late], float(times[~is_late].mean())
    part = np.sqrt(max(0.0, 1 - float(usual.var()) / max(1e-9, float(plain.var()))))
    kept = spread(times[is_late], int(is_late.sum() - explained * len(times)))
    wakes: np.ndarray = np.maximum(0.0, np.concatenate([mean + part * (plain - mean), kept]))
    return wakes


def spread(values: np.ndarray, count: int) -> np.ndarray:
    """Return `count` values that are distributed as given ones, repeated or left out evenly."""
    if count <= 0 or len(values) == 0:
        return np.empty(0)
    evenly: np.ndarray = np.quantile(values, (np.arange(count) + 0.5) / count)
    return evenly


def histogram(times_ns: np.ndarray, bins: int = 60) -> tuple[list[float], list[int]]:
    """Return bounds and counts of bins that are even in the logarithm, without empty ones at the ends."""
    low, high = max(1.0, float(times_ns.min())), max(2.0, float(times_ns.max()) + 1)
    if high <= low * 1.01:
        high = low * 1.01 + 1
    bounds = np.unique(np.round(np.geomspace(low, high, bins + 1), 1))
    bounds[0], bounds[-1] = min(bounds[0], float(times_ns.min())), max(bounds[-1], high)
    counts, _ = np.histogram(times_ns, bounds)
    return [float(bound) for bound in bounds], [int(count) for count in counts]
