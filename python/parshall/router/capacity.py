"""The capacity of a router: the highest rate without loss, found by bisection, and the rate under overload.

As the throughput of RFC 2544, 26.1, with two differences: trials are short and repeated, and the search itself is
repeated, so that the result has an interval.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from parshall.errors import UsageError
from parshall.router.offer import Offered, offer
from parshall.router.testbed import RouterTestbed
from parshall.router.traffic import Traffic
from parshall.statistics import mean_interval

LOW_PPS, HIGH_PPS = 5_000.0, 4_000_000.0
# A trial whose generator reached less than this share of the rate says nothing about the router at that rate.
_REACHED_SHARE = 0.98
_SEEDS_BETWEEN_SEARCHES = 1000


@dataclass(frozen=True)
class Trial:
    """One trial of a search.

    Attributes
    ----------
    pps : float
        Requested rate, packets/s.
    sent_pps : float
        Rate that the generator reached.
    sent, lost : int
        Packets.
    """

    pps: float
    sent_pps: float
    sent: int
    lost: int

    @property
    def is_reached(self) -> bool:
        """Whether the generator reached the requested rate."""
        return self.sent_pps >= _REACHED_SHARE * self.pps


@dataclass(frozen=True)
class Search:
    """One bisection.

    Attributes
    ----------
    pps : float
        Highest rate at which all trials passed; 0 when none did.
    is_sender_limited : bool
        Whether the generator, not the router, set it.
    trials : list of Trial
        In the order of the search.
    """

    pps: float
    is_sender_limited: bool
    trials: list[Trial]


@dataclass(frozen=True)
class Capacity:
    """The capacity of a router.

    Attributes
    ----------
    pps : float
        Median of the searches, packets/s.
    low_pps, high_pps : float
        Lowest and highest search.
    mean_low_pps, mean_high_pps : float
        95 % confidence interval of the mean of the searches; NaN for one search.
    is_sender_limited : bool
        Whether the generator set it in one of the searches: then the router's capacity is at least this.
    searches : list of Search
        All of them.
    """

    pps: float
    low_pps: float
    high_pps: float
    mean_low_pps: float
    mean_high_pps: float
    is_sender_limited: bool
    searches: list[Search]

    def describe(self) -> dict[str, Any]:
        """Return all numbers as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Overload:
    """What a router forwards when more is offered than it can forward.

    Attributes
    ----------
    pps : float
        Mean rate that reached the sink, packets/s.
    low_pps, high_pps : float
        Lowest and highest repeat.
    sent_pps : float
        Mean rate offered.
    lost_share : float
        Share of the packets that were lost.
    lost : dict
        Packets lost by place, of all repeats.
    """

    pps: float
    low_pps: float
    high_pps: float
    sent_pps: float
    lost_share: float
    lost: dict[str, int]


def zero_loss(
    bed: RouterTestbed,
    traffic: Traffic | None = None,
    *,
    duration_s: float = 0.5,
    trials: int = 3,
    repeats: int = 5,
    resolution: float = 0.02,
    loss: float = 0.0,
    low_pps: float = LOW_PPS,
    high_pps: float = HIGH_PPS,
    progress: Callable[[str], None] = lambda _: None,
) -> Capacity:
    """Search the highest rate that a router forwards without loss.

    Parameters
    ----------
    bed : RouterTestbed
        The testbed.
    traffic : Traffic, optional
        Gaps, sizes, flows and seed; its rate is not used. Default: constant gaps.
    duration_s : float
        Length of a trial, seconds.
    trials : int
        Trials at each rate, with different seeds; all must pass.
    repeats : int
        Searches.
    resolution : float
        Relative width at which a search ends.
    loss : float
        Share of the packets that a trial may lose.
    low_pps, high_pps : float
        Rates to search between, packets/s.
    progress : callable
        Takes a text before each trial.

    Raises
    ------
    UsageError
        An argument is out of range.
    ParshallError
        The router does not forward.
    """
    offered = traffic or Traffic("constant")
    if repeats < 1 or trials < 1:
        raise UsageError(f"--repeats {repeats}, --trials {trials}: expected 1 or more")

    def trial(pps: float, seed: int) -> Trial:
        number = (seed - offered.seed) // _SEEDS_BETWEEN_SEARCHES + 1
        progress(f"search {number} of {repeats}, offering {pps:,.0f} packets/s")
        workload = replace(offered, pps=pps, seed=seed)
        return _trial(pps, offer(bed, workload, max(1, round(pps * duration_s))))

    searches = [
        bisect(
            trial,
            seed=offered.seed + _SEEDS_BETWEEN_SEARCHES * number,
            trials=trials,
            resolution=resolution,
            loss=loss,
            low_pps=low_pps,
            high_pps=high_pps,
        )
        for number in range(repeats)
    ]
    return summarise(searches)


