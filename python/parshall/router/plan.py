"""Answers for a calibrated router: its capacity, its latency at a load, a faster CPU, the bottleneck.

An answer is about stretches of a time: the largest load at which limits hold in nine of ten of them, or what nine of
ten lie between. Another stretch has another state of the machine, and other stalls.
"""

import math
from collections.abc import Callable
from typing import Any

from parshall.errors import ParshallError
from parshall.model.plan import Limits, bisected
from parshall.router.calibration import Calibration
from parshall.router.forecast import CONFIDENCE, NAMES, Forecast, forecast, holding_interval

# The load of the answers without one.
_SHARE = 0.6
_FASTER = 2.0
# Of the rate under overload: where a search begins, the least and the greatest load of it; how near its ends are.
_BEGIN, _LEAST, _MOST, _PRECISION = 0.5, 2.0**-10, 16.0, 0.02


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
        Load at which latencies are predicted. Default: 60 % of the load at which the limits hold.
    duration_s : float
        Length of a stretch, in which the limits hold or not.
    seed : int
        Seed.
    say : callable
        Takes what is being simulated, before each simulation.

    Returns
    -------
    list of dict
        ``question``, ``answer``, ``low``, ``high``, ``unit``; low and high are ends of an interval, None if unknown (a
        latency is where no packet left). Of
        a load it is where the share of stretches in which the limits hold is nine of ten, with 95 % confidence; of a
        latency, what nine of ten stretches lie between; of a share of stretches, its 95 % confidence interval.

    Raises
    ------
    ParshallError
        The calibration has too few stretches, every load is within the limits, or none is and none was asked for.
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
    often = f"in {CONFIDENCE:.0%} of stretches of {duration_s:g} s"
    rows = [
        _row(f"largest load, {within}, {often}", *own, "packets/s"),
        _row(f"the same of a CPU of {_FASTER:g} times the speed", *faster, "packets/s"),
    ]
    found = forecast(
        calibration,
        load,
        duration_s=duration_s,
        seed=seed,
        say=lambda done: say(f"latency at {load:,.0f} packets/s, stretch {done + 1}"),
    )
    for name in NAMES:
        low, middle, high = found.interval(name)
        rows.append(_row(f"latency {name} at {load:,.0f} packets/s", middle, low, high, "us"))
    low, middle, high = found.interval("lost")
    rows.append(_row(f"lost at {load:,.0f} packets/s", middle, low, high, "share"))
    holding = found.holding(limits)
    rows.append(
        _row(
            f"stretches within the limits at {load:,.0f} packets/s",
            holding[0] / holding[1],
            *holding_interval(holding),
            "share",
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
    """Return the largest load at which limits hold in nine of ten stretches, packets/s, with the ends of its interval.

    Below the lower end the limits hold in nine of ten stretches with 95 % confidence, above the upper end they do not;
    None where no load that was tried says so. Where no load is within the limits, the answer is 0, and lies below the
    smallest load that was tried.
    """
    which = "largest load" if speed == 1 else f"largest load of a CPU of {speed:g} times the speed"
    tried: dict[float, tuple[int, int]] = {}

    def holds(pps: float) -> bool:
        if pps not in tried:
            what = f"{which}: {pps:,.0f} packets/s, after {len(tried)} other loads of some 10"
            say(what)
            found: Forecast = forecast(
                calibration,
                pps,
                speed=speed,
                duration_s=duration_s,
                seed=seed,
                say=lambda done: say(f"{what}, stretch {done + 1}"),
            )
            tried[pps] = found.holding(limits)
        count, of = tried[pps]
        return count >= CONFIDENCE * of

    load = _BEGIN * speed * calibration.overload_pps
    if holds(load):
        low = high = load
        while holds(high):
            low, high = high, 1.5 * high
            if high > _MOST * speed * calibration.overload_pps:
                raise ParshallError(
                    f"this router: every load up to {low:,.0f} packets/s is within the limits; tighten them"
                )
    else:
        low = high = load
        while not holds(low):
            if low < _LEAST * calibration.overload_pps:
                return 0.0, 0.0, low
            low, high = low / 2, low
    low, _ = bisected(low, high, holds, lambda low, _: _PRECISION * low)
    sure = [pps for pps, found in tried.items() if holding_interval(found)[0] >= CONFIDENCE and pps <= low]
    broken = [pps for pps, found in tried.items() if holding_interval(found)[1] < CONFIDENCE and pps > low]
    return low, max(sure, default=None), min(broken, default=None)


def _row(question: str, answer: float, low: float | None, high: float | None, unit: str) -> dict[str, Any]:
    known = (None if value is None or math.isinf(value) else value for value in (answer, low, high))
    return {"question": question, **dict(zip(("answer", "low", "high"), known, strict=True)), "unit": unit}
