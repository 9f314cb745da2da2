"""The capacity of a router: the highest rate without loss, found by noisy trials, and the rate under overload.

As the throughput of RFC 2544, 26.1, with a difference: a router that is disturbed passes at a rate now and fails at it
then, so no trial is final. The capacity is the rate at which as many trials pass as fail, and a rate is refused or
accepted by a test whose error is stated.

A bisection by single trials finds where to begin. Two staircases follow it, one below the capacity and one above, whose
steps are such that eight of nine trials end as expected (the weighted up-down method: Kaernbach, Perception &
Psychophysics 49, 1991). A bet is placed on each. Were the capacity below a rate, at most half of the trials above that
rate would pass, so what the bets have won is a nonnegative supermartingale; it exceeds 2 / error with a probability of
at most error / 2 (Ville 1939; Waudby-Smith and Ramdas, JRSS B 86, 2024). So the interval holds at any time, whatever
decided which rate was tried next.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from parshall.errors import UsageError
from parshall.router.offer import Offered, offer
from parshall.router.testbed import RouterTestbed
from parshall.router.traffic import Traffic

LOW_PPS, HIGH_PPS = 5_000.0, 4_000_000.0
CONFIDENCE = 0.95
# Parts of the winnings that are bet, half of them each; the steps of a staircase, as a part of the resolution, when a
# trial ends as expected and when not.
_BETS = (0.5, 0.9)
_STEP, _BACK = 1 / 20, 8
# Share of the packets that an overload loses at least.
_OVERLOADED_SHARE = 0.05
# After so many expected results the steps grow: enough has been won at these rates.
_WON, _GROWTH = 10, 1.5


@dataclass(frozen=True)
class Trial:
    """One trial of a search.

    Attributes
    ----------
    pps : float
        Requested rate, packets/s.
    sent_pps : float
        Rate that the generator reached: the one that the trial is of.
    sent, lost : int
        Packets.
    """

    pps: float
    sent_pps: float
    sent: int
    lost: int


@dataclass(frozen=True)
class Capacity:
    """The capacity of a router.

    Attributes
    ----------
    pps : float
        Estimate, packets/s; 0 when it is below the lowest rate.
    low_pps, high_pps : float
        Confidence interval; 0 and infinity where the trials decide nothing.
    confidence : float
        Its confidence level.
    is_sender_limited : bool
        Whether the generator, or the highest rate, ended the search: then the capacity is at least `low_pps`.
    trials : list of Trial
        In their order.
    """

    pps: float
    low_pps: float
    high_pps: float
    confidence: float
    is_sender_limited: bool
    trials: list[Trial]

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
    is_sender_limited : bool
        Whether the generator sent hardly more than the router forwarded, which may then forward more.
    """

    pps: float
    low_pps: float
    high_pps: float
    sent_pps: float
    lost_share: float
    lost: dict[str, int]
    is_sender_limited: bool


