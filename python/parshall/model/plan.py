"""Capacity planning: find the largest load, or the smallest router, within given limits.

Simulations are finite, so an answer has an interval. At every value that is tried, replications give confidence
intervals of the loss and of the 99th percentile. A value is shown to be within the limits if both intervals are, and
beyond them if one interval is; the interval of the answer lies between such values, with the same confidence. All
values are tried with the same random numbers, so that only the value makes a difference.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from parshall.errors import ParshallError, UsageError
from parshall.model.builtin import MODELS
from parshall.model.network import Model
from parshall.model.simulation import Results, run
from parshall.model.variation import LOAD_FACTOR, build, current_value, main_sink, resolve, title
from parshall.statistics import share_interval

LOADS = ("load_pps", "load_mbps", LOAD_FACTOR)
# A search ends at 2^24 times, or a 2^24th of, its first value.
DOUBLINGS_MAX = 24
REPLICATIONS = 8
# An interval is wide when its width is more than this fraction of the answer.
WIDE = 0.1
# How often `within` doubles the simulated time.
LENGTHENINGS_MAX = 6


@dataclass(frozen=True)
class Limits:
    """Limits of loss and latency.

    Attributes
    ----------
    loss : float
        Maximum loss (fraction of packets).
    p99_us : float or None
        Maximum 99th percentile of the latency of packets that get through, us.
    """

    loss: float = 1e-3
    p99_us: float | None = None

    def hold(self, results: Results, sink: str | None = None) -> bool:
        """Whether the estimates of a run are within the limits."""
        return self.loss_holds(results) and self.p99_holds(results, sink)

    def loss_holds(self, results: Results) -> bool:
        """Whether the loss of a run is within its limit."""
        return sum(results.lost().values()) <= self.loss

    def p99_holds(self, results: Results, sink: str | None = None) -> bool:
        """Whether the 99th percentile of a run is within its limit."""
        return self.p99_us is None or _p99_us(results, sink) <= self.p99_us


class BeyondLimits(ParshallError):
    """No load is within the limits.

    Attributes
    ----------
    load : float
        The smallest load that was tried.
    """

    def __init__(self, name: str, load: float, unit: str) -> None:
        super().__init__(f"{name}: even a load of {load:g} ({unit}) is beyond the limits; relax them")
        self.load = load


@dataclass(frozen=True)
class Answer:
    """The result of a search.

    Attributes
    ----------
    value : float
        The largest load, or the smallest value.
    low, high : float or None
        Ends of its interval; None if the results on that side decide nothing.
    confidence : float
        Confidence level of the intervals of loss and latency.
    results : Results
        The results at the value.
    """

    value: float
    low: float | None
    high: float | None
    confidence: float
    results: Results

    @property
    def packets(self) -> int:
        """Number of packets simulated at the value."""
        return sum(int(replication["balance"]["entered"]) for replication in self.results.data["replications"])

    @property
    def relative_width(self) -> float | None:
        """Width of the interval as a fraction of the value; None if an end is unknown."""
        return None if self.low is None or self.high is None else (self.high - self.low) / self.value

    def is_wide(self, part: float = WIDE) -> bool:
        """Whether the interval is too wide or lacks an end; one whole step on each side is not too wide."""
        width = self.relative_width
        return width is None or width > max(part, 2 / self.value if self._is_whole else 0)

    @property
    def _is_whole(self) -> bool:
        return all(each is not None and float(each).is_integer() for each in (self.value, self.low, self.high))


def bisected(
    near: float,
    far: float,
    is_near: Callable[[float], bool],
    width: Callable[[float, float], float],
    *,
    is_whole: bool = False,
) -> tuple[float, float]:
    """Move two values towards the edge between them until they are no more than `width` apart."""
    while abs(far - near) > width(near, far):
        middle = float(int((near + far) / 2)) if is_whole else (near + far) / 2
        if is_near(middle):
            near = middle
        else:
            far = middle
    return near, far


def greatest_load(
    model: str | Path | Model,
    limits: Limits,
    *,
    settings: Mapping[str, str | float] | None = None,
    unit: str | None = None,
    precision: float = 0.002,
    duration_s: float = 4.0,
    sink: str | None = None,
    within: float | None = None,
    on_trial: Callable[[float, int], object] | None = None,
    **options: Any,
) -> Answer:
    """Find the largest load within limits, by bisection.

    Parameters
    ----------
    model, settings
        A built-in model and its parameters, or a file or network and its settings (`parshall.model.variation.build`).
    limits
        Limits of loss and latency.
    unit
        Parameter of the load: ``load_pps`` (None), ``load_mbps``; for a file or network ``load_factor`` (None), by
        which the rates of its traffic are multiplied.
    precision
        Relative precision of the search.
    duration_s
        A quarter of the time simulated at each load, in 8 replications, seconds.
    sink
        Sink of the packets that got through; None is "forwarded", or the only sink.
    within
        Double that time until the interval of the answer is no wider than this fraction of it, at most six times.
    on_trial
        Is called before each load is simulated, with the load and how many were simulated.
    **options
        Options of `run`.

    Raises
    ------
    ParshallError
        No load is within the limits, or every one is.
    """
    base = resolve(model)
    unit = unit or ("load_pps" if isinstance(base, str) else LOAD_FACTOR)
    expected = LOADS[:2] if isinstance(base, str) else LOADS[2:]
    if unit not in expected:
        raise UsageError(f"{title(base)}: unit is {unit!r}; expected {' or '.join(expected)}")

    def search(trials: "_Trials") -> Answer:
        low = {"load_pps": 100.0, "load_mbps": 1.0, LOAD_FACTOR: 2.0**-10}[unit]
        if not trials.hold(low):
            raise BeyondLimits(title(base), low, unit)
        high = low
        for _ in range(DOUBLINGS_MAX):
            high *= 2
            if not trials.hold(high):
                break
            low = high
        else:
            raise ParshallError(f"{title(base)}: every load up to {high:g} ({unit}) is within the limits; tighten them")
        low, _ = bisected(low, high, trials.hold, lambda low, _: precision * low)
        return trials.answer(low, is_greatest=True, precision=precision, is_whole=False)

    options |= {"on_trial": on_trial}
    return _search_with_longer_runs(base, settings, unit, limits, sink, duration_s, options, within, search)


def smallest(
    model: str | Path | Model,
    parameter: str,
    limits: Limits,
    *,
    settings: Mapping[str, str | float] | None = None,
    precision: float = 0.002,
    duration_s: float = 4.0,
    sink: str | None = None,
    within: float | None = None,
    on_trial: Callable[[float, int], object] | None = None,
    **options: Any,
) -> Answer:
    """Find the smallest value of a parameter, such as a clock or the length of a queue, that is within limits.

    For a whole number, such as the length of a queue, the search considers the loss only; a longer queue would only
    raise latencies.

    Parameters
    ----------
    model, parameter, settings
        A built-in model, the parameter, and others; or a file or network and its settings.
    limits, precision, duration_s, sink, within, on_trial, **options
        As for `greatest_load`.

    Raises
    ------
    UsageError
        There is no such parameter, it is not a number above 0, or it is the load.
    ParshallError
        No value is within the limits, or every one is.
    """
    base = resolve(model)
    name = title(base)
    begin, is_whole = _begin(base, parameter, settings or {})

    def search(trials: "_Trials") -> Answer:
        trials.ignores_latency = is_whole
        low, high = _bracket(trials.hold, begin, is_whole, f"{name}: {parameter}")
        width = (lambda *_: 1.0) if is_whole else (lambda low, _: precision * low)
        low, high = bisected(low, high, lambda value: not trials.hold(value), width, is_whole=is_whole)
        held = trials.at(high)
        if not limits.p99_holds(held, sink):
            raise ParshallError(
                f"{name}: {parameter} of {high:g} is the smallest within the limit of loss, but its 99th percentile is "
                f"{_p99_us(held, sink):.0f} us; allow more loss, or a latency above {limits.p99_us:g} us"
            )
        return trials.answer(high, is_greatest=False, precision=precision, is_whole=is_whole)

    options["on_trial"] = on_trial
    return _search_with_longer_runs(base, settings, parameter, limits, sink, duration_s, options, within, search)


def _begin(base: str | Model, parameter: str, settings: Mapping[str, str | float]) -> tuple[float, bool]:
    """Return the value of a parameter from which a search begins, and whether it is a whole number."""
    name, value = title(base), settings.get(parameter)
    # Raises if there is no such model, parameter or field.
    build(base, {**settings, parameter: 1 if value is None else value})
    if isinstance(base, str):
        default = {each.name: each.default for each in fields(MODELS[base])}[parameter]
        given: Any = default if value is None else value
        is_number, is_whole = not isinstance(default, str), isinstance(default, int)
    else:
        given = current_value(base, parameter) if value is None else value
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        is_whole = parameter.rsplit(".", 1)[-1] in ("capacity_packets", "capacity_bytes", "servers", "packets", "batch")
    try:
        begin = float(given) if is_number or value is not None else 0.0
    except ValueError:
        begin = 0.0
    if parameter in LOADS or not begin > 0:
        raise UsageError(f"{name}: {parameter} is {given!r}; expected the name of a number above 0, such as cpu_mhz")
    return begin, is_whole


def _search_with_longer_runs(
    base: str | Model,
    settings: Mapping[str, str | float] | None,
    parameter: str,
    limits: Limits,
    sink: str | None,
    duration_s: float,
    options: Mapping[str, Any],
    within: float | None,
    search: Callable[["_Trials"], Answer],
) -> Answer:
    """Search, and double the simulated time while the interval is too wide."""
    for doublings in range(LENGTHENINGS_MAX + 1):
        length_s = duration_s * 2**doublings
        answer = search(_Trials(base, dict(settings or {}), parameter, limits, sink, length_s, dict(options)))
        if within is None or not answer.is_wide(within):
            break
    return answer


@dataclass
class _Trials:
    """Cached runs at values of a parameter."""

    base: str | Model
    settings: dict[str, str | float]
    parameter: str
    limits: Limits
    sink: str | None
    duration_s: float
    options: dict[str, Any]
    # The 99th percentile is checked at the end of the search.
    ignores_latency: bool = False

    def __post_init__(self) -> None:
        self._found: dict[float, Results] = {}
        self.confidence = float(self.options.get("confidence", 0.95))
        self._burst_s: float | None = None
        self._on_trial = self.options.pop("on_trial", None) or (lambda value, done: None)

    def at(self, value: float) -> Results:
        """Run at a value."""
        if value not in self._found:
            self._on_trial(value, len(self._found))
            network = build(self.base, {**self.settings, self.parameter: value})
            described = network.as_dict()
            self.sink = main_sink(described["sinks"], self.sink, title(self.base))
            # Queues without bounds lose nothing.
            if not any(queue.keys() & {"capacity_packets", "capacity_bytes"} for queue in described["queues"]):
                self._burst_s = 0.0
            # As much time as 4 replications of the duration.
            replications = int(self.options.get("replications", REPLICATIONS))
            given = {"duration_s": 4 * self.duration_s / replications, "warm_up_s": 0.2, **self.options}
            self._found[value] = run(network, **{**given, "replications": replications})
        return self._found[value]

    def hold(self, value: float) -> bool:
        """Whether the limits hold at a value, by its estimates."""
        results = self.at(value)
        return self.limits.loss_holds(results) if self.ignores_latency else self.limits.hold(results, self.sink)

    def verdict(self, value: float) -> bool | None:
        """Whether the limits hold (true) or do not (false) at a value, by the intervals; None if these hold a limit."""
        results = self.at(value)
        verdicts = [_verdict(*loss_interval(results, self.confidence, self._burst_s), self.limits.loss)]
        if self.limits.p99_us is not None and not self.ignores_latency:
            verdicts.append(_verdict(*_p99_interval_us(results, self.sink), self.limits.p99_us))
        if False in verdicts:
            return False
        return None if None in verdicts else True

    def answer(self, value: float, *, is_greatest: bool, precision: float, is_whole: bool) -> Answer:
        """Return the answer with its interval."""
        step = 1.0 if is_whole else max(4 * precision * value, 1e-300)
        # Search towards values within the limits, and away from them.
        held = self._edge(value, -1 if is_greatest else 1, True, step, is_whole)
        broken = self._edge(value, 1 if is_greatest else -1, False, step, is_whole)
        low, high = (held, broken) if is_greatest else (broken, held)
        if is_whole and low is not None:
            # `low` is too small, so the interval begins at the next value.
            low = min(low + 1, value)
        return Answer(value, low, high, self.confidence, self.at(value))

    def _edge(self, value: float, direction: int, verdict: bool, step: float, is_whole: bool) -> float | None:
        """Return the nearest value in a direction with a verdict, with the precision of a step."""
        if self.verdict(value) is verdict:
            return value
        near, far, distance = value, value, step
        for _ in range(DOUBLINGS_MAX):
            far = value + direction * distance
            if far <= 0:
                # A capacity of 0 is too small; for real numbers, halve the distance to 0.
                if is_whole:
                    return None if verdict else 0.0
                far = near / 2
                if far < value * 1e-3:
                    return None
            elif distance > 64 * value:
                return None
            if self.verdict(far) is verdict:
                break
            near, distance = far, distance * 2
        else:
            return None

        def width(_: float, far: float) -> float:
            return max(step, 1 if is_whole else abs(far - value) / 8)

        _, far = bisected(near, far, lambda at: self.verdict(at) is not verdict, width, is_whole=is_whole)
        return far


def _verdict(low: float, high: float, limit: float) -> bool | None:
    if high <= limit:
        return True
    return False if low > limit else None


def loss_interval(results: Results, confidence: float, burst_s: float | None = None) -> tuple[float, float]:
    """Return the confidence interval of the loss.

    Packets are lost in bursts, such as those of a stall, so replications are counted, not packets: where some lost
    none, no more than a share of them loses any (Clopper and Pearson, 1934), and each of these as much as the one that
    lost most, or as a burst.

    Parameters
    ----------
    results : Results
        The replications.
    confidence : float
        Confidence level.
    burst_s : float, optional
        Longest time for which packets may be lost at once, seconds. Default: as long as a replication.
    """
    rows = results.estimates.filter(kind="network", measure="loss")
    if rows.is_empty() or rows["half_width"][0] is None:
        return 0.0, 1.0
    mean, half_width = float(rows["mean"][0]), float(rows["half_width"][0])
    replications = results.data["replications"]
    losses = [
        sum(queue["lost"] for queue in each["queues"]) / max(1, each["balance"]["entered"]) for each in replications
    ]
    lossy = sum(loss > 0 for loss in losses)
    high = mean + half_width
    if lossy < len(losses):
        shortest_s = max(1e-9, min(each["time_s"] for each in replications))
        burst = 1.0 if burst_s is None else min(1.0, burst_s / shortest_s)
        worst = max(*losses, burst) if burst_s is not None or not lossy else max(losses)
        high = max(high, share_interval(lossy, len(losses), confidence)[1] * worst)
    return max(mean - half_width, 0.0), min(high, 1.0)


def _p99_interval_us(results: Results, sink: str | None) -> tuple[float, float]:
    rows = results.estimates.filter(kind="sink", place=sink, measure="p99_ns")
    if rows.is_empty() or rows["half_width"][0] is None:
        return 0.0, float("inf")
    mean_us, half_width_us = rows["mean"][0] / 1e3, rows["half_width"][0] / 1e3
    return mean_us - half_width_us, mean_us + half_width_us


def _p99_us(results: Results, sink: str | None) -> float:
    return results.quantile_ns(main_sink(results.sinks, sink, results.data["model"]), 0.99) / 1e3


def _bracket(holds: Callable[[float], bool], begin: float, is_whole: bool, what: str) -> tuple[float, float]:
    """Return a value that is too small, and one that is large enough."""
    value = float(int(begin)) if is_whole else begin
    if holds(value):
        for _ in range(DOUBLINGS_MAX):
            if is_whole and value <= 1:
                # A queue has at least one place.
                return 0.0, 1.0
            below = float(int(value / 2)) if is_whole else value / 2
            if not holds(below):
                return below, value
            value = below
        raise ParshallError(f"{what}: every value down to {value:g} is within the limits; tighten them")
    for _ in range(DOUBLINGS_MAX if not is_whole else 16):
        above = value * 2
        if holds(above):
            return value, above
        value = above
    raise ParshallError(f"{what}: no value up to {value:g} is within the limits; relax them")
