"""Calibrate: measure the parameters of a router's model on this machine."""

import math
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from parshall.errors import ParshallError, UsageError
from parshall.router import estimation, path_profile
from parshall.router.calibration import Calibration, Noise, Times, machine
from parshall.router.capacity import overload
from parshall.router.estimation import Limits, LongRates, Parts, Passages
from parshall.router.forecast import STRETCHES_MIN, trial_rows
from parshall.router.measurement import Measurement, measure
from parshall.router.sender import sending
from parshall.router.setup import RPS, Setup
from parshall.router.testbed import RouterTestbed
from parshall.router.traffic import Traffic

# Traffic of 3.5.6: gaps of 2 to 10 service times, so a sixth of the capacity.
RANDOM_SHARE = 1 / 6
# Waiting packets, whose services are the times between departures.
_WAITING_SHARE = 0.5
# Times below a quantile that a sample needs beyond it.
_BEYOND_QUANTILE = 10
_QUANTILE = 0.99
_NEEDED = math.ceil(_BEYOND_QUANTILE / (1 - _QUANTILE))
# Of each repeat, whose median is a state of the machine.
_NEEDED_EACH = 100
# No wake-up is so short after any idle time.
_LEAST_FACTOR = 0.1
SEEDS_OF_A_REPEAT = 10
# Workloads of trials, one of each kind in a stretch: a load of each of these ranges, and the last one of all of them.
TRIALS = ("constant", "bursts", "poisson", "onoff")
_TRIAL_LOADS = ((0.2, 0.43), (0.43, 0.67), (0.67, 0.9), (0.2, 0.9))
_SEEDS_OF_TRIALS = (4, 7, 8, 9)
_RING_PACKETS = 256
_FASTEST_PPS = 4e6
_SYSCTLS = Path("/proc/sys/net/core")
# The kernel's, for a container whose processes cannot see them.
_DEFAULTS = {"netdev_max_backlog": 1000, "dev_weight": 64, "dev_weight_rx_bias": 1}
# NAPI_POLL_WEIGHT of linux/netdevice.h: of every device that does not ask for another weight, as veth.
_NAPI_WEIGHT = 64


def calibrate(
    setup: Setup | None = None,
    *,
    sizes: str = "64",
    flows: int = 1,
    repeats: int = 12,
    count: int = 25_000,
    seed: int = 1_000_001,
    spread_s: float = 0.0,
    say: Callable[[str], object] = lambda what: None,
) -> Calibration:
    """Measure the parameters of a router's model, in a testbed of its own.

    Each repeat is a stretch of four workloads, in a random order: overload (its rate, and again with times), random
    gaps at a sixth of it (wake-ups), Poisson gaps at half of it (services, link). Rates are shares of the overloads so
    far. How the stretches differ is a part of the calibration: the machine varies. Between them are trials, workloads
    of other kinds and loads, which show how wrong its forecasts are (`parshall.router.trials`). Profiles of the packet
    path follow: stages, correlations, interrupts. They do not give the parameters, because they take time from the
    packets.

    Every run counts, those that lost packets, too: what loses packets is what a calibration looks for. A lost packet
    has an arrival and no departure.

    Parameters
    ----------
    setup : Setup, optional
        The router's set-up; without a tunnel.
    sizes, flows
        As for `Traffic`.
    repeats : int
        Repeats.
    count : int
        Packets of each run.
    seed : int
        First seed; the file has all.
    spread_s : float
        Time over which the repeats are spread evenly, seconds: a machine varies more in an hour than in a minute.
        Default: one after the other.
    say : callable
        Takes what is being measured.

    Raises
    ------
    ParshallError
        There are too few packets for the quantiles, or the path's profile lost some.
    UsageError
        An argument is out of range.
    """
    setup = setup or Setup()
    _check(setup, repeats, count)
    with RouterTestbed(setup) as bed:
        return calibrate_in(
            bed, sizes=sizes, flows=flows, repeats=repeats, count=count, seed=seed, spread_s=spread_s, say=say
        )


