"""Answers for a calibrated router: its capacity, its latency at a load, a faster CPU, the bottleneck."""

from collections.abc import Callable
from typing import Any

import numpy as np

from parshall.errors import ParshallError
from parshall.model.builtin.bsd import FORWARDED
from parshall.model.plan import Answer, BeyondLimits, Limits, greatest_load, loss_interval
from parshall.model.simulation import run
from parshall.router.calibration import Calibration
from parshall.router.network import network
from parshall.router.prediction import QUANTILES

# The load of the answers without one.
_SHARE = 0.6
_FASTER = 2.0
_REPLICATIONS, _CONFIDENCE = 8, 0.95
# Stalls that are drawn to find a burst, and the idle share of a CPU that makes up for them.
_STALLS, _SPARE = 10_000, 0.5


def plan(
    calibration: Calibration,
    *,
    loss: float = 1e-3,
    p99_us: float | None = None,
    pps: float | None = None,
    duration_s: float = 1.0,
    seed: int = 1,
    say: Callable[[str], object] = lambda what: None,
) -> list[dict[str, Any]]:
    """Return the answers of a calibrated router, of Poisson arrivals.

    Parameters
    ----------
    calibration : Calibration
        The router.
    loss : float
        Share of the packets that may be lost.
    p99_us : float, optional
        Limit of the 99th percentile of the latency.
    pps : float, optional
        Load at which latencies are predicted. Default: 60 % of the load within the limits.
    duration_s : float
        Model time of each step, times 4.
    seed : int
        Seed.
    say : callable
        Takes what is being simulated, before each simulation.

    Returns
    -------
    list of dict
        ``question``, ``answer``, ``low``, ``high``, ``unit``; low and high are ends of the interval, None if unknown.
    """
    limits = Limits(loss, p99_us)
    own = largest_load(calibration, limits, duration_s=duration_s, seed=seed, say=say)
    faster = largest_load(calibration, limits, speed=_FASTER, duration_s=duration_s, seed=seed, say=say)
    within = f"loss within {loss:g}" + (f", p99 within {p99_us:g} us" if p99_us is not None else "")
    if not own[0] and pps is None:
        raise ParshallError(
            f"this router: even {own[2]:,.0f} packets/s are beyond the limits ({within}); relax them, or ask for "
            "latencies at a rate with --load"
        )
    load = pps or _SHARE * own[0]
    rows = [
        _row(f"largest load, {within}", *own, "packets/s"),
        _row(f"the same of a CPU of {_FASTER:g} times the speed", *faster, "packets/s"),
    ]
    options: dict[str, Any] = {
        "duration_s": duration_s,
        "warm_up_s": 0.1,
        "replications": _REPLICATIONS,
        "allow_unstable": True,
    }
    say(f"latency at {load:,.0f} packets/s")
    results = run(network(calibration, pps=load), seed=seed, **options)
    for quantile in QUANTILES:
        name, value_us = f"p{100 * quantile:g}", results.quantile_ns(FORWARDED, quantile) / 1e3
        found = results.estimates.filter(kind="sink", place=FORWARDED, measure=f"{name}_ns")
        half_us = None if found.is_empty() or found["half_width"][0] is None else found["half_width"][0] / 1e3
        ends = (None, None) if half_us is None else (max(value_us - half_us, 0.0), value_us + half_us)
        rows.append(_row(f"latency {name} at {load:,.0f} packets/s", value_us, ends[0], ends[1], "us"))
    lost = sum(results.lost().values())
    rows.append(
        _row(
            f"lost at {load:,.0f} packets/s", lost, *loss_interval(results, _CONFIDENCE, burst_s(calibration)), "share"
        )
    )
    first = max(calibration.stages, key=lambda stage: float(stage["share"]), default=None)
    if first:
        rows.append(_row(f"bottleneck: {first['stage']}", float(first["share"]), None, None, "share of the path"))
    return rows


def largest_load(
    calibration: Calibration,
    limits: Limits,
    *,
    speed: float = 1.0,
    duration_s: float = 1.0,
    seed: int = 1,
    say: Callable[[str], object] = lambda what: None,
) -> tuple[float, float | None, float | None]:
    """Return the largest load within limits, packets/s, with the ends of its interval.

    Where no load is within them it is 0, and lies below the smallest load that was tried.
    """
    base = calibration.overload_pps / 2
    which = "largest load" if speed == 1 else f"largest load of a CPU of {speed:g} times the speed"

    def say_trial(factor: float, done: int) -> None:
        say(f"{which}: {base * factor:,.0f} packets/s, after {done} other loads of some 30")

    try:
        answer: Answer = greatest_load(
            network(calibration, pps=base, speed=speed),
            limits,
            duration_s=duration_s,
            seed=seed,
            sink=FORWARDED,
            burst_s=burst_s(calibration),
            allow_unstable=True,
            on_trial=say_trial,
        )
    except BeyondLimits as error:
        return 0.0, 0.0, base * error.load
    low, high = (None if each is None else base * each for each in (answer.low, answer.high))
    return base * answer.value, low, high


def burst_s(calibration: Calibration) -> float | None:
    """Return the longest time for which stalls keep packets waiting, in seconds; None without stalls.

    Stalls come in groups, so it is the largest of the times left over by many stalls, of which a CPU that is half idle
    makes up for one half of a gap.
    """
    noise = calibration.noise
    if noise.times is None or noise.gaps is None:
        return None
    random = np.random.default_rng(0)
    # Lindley's recursion, as the range of a random walk.
    steps = noise.times.draw(random, _STALLS) - _SPARE * noise.gaps.draw(random, _STALLS)
    walk = np.concatenate([[0.0], np.cumsum(steps)])
    left_over_ns = walk[:-1] - np.minimum.accumulate(walk[:-1])
    return 1e-9 * float(left_over_ns.max() + noise.times.bounds_ns[-1])


def _row(question: str, answer: float, low: float | None, high: float | None, unit: str) -> dict[str, Any]:
    return {"question": question, "answer": answer, "low": low, "high": high, "unit": unit}
