"""A forecast: the state of the machine is drawn, then its packets.

The capacity of a real machine moves within minutes, so that no single number is right. A calibration is made of
stretches, and each has a state: how long a service, a wake-up and the link take, and how many stalls there are. A draw
of a forecast is another stretch: with a state as those were, packets by chance, and stalls by chance.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow
from scipy import special

from parshall.errors import ParshallError
from parshall.model.builtin.bsd import FORWARDED
from parshall.model.plan import Limits
from parshall.model.simulation import run
from parshall.router.calibration import Calibration, scaled
from parshall.router.network import calibrated, network
from parshall.router.prediction import QUANTILES, latencies_ns, predict
from parshall.router.sender import drawn_stalls
from parshall.router.traffic import Traffic
from parshall.router.trials import Correction, correction
from parshall.statistics.summary import share_interval

CONFIDENCE = 0.9
# The 3rd and the 57th of 59, or the 2nd and 38th of 39, hold another one with 90 %: all orders of these and it are as
# probable.
DRAWS, FEW_DRAWS = 59, 39
# What a seed is for: numbers of different purposes, and of draws, have nothing in common.
_STATES, _STALLS, _PACKETS = 1, 2, 3
STRETCHES_MIN = 3
NAMES = tuple(f"p{100 * quantile:g}" for quantile in QUANTILES)
# No machine is a thousand times as slow as it was: of three stretches hardly anything is known.
_LOG_MAX = math.log(1000)
# Of a stretch.
_WARM_UP = 0.1
# The largest deviation of the rate of stalls over its mean, values of it that are tried, and the least rate.
_DEVIATION_MAX, _GRID, _LEAST_RATE = 2.0, 60, 1e-3


@dataclass(frozen=True)
class State:
    """Factors of a calibration's parameters in a stretch."""

    service: float
    wake: float
    link: float
    stalls: float


def states(calibration: Calibration, count: int, seed: int) -> list[State]:
    """Draw states of other stretches, as those of a calibration were.

    Logarithms of times have a multivariate normal distribution whose mean and covariance are estimated from the
    stretches, so another stretch has Student's (Geisser, Predictive Inference, 1993, chapter 9). A stretch has few
    stalls, so that these vary by chance, too: their counts are Poisson variables whose rates have a gamma distribution,
    and its mean and shape are drawn from what the counts leave possible.

    Parameters
    ----------
    calibration : Calibration
        Has at least `STRETCHES_MIN` stretches.
    count, seed : int
        Number of states, and seed.

    Raises
    ------
    ParshallError
        There are too few stretches.
    """
    rows = calibration.stretches
    if len(rows) < STRETCHES_MIN:
        raise ParshallError(
            f"calibration: {len(rows)} stretches do not say how the machine varies: expected {STRETCHES_MIN} or more; "
            "calibrate again with --repeats 12"
        )
    values = np.log([[max(row[name], 1e-3) for name in ("service_ns", "wake_ns", "link_ns")] for row in rows])
    deviations = values - values.mean(axis=0)
    freedom = len(rows) - 1
    random = np.random.default_rng([seed, _STATES])
    normal = random.standard_normal((count, len(rows))) / np.sqrt(freedom)
    scale = np.sqrt((1 + 1 / len(rows)) * freedom / random.chisquare(freedom, (count, 1)))
    factors = np.exp(np.clip(scale * (normal @ deviations), -_LOG_MAX, _LOG_MAX))
    stalls = _stalls(
        random, np.array([row["stalls"] for row in rows]), np.array([row["span_s"] for row in rows]), count
    )
    return [State(*row) for row in np.column_stack([factors, stalls]).tolist()]