def calibrate_in(
    bed: RouterTestbed,
    *,
    sizes: str,
    flows: int,
    repeats: int,
    count: int,
    seed: int,
    spread_s: float = 0.0,
    say: Callable[[str], object] = lambda what: None,
) -> Calibration:
    """Calibrate the router of a testbed that exists; see `calibrate`."""
    _check(bed.setup, repeats, count)
    base = Traffic("random", sizes=sizes, flows=flows, seed=seed)
    stretches = measured_stretches(bed, base, count, repeats=repeats, spread_s=spread_s, say=say)
    return calibration_of(bed, stretches, say=say)


def measured_stretches(
    bed: RouterTestbed,
    base: Traffic,
    count: int,
    *,
    repeats: int,
    spread_s: float = 0.0,
    say: Callable[[str], object] = lambda what: None,
) -> "Stretches":
    """Measure stretches of a testbed's router, which begin evenly over a time."""
    stretches = Stretches(bed, base, count)
    began_s = time.monotonic()
    for number in range(repeats):
        say(f"stretch {number + 1} of {repeats}")
        due_s = began_s + spread_s * number / max(1, repeats - 1)
        time.sleep(max(0.0, due_s - time.monotonic()))
        stretches.measure()
    return stretches


def calibration_of(
    bed: RouterTestbed, stretches: "Stretches", *, say: Callable[[str], object] = lambda what: None
) -> Calibration:
    """Return the calibration that stretches of a testbed's router give, with profiles of its path."""
    say("profiles of the path")
    base, count = stretches.base, stretches.count
    workload = replace(base, pps=RANDOM_SHARE * stretches.overload_pps, seed=base.seed + 5)
    interrupts = path_profile.interrupts(bed, workload, count)
    stages, correlations = path_profile.stages(bed, replace(workload, seed=base.seed + 6), max(1000, count // 4))
    calibration = Calibration(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine(),
        setup=bed.setup.describe(),
        traffic={
            "sizes": base.sizes,
            "flows": base.flows,
            "repeats": len(stretches.half_load),
            "packets": count,
            "first_seed": base.seed,
            "random_share": RANDOM_SHARE,
            "waiting_share": _WAITING_SHARE,
        },
        queue_packets=_sysctl("netdev_max_backlog") if bed.setup.receive == RPS else _RING_PACKETS,
        **stretches.parameters(),
        trials=[],
        interrupts=interrupts,
        stages=stages,
        correlations=correlations,
    )
    say("forecasts of the trials")
    return tried(calibration, stretches)


def tried(calibration: Calibration, stretches: "Stretches") -> Calibration:
    """Return a calibration with the trials of its stretches; too few stretches forecast nothing."""
    runs = stretches.trials if len(calibration.stretches) >= STRETCHES_MIN else []
    return replace(calibration, trials=trial_rows(calibration, runs))


class Stretches:
    """Stretches of a router, each of which finds the machine in some state.

    Parameters
    ----------
    bed : RouterTestbed
        The router.
    base : Traffic
        Sizes, flows and the first seed; each stretch has `SEEDS_OF_A_REPEAT` seeds of its own.
    count : int
        Packets of each run.

    Attributes
    ----------
    base, count
        As above.
    half_load : list of Measurement
        Of each stretch, the packets at half of the rate under overload.
    """

    def __init__(self, bed: RouterTestbed, base: Traffic, count: int) -> None:
        self._bed, self.base, self.count = bed, base, count
        self._overloads: list[float] = []
        self._sparse: list[Measurement] = []
        self.half_load: list[Measurement] = []
        self._full: list[Measurement] = []
        self._trials: list[tuple[Traffic, Measurement]] = []
        self._begins_s: list[float] = []
        self._random = np.random.default_rng(base.seed)

    @property
    def overload_pps(self) -> float:
        """Median rate under overload so far."""
        return float(np.median(self._overloads))

    @property
    def runs(self) -> dict[str, list[Measurement]]:
        """All runs but those that find the rate under overload, of each stretch, by what they are for."""
        return {"sparse": self._sparse, "half": self.half_load, "full": self._full}

    @property
    def trials(self) -> list[tuple[Traffic, pyarrow.Table]]:
        """Workloads from which no parameter comes, and their `Measurement.table`."""
        return [(traffic, run.table) for traffic, run in self._trials]

    def measure(self) -> None:
        """Measure one more, in a random order; in the first one the rate under overload comes first."""
        self._begins_s.append(time.monotonic())
        number = len(self._begins_s) - 1
        own = replace(self.base, seed=self.base.seed + SEEDS_OF_A_REPEAT * number)

        def measure_overload() -> None:
            self._overloads.append(overload(self._bed, own, count=5 * self.count, repeats=1).pps)

        def measure_sparse() -> None:
            traffic = replace(own, pps=RANDOM_SHARE * self.overload_pps, seed=own.seed + 1)
            self._sparse.append(measure(self._bed, traffic, self.count))

        def measure_waiting() -> None:
            traffic = replace(own, kind="poisson", pps=_WAITING_SHARE * self.overload_pps, seed=own.seed + 2)
            self.half_load.append(measure(self._bed, traffic, self.count))

        def measure_full() -> None:
            # Faster than the generator can: it keeps the queue full.
            traffic = replace(own, kind="constant", pps=_FASTEST_PPS, seed=own.seed + 3)
            self._full.append(measure(self._bed, traffic, self.count))

        def measure_trial(at: int) -> None:
            low, high = _TRIAL_LOADS[at]
            pps = float(self._random.uniform(low, high)) * self.overload_pps
            # Each kind meets each load in turn.
            kind = TRIALS[(at + number) % len(TRIALS)]
            traffic = replace(own, kind=kind, pps=pps, seed=own.seed + _SEEDS_OF_TRIALS[at])
            self._trials.append((traffic, measure(self._bed, traffic, self.count)))

        kinds = [measure_overload, measure_sparse, measure_waiting, measure_full]
        kinds += [partial(measure_trial, at) for at in range(len(_TRIAL_LOADS))]
        # The first rate under overload is the one of which the others are shares.
        first = 1 if number == 0 else 0
        order = [*range(first), *(first + self._random.permutation(len(kinds) - first)).tolist()]
        for at in order:
            kinds[at]()

    def parameters(self) -> dict[str, Any]:
        """Return the fields of a calibration that the stretches give.

        Raises
        ------
        ParshallError
            There are too few packets for the quantiles.
        """
        batch = poll_packets(self._bed.setup.receive)
        runs = ([Passages.of(each.table) for each in of] for of in (self._sparse, self.half_load, self._full))
        found = estimated(*runs, batch=batch, looks=self._bed.setup.receive != RPS)
        for row, begin_s, pps in zip(found["stretches"], self._begins_s, self._overloads, strict=True):
            row |= {"at_s": begin_s - self._begins_s[0], "overload_pps": pps}
        return {
            "overload_pps": self.overload_pps,
            "low_overload_pps": min(self._overloads),
            "high_overload_pps": max(self._overloads),
            "poll_packets": batch,
            **found,
            **sender_fields([each.table for each in (*self._sparse, *self.half_load)], found["link_ns"]),
        }


def seeds_of(calibration: Calibration) -> range:
    """Return the seeds among which those of a calibration's workloads are."""
    first, repeats = calibration.traffic["first_seed"], calibration.traffic["repeats"]
    return range(first, first + SEEDS_OF_A_REPEAT * repeats)


def _check(setup: Setup, repeats: int, count: int) -> None:
    if setup.tunnel:
        raise UsageError("--tunnel: the model is of plain forwarding; calibrate without a tunnel")
    if repeats < 1 or count < 1000:
        raise UsageError(f"--repeats {repeats}, --count {count}: expected 1 or more, and 1,000 packets or more")


def estimated(
    sparse: Sequence[Passages],
    waiting: Sequence[Passages],
    full: Sequence[Passages],
    *,
    batch: int,
    looks: bool = False,
) -> dict[str, Any]:
    """Return the fields of a calibration that follow from when packets arrived and left.

    Parameters
    ----------
    sparse : sequence of Passages
        Packets with random gaps, one of each repeat.
    waiting : sequence of Passages
        Packets at half of the capacity.
    full : sequence of Passages
        Packets of overload.
    batch : int
        Most packets of a poll.
    looks : bool
        Whether the router looks for more packets before it sleeps, as a NAPI thread does. With RPS each packet for an
        empty backlog needs an interrupt, also while the CPU is awake.

    Raises
    ------
    ParshallError
        There are too few packets for the quantiles.
    """
    firsts = _enough(sparse, [each.first_latencies_ns() for each in sparse], "at an empty router")
    if (longest := max(len(each.departure_ns) for each in full)) <= (folded := estimation.FOLDED_POLLS * batch):
        raise ParshallError(
            f"calibration: {longest:,} packets left under overload, too few for polls of {batch:,}: expected more than "
            f"{folded:,}; raise --count"
        )
    shortest = float(np.median([each.shortest_ns for each in waiting]))
    visits = [estimation.send_ns(each, shortest, batch) for each in full]
    sends = [send for send, _ in visits]
    send = float(np.median(sends))
    first_polls = [each.services_ns(batch) for each in waiting]
    # In a stretch that was slow half of the usual capacity is overload, so the router is never empty.
    is_slow = [len(own) < _NEEDED_EACH for own in first_polls]
    taken = _enough(
        waiting,
        [
            each.busy_services_ns(batch * send) if slow else own
            for each, own, slow in zip(waiting, first_polls, is_slow, strict=True)
        ],
        "that waited",
    )
    nearly = [estimation.link_ns(each.latency_ns, own, send)[0] for each, own in zip(waiting, taken, strict=True)]
    near = float(np.median(nearly))
    # Of a slow router few packets wait for so long, and few find that it sleeps.
    surely = [each.services_ns(batch, near) for each in waiting]
    taken = [own if len(own) >= _NEEDED_EACH else first for own, first in zip(surely, taken, strict=True)]
    links = [estimation.link_ns(each.latency_ns, own, send) for each, own in zip(waiting, taken, strict=True)]
    if not all(is_slow):
        # Where every packet waits no latency shows the link: it is as in the other stretches.
        shown = np.array([own for own, slow in zip(links, is_slow, strict=True) if not slow])
        usual = float(np.median(shown[:, 0])), float(shown[:, 1].min()), float(shown[:, 2].max())
        links = [usual if slow else own for own, slow in zip(links, is_slow, strict=True)]
    link, middle = float(np.median([own for own, _, _ in links])), float(np.median(np.concatenate(taken)))
    wake = max(0.0, float(np.median(np.concatenate(firsts))) - link - middle)
    long_ns = estimation.long_ns(np.concatenate(taken), send, wake, batch)
    services = [own[own <= middle + long_ns] for own in taken]
    limits = Limits(float(np.concatenate(services).mean()), send, link, wake, long_ns, batch)
    divided = {
        "random": [(each, estimation.parts(each, limits)) for each in sparse],
        "half": [(each, estimation.parts(each, limits)) for each in waiting],
        "overload": [
            (each, estimation.parts(each, limits, is_visit)) for each, (_, is_visit) in zip(full, visits, strict=True)
        ],
    }
    longs = {
        name: [own.long[(own.long > 0) & ~estimation.owners(each, own.long)[0]] for each, own in divided[name]]
        for name in ("half", "overload")
    }
    stalls = [each for each in longs["half"] if len(each)]
    every_stall = np.concatenate(stalls) if stalls else np.empty(0)
    mean_stall = float(every_stall.mean()) if len(every_stall) else 0.0
    rates = estimation.long_rates(
        [[len(each) for each in found] for found in longs.values()],
        [[each.span_s for each in runs] for runs in (waiting, full)],
        [_pps(runs) for runs in (waiting, full)],
    )
    stretches = [
        {"service_ns": float(own.mean()), "stalls": len(found), "span_s": passages.span_s}
        for own, found, passages in zip(services, longs["half"], waiting, strict=True)
    ]
    services = [
        np.concatenate([own, limits.service + estimation.spread(every_stall, round(rates.per_packet * len(own)))])
        for own in services
    ]
    look = estimation.look_ns(waiting, link, limits.service) if looks else 0.0
    idle = [each.idle_ns(link) for each in sparse]
    # A packet that joins before the look needs no waking.
    woke = [own > look for own in idle]
    after_idle = estimation.after_idle(
        np.concatenate([own[chosen] for own, chosen in zip(idle, woke, strict=True)]),
        np.concatenate([own[chosen] for own, chosen in zip(firsts, woke, strict=True)]),
        link + middle,
    )
    firsts = [
        # As after the usual idle time.
        (own[chosen] - link - middle) / np.maximum(estimation.factors(after_idle, since[chosen]), _LEAST_FACTOR)
        + (link + middle)
        for own, since, chosen in zip(firsts, idle, woke, strict=True)
    ]
    wakes = [
        # With the link and the services of its own repeat: what is wrong with them is wrong with the wake-up, too.
        estimation.wakes_ns(found, own_link, own, 1e-9 * rates.per_s, mean_stall)
        for found, own, (own_link, _, _) in zip(firsts, services, links, strict=True)
    ]
    for row, found, (own_link, _, _) in zip(stretches, wakes, links, strict=True):
        row |= {"wake_ns": float(np.median(found)), "link_ns": own_link}
    medians = [(float(np.median(own)), ends) for own, ends in zip(wakes, links, strict=True)]
    low_wake = min(own + own_link - high for own, (own_link, _, high) in medians)
    high_wake = max(own + own_link - low for own, (own_link, low, _) in medians)
    held = np.concatenate([own.long[estimation.owners(each, own.long)[0]] for each, own in divided["half"]])
    return {
        "link_ns": link,
        "low_link_ns": min(low for _, low, _ in links),
        "high_link_ns": max(high for _, _, high in links),
        "transfer_ns": min(link, *(each.gap_ns for each in full)),
        "look_ns": look,
        "after_idle": [{"idle_ns": since, "factor": factor} for since, factor in after_idle],
        "send_ns": send,
        "low_send_ns": min(sends),
        "high_send_ns": max(sends),
        "service": in_one_state(services, [row["service_ns"] for row in stretches]),
        "wake": replace(
            in_one_state(wakes, [row["wake_ns"] for row in stretches]), low_median_ns=low_wake, high_median_ns=high_wake
        ),
        "held_share": len(held) / sum(len(each.arrival_ns) for each in waiting),
        "held": times([held]) if len(held) else None,
        "noise": _noise(rates, stalls, divided["half"]),
        "stretches": stretches,
        "balance": [_balance(name, runs, rates.per_packet) for name, runs in divided.items()],
    }


def _noise(rates: LongRates, stalls: Sequence[np.ndarray], runs: Sequence[tuple[Passages, Parts]]) -> Noise:
    """Return the stalls, with the gaps between their begins."""
    ends = rates.per_s, rates.low_per_s, rates.high_per_s
    if not stalls or not rates.per_s:
        return Noise(*ends, 0.0, None, None)
    begins, unknown = [], 0
    for passages, own in runs:
        is_held, is_unknown = estimation.owners(passages, own.long)
        is_stall = (own.long > 0) & ~is_held
        begins.append((passages.departure_ns[1:] - passages.departure_ns[0] - own.long)[is_stall])
        unknown += int(is_unknown.sum())
    gaps = times([estimation.gaps_ns(begins, [1e9 * passages.span_s for passages, _ in runs])])
    # Some of the long times are services, and within a bin times are uniform.
    bounds, counts = np.array(gaps.bounds_ns), np.array(gaps.counts)
    mean_ns = float(counts @ (bounds[:-1] + bounds[1:]) / 2 / counts.sum())
    gaps = replace(gaps, bounds_ns=[float(bound) * 1e9 / rates.per_s / mean_ns for bound in bounds])
    return Noise(*ends, unknown / sum(map(len, stalls)), times(stalls), gaps)


def _pps(runs: Sequence[Passages]) -> float:
    """Return the rate at which packets left."""
    return sum(len(each.departure_ns) for each in runs) / max(1e-9, sum(each.span_s for each in runs))


def _balance(workload: str, runs: Sequence[tuple[Passages, Parts]], per_packet: float) -> dict[str, Any]:
    """Return a row of `Calibration.balance`."""
    packets = sum(len(own.link) for _, own in runs)
    every = {name: np.concatenate([getattr(own, name) for _, own in runs]) for name in vars(runs[0][1])}
    is_held = np.concatenate([estimation.owners(each, own.long)[0] for each, own in runs])
    held, long = every["long"][is_held], every["long"][~is_held]
    # Of the long times, as many are services as the packets explain.
    of_services = float(long.sum()) * min(1.0, per_packet * packets / max(1, len(long[long > 0])))
    sums = {name: float(each.sum()) for name, each in every.items() if name != "long"}
    sums |= {"service": sums["service"] + of_services, "stall": float(long.sum()) - of_services}
    sums |= {"held": float(held.sum()), "latency": sum(float(each.latency_ns[1:].sum()) for each, _ in runs)}
    return {
        "workload": workload,
        "packets": packets,
        "lost": sum(len(each.every_ns) - len(each.arrival_ns) for each, _ in runs),
        **{f"{name}_ns": float(value) / max(1, packets) for name, value in sums.items()},
    }


def sender_fields(tables: Sequence[pyarrow.Table], link_ns: float) -> dict[str, Any]:
    """Return the fields of a calibration that describe the sender, from the tables of runs."""
    found = [sending(table, link_ns) for table in tables]
    waking = [each.waking_ns for each in found if len(each.waking_ns)]
    return {"waking": times(waking) if waking else None, "sender_batch": max(each.batch for each in found)}


def times(repeats: Sequence[np.ndarray]) -> Times:
    """Return the times of all repeats."""
    whole = np.concatenate(repeats).astype(float)
    medians = [float(np.median(each)) for each in repeats]
    bounds, counts = estimation.histogram(whole)
    median, p99 = np.quantile(whole, [0.5, _QUANTILE])
    return Times(len(whole), float(whole.mean()), float(median), float(p99), min(medians), max(medians), bounds, counts)


def in_one_state(repeats: Sequence[np.ndarray], typical_ns: Sequence[float]) -> Times:
    """Return the times of all repeats, each scaled to the geometric mean of what is typical of them.

    How repeats differ is in their rows, and a forecast draws it: in the times it would be drawn twice, and the repeat
    with most of them would be the middle of all forecasts. The ends of the median are those of the repeats.
    """
    whole = times(repeats)
    if min(typical_ns) <= 0:
        return whole
    middle = float(np.exp(np.log(typical_ns).mean()))
    scaled = times([own * (middle / typical) for own, typical in zip(repeats, typical_ns, strict=True)])
    return replace(scaled, low_median_ns=whole.low_median_ns, high_median_ns=whole.high_median_ns)


def _enough(runs: Sequence[Passages], found: list[np.ndarray], what: str) -> list[np.ndarray]:
    """Return what was found of runs; raise `ParshallError` where it is too little for a quantile, or of one run."""
    total, every = sum(map(len, found)), sum(len(each.latency_ns) for each in runs)
    few = min(range(len(found)), key=lambda at: len(found[at]))
    for have, of, needed, runs_of, name in (
        (total, every, _NEEDED, runs, f"for the {_QUANTILE:.0%} quantile"),
        (len(found[few]), len(runs[few].latency_ns), _NEEDED_EACH, [runs[few]], f"in repeat {few + 1}"),
    ):
        if have < needed:
            latencies_ns = np.concatenate([each.latency_ns for each in runs_of])
            median_us = 1e-3 * float(np.median(latencies_ns)) if len(latencies_ns) else 0.0
            gap_us = 1e-3 * float(np.mean([each.gap_ns for each in runs_of]))
            raise ParshallError(
                f"calibration: {have:,} of {of:,} packets {what}, too few {name}: expected {needed:,} "
                f"(median latency {median_us:,.1f} µs, mean gap {gap_us:,.1f} µs); leave the machine idle, or raise "
                "--count"
            )
    return found


def poll_packets(receive: str) -> int:
    """Return the most packets of a poll: the backlog has the kernel's weight, a NAPI thread its device's."""
    return _sysctl("dev_weight") * _sysctl("dev_weight_rx_bias") if receive == RPS else _NAPI_WEIGHT


def _sysctl(name: str) -> int:
    """Return a number of `net.core`; only the first network namespace shows them."""
    path = _SYSCTLS / name
    if path.exists():
        return int(path.read_text())
    # The first process may hide its namespaces; the kernel's threads, under the second one, do not.
    for process in (1, 2):
        command = ["nsenter", f"--net=/proc/{process}/ns/net", "cat", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return int(done.stdout)
    return _DEFAULTS[name]
