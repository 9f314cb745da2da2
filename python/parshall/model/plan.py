"""Capacity planning: the greatest load, or the smallest router, that stays within given limits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from parshall.errors import ParshallError, UsageError
from parshall.model.builtin import FORWARDED, MODELS, parameters
from parshall.model.simulation import Results, run

LOADS = ("load_pps", "load_mbps")
# A search gives up beyond 2^24 times, or a 2^24th of, where it began.
DOUBLINGS_MAX = 24


@dataclass(frozen=True)
class Limits:
    """What a load may cost.

    Attributes
    ----------
    loss : float
        Greatest part of the packets that may be lost.
    p99_us : float or None
        Greatest 99th percentile of the latency.
    """

    loss: float = 1e-3
    p99_us: float | None = None

    def hold(self, results: Results) -> bool:
        """Whether a run stayed within them."""
        return self.loss_holds(results) and self.p99_holds(results)

    def loss_holds(self, results: Results) -> bool:
        """Whether a run lost no more than it may."""
        return sum(results.lost().values()) <= self.loss

    def p99_holds(self, results: Results) -> bool:
        """Whether its packets took no longer than they may."""
        return self.p99_us is None or results.quantile_ns(FORWARDED, 0.99) <= self.p99_us * 1e3


def greatest_load(
    name: str,
    limits: Limits,
    *,
    settings: Mapping[str, str | float] | None = None,
    unit: str = "load_pps",
    precision: float = 0.002,
    duration_s: float = 4.0,
    **options: Any,
) -> tuple[float, Results]:
    """Find the greatest load within limits, by halving between one that is and one that is not.

    Parameters
    ----------
    name, settings
        A built-in model and its parameters.
    limits
        What must hold.
    unit
        Parameter that is the load: ``load_pps`` or ``load_mbps``.
    precision
        Of the load, relative.
    duration_s
        Time simulated at each load, of 4 replications.
    **options
        Of `run`.

    Returns
    -------
    (float, Results)
        The load, and what was found at it.

    Raises
    ------
    ParshallError
        No load is within the limits, or every one is.
    """
    if unit not in LOADS:
        raise UsageError(f"unit is {unit!r}; expected load_pps or load_mbps")
    at = _runner(name, settings, unit, duration_s, options)
    low = 100.0 if unit == "load_pps" else 1.0
    held = at(low)
    if not limits.hold(held):
        raise ParshallError(f"{name}: even a load of {low:g} ({unit}) is beyond the limits; loosen them")
    high = low
    for _ in range(DOUBLINGS_MAX):
        high *= 2
        results = at(high)
        if not limits.hold(results):
            break
        low, held = high, results
    else:
        raise ParshallError(f"{name}: every load up to {high:g} ({unit}) is within the limits; tighten them")
    while high - low > precision * low:
        middle = (low + high) / 2
        results = at(middle)
        if limits.hold(results):
            low, held = middle, results
        else:
            high = middle
    return low, held


def smallest(
    name: str,
    parameter: str,
    limits: Limits,
    *,
    settings: Mapping[str, str | float] | None = None,
    precision: float = 0.002,
    duration_s: float = 4.0,
    **options: Any,
) -> tuple[float, Results]:
    """Find the smallest value of a parameter, such as a clock or the length of a queue, that is within limits.

    Of a whole number, as the length of a queue is, it is the smallest that loses no more than it may; a longer queue
    would only make latencies longer.

    Parameters
    ----------
    name, parameter, settings
        A built-in model, the parameter, and others.
    limits, precision, duration_s, **options
        As of `greatest_load`.

    Returns
    -------
    (float, Results)
        The value, and what was found at it.

    Raises
    ------
    UsageError
        There is no such parameter, or it is no number above 0, or it is the load.
    ParshallError
        No value is within the limits, or every one is.
    """
    # Says so when there is no such model or parameter.
    parameters(name, {parameter: (settings or {}).get(parameter, 1)})
    default = {each.name: each.default for each in fields(MODELS[name])}[parameter]
    given: Any = (settings or {}).get(parameter, default)
    if isinstance(default, str) or parameter in LOADS or not float(given) > 0:
        raise UsageError(f"{name}: {parameter} is {given!r}; expected the name of a number above 0, such as cpu_mhz")
    is_whole = isinstance(default, int)
    at = _runner(name, settings, parameter, duration_s, options)
    holds = limits.loss_holds if is_whole else limits.hold
    low, high, held = _bracket(at, holds, float(given), is_whole, f"{name}: {parameter}")
    while high - low > (1 if is_whole else precision * low):
        middle = float(int((low + high) / 2)) if is_whole else (low + high) / 2
        results = at(middle)
        if holds(results):
            high, held = middle, results
        else:
            low = middle
    if not limits.p99_holds(held):
        p99_us = held.quantile_ns(FORWARDED, 0.99) / 1e3
        raise ParshallError(
            f"{name}: {parameter} of {high:g} is the smallest that loses so little, and its 99th percentile is "
            f"{p99_us:.0f} us; allow more loss, or another latency than {limits.p99_us:g} us"
        )
    return high, held


def _bracket(
    at: Callable[[float], Results], holds: Callable[[Results], bool], begin: float, is_whole: bool, what: str
) -> tuple[float, float, Results]:
    """Return a value that is too small, one that is not, and what was found at that."""
    value, results = begin, at(begin)
    if holds(results):
        for _ in range(DOUBLINGS_MAX):
            if is_whole and value <= 1:
                # 0 places are no queue.
                return 0.0, 1.0, results
            below = float(int(value / 2)) if is_whole else value / 2
            found = at(below)
            if not holds(found):
                return below, value, results
            value, results = below, found
        raise ParshallError(f"{what}: every value down to {value:g} is within the limits; tighten them")
    for _ in range(DOUBLINGS_MAX if not is_whole else 16):
        above = value * 2
        results = at(above)
        if holds(results):
            return value, above, results
        value = above
    raise ParshallError(f"{what}: no value up to {value:g} is within the limits; loosen them")


def _runner(
    name: str,
    settings: Mapping[str, str | float] | None,
    parameter: str,
    duration_s: float,
    options: Mapping[str, Any],
) -> Callable[[float], Results]:
    def at(value: float) -> Results:
        model = parameters(name, {**(settings or {}), parameter: value}).build()
        return run(model, **{"duration_s": duration_s, "replications": 4, "warm_up_s": 0.2, **options})

    return at