def _stalls(random: np.random.Generator, counts: np.ndarray, spans_s: np.ndarray, draws: int) -> np.ndarray:
    """Draw the rate of stalls in other stretches, over the mean rate of these.

    Rates have a gamma distribution, so counts have a negative binomial one. Its mean (flat in the logarithm) and the
    deviation of a rate over its mean (flat up to `_DEVIATION_MAX`) have a probability by these counts, on a grid.
    """
    if not counts.sum():
        return np.ones(draws)
    expected = spans_s * counts.sum() / spans_s.sum()
    error = 1 / np.sqrt(counts.sum()) + _DEVIATION_MAX / np.sqrt(len(counts))
    mean = np.exp(np.linspace(-3 * error, 3 * error, _GRID))[:, None, None]
    shape = np.linspace(_DEVIATION_MAX / _GRID, _DEVIATION_MAX, _GRID)[None, :, None] ** -2
    rate = mean * expected
    likelihood = special.gammaln(counts + shape) - special.gammaln(shape)
    likelihood = likelihood + counts * np.log(rate / (rate + shape)) - shape * np.log1p(rate / shape)
    weights = likelihood.sum(axis=2)
    weights = np.exp(weights - weights.max())
    chosen = random.choice(weights.size, draws, p=(weights / weights.sum()).ravel())
    means, shapes = mean.ravel()[chosen // _GRID], shape.ravel()[chosen % _GRID]
    rates: np.ndarray = np.maximum(random.gamma(shapes, means / shapes), _LEAST_RATE)
    return rates


def in_state(calibration: Calibration, state: State) -> Calibration:
    """Return the calibration of a router in a state."""
    noise = calibration.noise
    if noise.gaps is not None:
        noise = replace(noise, per_s=noise.per_s * state.stalls, gaps=scaled(noise.gaps, 1 / state.stalls))
    return replace(
        calibration,
        service=scaled(calibration.service, state.service),
        send_ns=calibration.send_ns * state.service,
        wake=scaled(calibration.wake, state.wake),
        link_ns=max(calibration.link_ns * state.link, calibration.transfer_ns),
        noise=noise,
    )


@dataclass(frozen=True)
class Forecast:
    """What stretches of a router would measure.

    Attributes
    ----------
    values : dict of str to numpy.ndarray
        Shape (draws,), each: quantiles of the latency, microseconds (`NAMES`; infinite where no packet left); ``lost``,
        the share of the packets, at least what `forecast` says is beyond the capacity.
    corrections : dict of str to Correction or None
        By the names of quantiles: those by the trials of the calibration.
    """

    values: dict[str, np.ndarray]
    corrections: dict[str, Correction | None] = field(default_factory=dict)

    def interval(self, name: str) -> tuple[float, float, float]:
        """Return low end, median and high end: another stretch lies between the ends with `CONFIDENCE`."""
        # A higher quantile is no smaller.
        up_to = NAMES[: NAMES.index(name) + 1] if name in NAMES else (name,)
        low, middle, high = zip(*map(self._interval, up_to), strict=True)
        return max(low), max(middle), max(high)

    def _interval(self, name: str) -> tuple[float, float, float]:
        ordered = np.sort(self.values[name])
        middle = float(np.median(ordered))
        if correction := self.corrections.get(name):
            return correction.of(middle)
        rank = max(1, round((1 - CONFIDENCE) / 2 * (len(ordered) + 1)))
        return float(ordered[rank - 1]), middle, float(ordered[-rank])

    def holding(self, limits: Limits) -> tuple[int, int]:
        """Return in how many stretches limits hold, and of how many."""
        holds = self.values["lost"] <= limits.loss
        if limits.p99_us is not None:
            holds &= self.values["p99"] <= limits.p99_us
        return int(holds.sum()), len(holds)


def forecast(
    calibration: Calibration,
    pps: float,
    *,
    speed: float = 1.0,
    duration_s: float = 1.0,
    draws: int = DRAWS,
    seed: int = 1,
    say: Callable[[int], object] = lambda done: None,
) -> Forecast:
    """Forecast stretches of Poisson arrivals.

    What exceeds the capacity of a stretch counts as lost: a queue of 100,000 packets takes it for seconds, but a router
    is planned for longer.

    Parameters
    ----------
    calibration : Calibration
        The router.
    pps : float
        Arrivals in a second.
    speed : float
        Speed of the CPU over that of the calibration.
    duration_s : float
        Length of a stretch.
    draws, seed : int
        Number of stretches; seed. The same seed has the same states at every rate.
    say : callable
        Takes how many stretches were simulated.
    """

    def stretches() -> Iterator[tuple[list[float], float]]:
        for number, state in enumerate(states(calibration, draws, seed)):
            say(number)
            own = in_state(calibration, state)
            random = np.random.default_rng([seed, _STALLS, number])
            # A stretch may begin in the longest stall.
            longest_ns = own.noise.times.bounds_ns[-1] if own.noise.times else 0.0
            warm_up_s = max(_WARM_UP * duration_s, 1e-9 * longest_ns)
            span_ns = 1e9 * (warm_up_s + duration_s)
            begins_ns = [begin for begin, _ in drawn_stalls(random, own, 0, int(span_ns))]
            if not begins_ns:
                own = replace(own, noise=replace(own.noise, times=None, gaps=None))
            results = run(
                network(own, pps=pps, speed=speed, stall_gap_ns={"trace": "stalls_ns"}),
                duration_s=duration_s,
                warm_up_s=warm_up_s,
                replications=1,
                seed=_seed_of(seed, number),
                allow_unstable=True,
                traces={"stalls_ns": np.diff(begins_ns, prepend=0.0).tolist()} if begins_ns else {},
            )
            (replication,) = results.data["replications"]
            # A stall may take the whole stretch.
            has_left = any(sink["sink"] == FORWARDED and sink["packets"] for sink in replication["sinks"])
            quantiles_us = [
                results.quantile_ns(FORWARDED, quantile) / 1e3 if has_left else math.inf for quantile in QUANTILES
            ]
            lost = sum(queue["lost"] for queue in replication["queues"])
            beyond = 1 - min(1.0, speed * own.parts_pps / pps)
            yield quantiles_us, max(lost / max(1, replication["balance"]["entered"]), beyond)

    return _collected(stretches())


def forecast_of(
    calibration: Calibration, arrivals: pyarrow.Table, *, draws: int = FEW_DRAWS, seed: int = 1
) -> Forecast:
    """Forecast stretches of packets whose times are given, see `parshall.router.network.calibrated`.

    Latencies are corrected by the trials of the calibration, see `parshall.router.trials`.
    """

    def stretches() -> Iterator[tuple[list[float], float]]:
        for number, state in enumerate(states(calibration, draws, seed)):
            predicted = predict(calibrated(in_state(calibration, state), _seed_of(seed, number)), arrivals)
            latencies_us = latencies_ns(predicted) / 1e3
            quantiles_us = np.quantile(latencies_us, QUANTILES).tolist() if len(latencies_us) else [math.inf] * 3
            yield quantiles_us, 1 - len(latencies_us) / predicted.num_rows

    load = load_of(calibration, arrivals)
    corrections = {name: correction(calibration.trials, load, name, CONFIDENCE) for name in NAMES}
    return replace(_collected(stretches()), corrections=corrections)


def load_of(calibration: Calibration, arrivals: pyarrow.Table) -> float:
    """Return the rate at which packets were due, or arrived, as a share of the rate under overload."""
    name = "due_ns" if "due_ns" in arrivals.column_names else "arrival_ns"
    times_ns = arrivals.column(name).to_numpy()
    return 1e9 * (len(times_ns) - 1) / max(1, int(np.ptp(times_ns))) / calibration.overload_pps


def trial_rows(calibration: Calibration, runs: Sequence[tuple[Traffic, pyarrow.Table]]) -> list[dict[str, Any]]:
    """Return `Calibration.trials`: workloads, and forecasts of a calibration that has none yet."""
    rows = []
    for traffic, table in runs:
        latencies_us = latencies_ns(table) / 1e3
        found = forecast_of(replace(calibration, trials=[]), table, seed=traffic.seed)
        if not len(latencies_us) or not all(np.isfinite(each).all() for each in found.values.values()):
            continue
        for name, measured_us in zip(NAMES, np.quantile(latencies_us, QUANTILES).tolist(), strict=True):
            ends = dict(zip(("low_us", "middle_us", "high_us"), found.interval(name), strict=True))
            about = {"traffic": traffic.kind, "load": load_of(calibration, table), "seed": traffic.seed}
            rows.append(about | {"quantile": name, "measured_us": measured_us} | ends)
    return rows


def _seed_of(seed: int, number: int) -> int:
    """Return the seed of the packets of a draw: forecasts of seeds that follow each other share no draw."""
    return int(np.random.SeedSequence([seed, _PACKETS, number]).generate_state(1)[0])


def _collected(stretches: Iterator[tuple[list[float], float]]) -> Forecast:
    rows = [[*quantiles_us, lost] for quantiles_us, lost in stretches]
    columns: Any = np.array(rows, float).T
    return Forecast(dict(zip((*NAMES, "lost"), columns, strict=True)))


def holding_interval(found: tuple[int, int]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the share of stretches in which limits hold (Clopper, Pearson, 1934)."""
    return share_interval(*found)