def bisect(
    trial: Callable[[float, int], Trial],
    *,
    seed: int,
    trials: int,
    resolution: float,
    loss: float,
    low_pps: float,
    high_pps: float,
) -> Search:
    """Search the highest rate at which all trials pass.

    Parameters
    ----------
    trial : callable
        Runs a trial at a rate with a seed.
    seed, trials, resolution, loss, low_pps, high_pps
        As for `zero_loss`.
    """
    if not (0 < low_pps < high_pps and 0 < resolution < 1 and 0 <= loss < 1):
        raise UsageError(
            f"search from {low_pps:g} to {high_pps:g} packets/s, resolution {resolution:g}, loss {loss:g}: "
            "expected rising rates, and shares below 1"
        )
    done: list[Trial] = []
    passed, failed = 0.0, high_pps
    # Whether the upper bound is the generator's limit, not a loss of the router.
    is_limit_of_sender = False
    pps = high_pps
    while True:
        lowest_sent_pps, has_lost = pps, False
        for _ in range(trials):
            found = trial(pps, seed + len(done))
            done.append(found)
            if not found.is_reached:
                lowest_sent_pps = min(lowest_sent_pps, found.sent_pps)
            has_lost = found.lost > loss * found.sent
            if has_lost:
                break
        if not has_lost and lowest_sent_pps == pps:
            passed = pps
        else:
            # What was lost was lost at the rate that the generator reached.
            failed, is_limit_of_sender = max(lowest_sent_pps, passed), not has_lost
        if passed >= high_pps:
            return Search(passed, True, done)
        if failed <= low_pps or (passed and failed - passed <= resolution * passed):
            return Search(passed, is_limit_of_sender, done)
        # Rates of routers differ by orders of magnitude: halve the ratio until the first one passes.
        pps = (passed + failed) / 2 if passed else (low_pps * failed) ** 0.5
        if not passed and failed <= low_pps * (1 + resolution):
            return Search(0.0, is_limit_of_sender, done)


def summarise(searches: Sequence[Search]) -> Capacity:
    """Return the capacity that searches found."""
    rates = np.array([search.pps for search in searches])
    low, high = mean_interval(rates)
    limited = any(search.is_sender_limited for search in searches)
    return Capacity(float(np.median(rates)), float(rates.min()), float(rates.max()), low, high, limited, list(searches))


def overload(
    bed: RouterTestbed, traffic: Traffic | None = None, *, count: int = 1_000_000, repeats: int = 5
) -> Overload:
    """Offer packets as fast as the generator can, and return what the router forwards.

    Parameters
    ----------
    bed : RouterTestbed
        The testbed.
    traffic : Traffic, optional
        Sizes, flows and seed.
    count : int
        Packets of a repeat.
    repeats : int
        Repeats.
    """
    if repeats < 1:
        raise UsageError(f"--repeats {repeats}: expected 1 or more")
    fastest = replace(traffic or Traffic(), kind="none")
    runs = [offer(bed, replace(fastest, seed=fastest.seed + number), count) for number in range(repeats)]
    rates = [run.received_pps for run in runs]
    lost = {place: sum(run.ledger["lost"][place] for run in runs) for place in runs[0].ledger["lost"]}
    sent = sum(run.ledger["sent"] for run in runs)
    return Overload(
        float(np.mean(rates)),
        min(rates),
        max(rates),
        float(np.mean([run.sent_pps for run in runs])),
        sum(lost.values()) / max(1, sent),
        lost,
    )


def _trial(pps: float, offered: Offered) -> Trial:
    ledger = offered.ledger
    return Trial(pps, offered.sent_pps, ledger["sent"], ledger["sent"] - ledger["received"])
