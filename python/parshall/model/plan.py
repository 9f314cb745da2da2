"""Capacity planning: the greatest load that a model carries within given limits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parshall.errors import ParshallError, UsageError
from parshall.model.builtin import FORWARDED, parameters
from parshall.model.simulation import Results, run


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
        if sum(results.lost().values()) > self.loss:
            return False
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
    if unit not in ("load_pps", "load_mbps"):
        raise UsageError(f"unit is {unit!r}; expected load_pps or load_mbps")

    def at(load: float) -> Results:
        model = parameters(name, {**(settings or {}), unit: load}).build()
        return run(model, **{"duration_s": duration_s, "replications": 4, "warm_up_s": 0.2, **options})

    low = 100.0 if unit == "load_pps" else 1.0
    held = at(low)
    if not limits.hold(held):
        raise ParshallError(f"{name}: even a load of {low:g} ({unit}) is beyond the limits; loosen them")
    load, results = _halve(at, limits, low, held, precision)
    return load, results


def _halve(
    at: Callable[[float], Results], limits: Limits, low: float, held: Results, precision: float
) -> tuple[float, Results]:
    high = low
    for _ in range(24):
        high *= 2
        results = at(high)
        if not limits.hold(results):
            break
        low, held = high, results
    else:
        raise ParshallError(f"every load up to {high:g} is within the limits; tighten them")
    while high - low > precision * low:
        middle = (low + high) / 2
        results = at(middle)
        if limits.hold(results):
            low, held = middle, results
        else:
            high = middle
    return low, held