def zero_loss(
    bed: RouterTestbed,
    traffic: Traffic | None = None,
    *,
    duration_s: float = 0.5,
    trials: int = 100,
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
        Most trials; each has a seed of its own.
    resolution : float
        Relative width of the interval at which a search ends.
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

    def trial(pps: float, number: int) -> Trial:
        progress(f"trial {number + 1} of at most {trials}, offering {pps:,.0f} packets/s")
        workload = replace(offered, pps=pps, seed=offered.seed + number)
        return _trial(pps, offer(bed, workload, max(1, round(pps * duration_s))))

    return search(trial, trials=trials, resolution=resolution, loss=loss, low_pps=low_pps, high_pps=high_pps)


@dataclass
class _Staircase:
    """Trials on one side of the capacity."""

    pps: float
    # Whether its trials are expected to pass.
    is_below: bool
    step: float
    # The rates that it may try.
    range_pps: tuple[float, float]
    surprises: int = 0
    expected: int = 0
    # Rates on which a bet was placed, and whether it was won.
    bets: list[tuple[float, bool]] = field(default_factory=list)
    _is_betting: bool = False

    def take(self, sent_pps: float, has_passed: bool) -> None:
        """Take the result of a trial: approach the capacity, or step back, farther each time."""
        is_expected = has_passed is self.is_below
        # What went wrong is tried without a bet first.
        if self._is_betting:
            self.bets.append((sent_pps, is_expected))
        self._is_betting = is_expected
        # Both grow without a bound, and are cut below.
        steps = _GROWTH ** min(max(0, self.expected - _WON), 64)
        if not is_expected:
            steps = -_BACK * 2.0 ** min(self.surprises, 64)
        self.surprises = 0 if is_expected else self.surprises + 1
        self.expected = self.expected + 1 if is_expected else 0
        low, high = self.range_pps
        # No step is wider than the range.
        width = math.log(high / low)
        self.move_to(sent_pps * math.exp(min(max(self.step * steps * (1 if self.is_below else -1), -width), width)))

    def move_to(self, pps: float) -> None:
        """Go on at a rate, or at the nearest one that it may try."""
        self.pps = min(max(pps, self.range_pps[0]), self.range_pps[1])

    @property
    def back(self) -> float:
        """Logarithm of its next step back."""
        low, high = self.range_pps
        return min(self.step * _BACK * 2.0 ** min(self.surprises, 64), math.log(high / low))

    def end_pps(self, needed: float) -> float | None:
        """Return the end of the interval on this side: bets on all rates beyond it have won as much as is needed."""
        won, end = np.zeros(len(_BETS)), None
        for rate, is_won in sorted(self.bets, reverse=self.is_below):
            won += np.log1p(np.array(_BETS) * (1 if is_won else -1))
            is_enough = np.logaddexp.reduce(won) - math.log(len(_BETS)) >= needed
            end = (rate if end is None else end) if is_enough else None
        return end


def search(
    trial: Callable[[float, int], Trial],
    *,
    trials: int,
    resolution: float,
    loss: float,
    low_pps: float,
    high_pps: float,
) -> Capacity:
    """Search the rate at which as many trials pass as fail.

    Parameters
    ----------
    trial : callable
        Runs a trial at a rate; its second argument is the number of the trial.
    trials, resolution, loss, low_pps, high_pps
        As for `zero_loss`.
    """
    if not (0 < low_pps < high_pps and 0 < resolution < 1 and 0 <= loss < 1 and trials >= 1):
        raise UsageError(
            f"search from {low_pps:g} to {high_pps:g} packets/s, resolution {resolution:g}, loss {loss:g}, "
            f"--trials {trials}: expected rising rates, shares below 1, and 1 trial or more"
        )
    done: list[Trial] = []

    def passes(pps: float) -> tuple[float, bool]:
        found = trial(min(max(pps, low_pps), high_pps), len(done))
        done.append(found)
        return found.sent_pps, found.lost <= loss * found.sent

    passed, failed, pps = low_pps, high_pps * (1 + resolution), high_pps
    while len(done) < trials and failed > passed * (1 + resolution):
        sent_pps, has_passed = passes(pps)
        if has_passed:
            passed = max(passed, sent_pps)
            # The generator does not get nearer to a higher rate.
            failed = failed if sent_pps * (1 + resolution) > pps else passed
        else:
            failed = min(failed, sent_pps)
            passed = min(passed, failed)
        # Rates of routers differ by orders of magnitude.
        pps = math.sqrt(passed * failed)
    range_pps = (low_pps, high_pps)
    below, above = (_Staircase(pps, is_below, _STEP * resolution, range_pps) for is_below in (True, False))
    needed = math.log(2 / (1 - CONFIDENCE))
    low, high = 0.0, math.inf
    highest_pps = max(each.sent_pps for each in done)
    while len(done) < trials:
        for own in (below, above)[: trials - len(done)]:
            own.take(*passes(own.pps))
        # Far from the capacity one of them takes the other one along.
        if above.surprises > 1:
            below.move_to(max(below.pps, above.pps * math.exp(-2 * above.back)))
        if below.surprises > 1:
            above.move_to(min(above.pps, below.pps * math.exp(2 * below.back)))
        low, high = below.end_pps(needed) or 0.0, above.end_pps(needed) or math.inf
        highest_pps = max(each.sent_pps for each in done)
        if high <= max(low, low_pps) * (1 + resolution) or low * (1 + resolution) >= highest_pps:
            break
    is_limited = high == math.inf and 0 < highest_pps <= low * (1 + resolution)
    # Nothing is known of rates that the generator did not reach.
    middle = low if is_limited else min(max(math.sqrt(below.pps * above.pps), low), high, highest_pps)
    is_nothing = high <= low_pps * (1 + resolution)
    return Capacity(0.0 if is_nothing else middle, low, high, CONFIDENCE, is_limited, done)


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
    lost_share = sum(lost.values()) / max(1, sent)
    return Overload(
        float(np.mean(rates)),
        min(rates),
        max(rates),
        float(np.mean([run.sent_pps for run in runs])),
        lost_share,
        lost,
        lost_share < _OVERLOADED_SHARE,
    )


def _trial(pps: float, offered: Offered) -> Trial:
    ledger = offered.ledger
    return Trial(pps, offered.sent_pps, ledger["sent"], ledger["sent"] - ledger["received"])
