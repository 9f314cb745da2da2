"""Forecasts: another stretch lies in their intervals as often as they say, of machines that another model makes."""

import contextlib
import dataclasses
import itertools
import json
import math
from collections.abc import Iterator
from functools import cache, partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pyarrow
import pytest
from event_router import EventRouter, drawn, poisson_stalls
from test_router_calibration import constant, exponential, times_of_arrival, uniform

from made_calibration import STALLS_PER_S, known, stretches
from parshall.errors import ParshallError, UsageError
from parshall.model.plan import Limits
from parshall.router import calibrate as calibrating
from parshall.router import plan as planning
from parshall.router import validation
from parshall.router.calibration import Calibration
from parshall.router.estimation import Passages
from parshall.router.forecast import (
    CONFIDENCE,
    DRAWS,
    FEW_DRAWS,
    NAMES,
    Forecast,
    _seed_of,
    forecast,
    forecast_of,
    states,
)
from parshall.router.plan import largest_load, plan
from parshall.router.prediction import QUANTILES, latencies_ns
from parshall.router.setup import Setup
from parshall.router.traffic import Traffic
from suites import long_except

KNOWN = known()


def calibrated_in(rows: list[dict[str, float]]) -> Calibration:
    return dataclasses.replace(KNOWN, stretches=rows)


SPEED_SD, WAKE_SD, STALLS_SD = 0.06, 0.1, 0.5


def logs(found: list, name: str) -> np.ndarray:
    return np.log([getattr(state, name) for state in found])


def test_many_stretches_give_their_own_spread_and_correlation() -> None:
    rows = stretches(400, service=0.2, wake=0.1)
    for row in rows:
        # A slow machine is slow in both.
        row["wake_ns"] *= row["service_ns"] / 700
    found = states(known(stretches=rows), 20_000, 1)
    own = np.log([[row["service_ns"], row["wake_ns"]] for row in rows])
    for at, name in enumerate(("service", "wake")):
        assert logs(found, name).std() == pytest.approx(own[:, at].std(), rel=0.03)
        assert logs(found, name).mean() == pytest.approx(0, abs=0.01)
    correlation = np.corrcoef(logs(found, "service"), logs(found, "wake"))[0, 1]
    assert correlation == pytest.approx(np.corrcoef(own.T)[0, 1], abs=0.02)
    assert logs(found, "link").std() == pytest.approx(0, abs=1e-12)


def test_how_stretches_differ_is_drawn_once_and_the_middle_is_theirs() -> None:
    """Not that of the stretch with most services, which is a slow one: there more packets wait."""
    services = [np.full(100, 1_000.0), np.full(10_000, 4_000.0)]
    found = calibrating.in_one_state(services, [1_000.0, 4_000.0])
    assert (found.mean_ns, found.median_ns, found.p99_ns) == pytest.approx((2_000, 2_000, 2_000))
    assert (found.count, found.low_median_ns, found.high_median_ns) == (10_100, 1_000, 4_000)


def test_forecasts_of_seeds_that_follow_each_other_share_no_draw() -> None:
    packets = {_seed_of(seed, number) for seed in range(1, 21) for number in range(DRAWS)}
    assert len(packets) == 20 * DRAWS


def test_what_stalls_vary_by_chance_is_no_state_of_the_machine() -> None:
    by_chance = states(known(stretches=stretches(200, stalls=0.0)), 5_000, 1)
    assert logs(by_chance, "stalls").std() < 0.12
    varying = states(known(stretches=stretches(200, stalls=0.6)), 5_000, 1)
    assert logs(varying, "stalls").std() == pytest.approx(0.6, rel=0.2)


@pytest.mark.parametrize(
    ("deviation", "per_stretch"),
    long_except([(0.5, 3.0), (0.0, 20.0)], [(0.5, 3.0), (0.5, 60.0), (0.1, 3.0), (0.0, 20.0)]),
)
def test_the_stalls_of_another_stretch_lie_in_the_interval(deviation: float, per_stretch: float) -> None:
    """Rates that vary as another distribution than the one that is fitted; few and many stalls in a stretch."""
    random, runs, count = np.random.default_rng(7), 400, 8
    held = 0
    for run in range(runs):
        expected = per_stretch * np.exp(random.normal(0, deviation, count + 1))
        counts = random.poisson(expected)
        rows = [row | {"stalls": int(own)} for row, own in zip(stretches(count), counts[:-1], strict=True)]
        rates = np.array([state.stalls for state in states(calibrated_in(rows), DRAWS, run)]) * counts[:-1].mean()
        low, _, high = Forecast({"p50": random.poisson(rates).astype(float)}).interval("p50")
        held += low <= counts[-1] <= high
    # Counts are whole numbers, so that an interval has more than its share; and a wide prior is on the safe side.
    assert 0.87 <= held / runs <= 0.985, held


@pytest.mark.parametrize(
    ("count", "draws"),
    long_except([(3, FEW_DRAWS), (12, FEW_DRAWS), (5, DRAWS)], product([3, 5, 12], [FEW_DRAWS, DRAWS])),
)
def test_another_stretch_lies_in_the_interval_with_nine_tenths(count: int, draws: int) -> None:
    """Also of few stretches, whose spread is hardly known."""
    random, runs = np.random.default_rng(count), 500
    held = 0
    for run in range(runs):
        services = 700 * np.exp(random.normal(0, 0.2, count + 1))
        rows = [row | {"service_ns": float(own)} for row, own in zip(stretches(count), services[:-1], strict=True)]
        found = states(calibrated_in(rows), draws, run)
        centre = np.exp(np.log(services[:-1]).mean())
        low, _, high = Forecast({"p50": np.array([each.service for each in found])}).interval("p50")
        held += low <= services[-1] / centre <= high
    error = 3 * math.sqrt(CONFIDENCE * (1 - CONFIDENCE) / runs)
    assert held / runs == pytest.approx(CONFIDENCE, abs=error)


@dataclasses.dataclass(frozen=True)
class Machine:
    """A router, event by event, whose CPU has another speed, and more or fewer stalls, in each stretch."""

    seed: int
    count: int = 6_000
    mean_service: float = 800.0

    def table(self, stretch: int, pps: float, gaps, own: int, count: int | None = None) -> pyarrow.Table:  # type: ignore[no-untyped-def]
        """Return what one workload of a stretch gives."""
        state = np.random.default_rng([self.seed, stretch])
        speed, waking, often = np.exp(state.normal(0, (SPEED_SD, WAKE_SD, STALLS_SD)))
        random, packets = np.random.default_rng([self.seed, stretch, own]), count or self.count
        span_ns = 1e9 * packets * max(1 / pps, 1.2 * self.mean_service * speed / 1e9)
        router = EventRouter(
            service=drawn(self.mean_service * speed * random.gamma(20, 1 / 20, packets)),
            wake=drawn(8_000 * waking * random.gamma(60, 1 / 60, packets)),
            link=1_300,
            transfer=200,
            places=1000,
            stalls=poisson_stalls(random, 300 * often, 40_000, span_ns),
        )
        return router.table(times_of_arrival(pps, packets, self.seed * 1_000 + stretch * 10 + own, gaps))

    def calibration(self, repeats: int = 8) -> Calibration:
        """Return its calibration, from the workloads that `calibrate` offers."""
        pps = 1e9 / self.mean_service
        runs = (
            [Passages.of(self.table(stretch, rate, gaps, own)) for stretch in range(repeats)]
            for own, (rate, gaps) in enumerate(((pps / 6, uniform), (pps / 2, exponential), (2 * pps, constant)))
        )
        return known(**calibrating.estimated(*runs, batch=64), overload_pps=pps)


@cache
def inside(machines: int, load: float, count: int, calibration_count: int) -> dict[str, int]:
    """Return how many machines have a quantile of a later stretch within the interval of its forecast."""
    held = dict.fromkeys(NAMES, 0)
    for seed in range(machines):
        machine = Machine(seed, calibration_count)
        later = machine.table(99, load * 1e9 / machine.mean_service, exponential, 7, count)
        found = forecast_of(machine.calibration(), later.drop_columns(["due_ns"]), seed=seed)
        measured_us = np.quantile(latencies_ns(later), QUANTILES) / 1e3
        for name, value_us in zip(NAMES, measured_us.tolist(), strict=True):
            low_us, _, high_us = found.interval(name)
            held[name] += low_us <= value_us <= high_us
    return held


@pytest.mark.long
def test_a_forecast_beside_holds_where_an_old_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has become four times as slow since it was calibrated."""
    old = Machine(3, 2_000).calibration()
    slow = Machine(4, 2_000, mean_service=3_200.0)
    stretch = itertools.count()
    capacity_pps = 1e9 / slow.mean_service

    def measured(bed: object, traffic: Traffic, count: int) -> SimpleNamespace:
        gaps = {"random": uniform, "constant": constant}.get(traffic.kind, exponential)
        assert traffic.pps is not None
        table = slow.table(next(stretch), min(traffic.pps, 2 * capacity_pps), gaps, 1, min(count, 2_000))
        return SimpleNamespace(table=table.drop_columns(["due_ns"]), offered_pps=traffic.pps)

    @contextlib.contextmanager
    def bed(setup: Setup) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(setup=setup)

    monkeypatch.setattr(validation, "RouterTestbed", bed)
    monkeypatch.setattr(calibrating, "sender_fields", lambda *_: {"waking": None, "sender_batch": 1})
    for module in (validation, calibrating):
        monkeypatch.setattr(module, "measure", measured)
        monkeypatch.setattr(module, "overload", lambda *_, **__: SimpleNamespace(pps=capacity_pps))
    found = validation.validate(old, kinds=["poisson"], loads=[0.6], repeats=3, count=3_000, beside=True)
    medians = found.table().filter(quantile="p50").row(0, named=True)
    assert medians["inside"] == 0 and medians["beside_inside"] >= 2, medians
    assert abs(medians["beside_error"]) < 0.3 * abs(medians["network_error"])
    assert medians["beside_low_us"] < medians["measured_us"] < medians["beside_high_us"]
    assert found.inside("beside_")[0] > found.inside()[0] and found.inside()[1] == 9
    without = validation.validate(old, kinds=["poisson"], loads=[0.6], repeats=1, count=3_000)
    assert "beside_error" not in without.table().columns


def test_a_forecast_beside_needs_three_repeats() -> None:
    with pytest.raises(UsageError, match="--repeats 2: expected 3 or more with --beside"):
        validation.validate(known(), repeats=2, beside=True)


@pytest.mark.long
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_later_stretches_lie_in_their_forecasts_with_nine_tenths(load: float) -> None:
    held = inside(100, load, 30_000, 6_000)
    assert all(81 <= count <= 98 for count in held.values()), held


def test_a_state_of_few_stretches_is_refused() -> None:
    with pytest.raises(ParshallError, match="2 stretches do not say how the machine varies: expected 3 or more"):
        states(known(stretches=stretches(2)), 5, 1)


def test_the_same_seed_has_the_same_states_at_every_load() -> None:
    """So that a search does not compare one machine with another."""
    slow = [forecast(known(), pps, duration_s=0.01, draws=5, seed=3).values["p50"] for pps in (1e5, 1.001e5)]
    assert np.argsort(slow[0]).tolist() == np.argsort(slow[1]).tolist()


def of_varying_speed() -> Calibration:
    """Return the calibration of a machine without noise, whose speed alone varies."""
    noise = calibrating.Noise(0.0, 0.0, 0.0, 0.0, None, None)
    return known(noise=noise, send_ns=0.0, stretches=stretches(40, service=0.1, wake=0.0), queue_packets=200)


@pytest.mark.long
def test_an_answer_is_that_of_a_slow_stretch() -> None:
    calibration = of_varying_speed()
    slow = np.quantile([state.service for state in states(calibration, DRAWS, 1)], CONFIDENCE)
    found, low, high = largest_load(calibration, Limits(1e-3), duration_s=0.005)
    assert found == pytest.approx(1e9 / (700 * slow), rel=0.06)
    assert low is not None and high is not None and low <= found <= high


def test_a_plan_has_an_interval_of_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    calibration = of_varying_speed()
    monkeypatch.setattr(planning, "forecast", partial(forecast, draws=FEW_DRAWS))
    rows = {row["question"]: row for row in plan(calibration, p99_us=300.0, pps=5e5, duration_s=0.002)}
    largest, faster = list(rows.values())[:2]
    assert largest["question"] == "largest load, loss within 0.001, p99 within 300 us, in 90% of stretches of 0.002 s"
    assert faster["answer"] > 1.5 * largest["answer"] and faster["question"].startswith("the same of a CPU of 2 times")
    for name in NAMES:
        row = rows[f"latency {name} at 500,000 packets/s"]
        assert row["low"] < row["answer"] < row["high"]
    holding = rows["stretches within the limits at 500,000 packets/s"]
    assert (holding["answer"], holding["high"]) == (1.0, 1.0) and 0.8 < holding["low"] < 1
    assert rows["bottleneck: receive"]["answer"] == 0.7


def test_stalls_alone_keep_a_limit_from_holding() -> None:
    noise = known().noise
    assert noise.times is not None and noise.per_s == STALLS_PER_S
    long = dataclasses.replace(noise, times=calibrating.times([np.full(100, 500_000.0)]), per_s=30.0)
    gaps = calibrating.times([np.random.default_rng(1).exponential(1e9 / 30, 5_000)])
    calibration = known(noise=dataclasses.replace(long, gaps=gaps))
    found = forecast(calibration, 1e5, duration_s=0.05, draws=19)
    count, of = found.holding(Limits(1.0, 100.0))
    # 1.5 stalls in a stretch, each for a hundredth of it.
    assert of == 19 and 1 <= count <= 15
    assert found.holding(Limits(1.0, 1e6)) == (19, 19)


def test_a_stretch_that_a_stall_takes_has_no_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    long = calibrating.times([np.full(10, 60_000_000.0)])
    gaps = calibrating.times([np.full(10, 120_000_000.0)])
    noise = calibrating.Noise(8.3, 8.0, 9.0, 0.0, long, gaps)
    calibration = known(noise=noise, queue_packets=10)
    found = forecast(calibration, 1e5, duration_s=0.01, draws=19)
    nothing = np.isinf(found.values["p50"])
    assert nothing.any() and not nothing.all()
    assert found.holding(Limits(1.0, 1e9))[0] == (~nothing).sum()
    monkeypatch.setattr(planning, "forecast", partial(forecast, draws=FEW_DRAWS))
    rows = plan(calibration, pps=1e5, loss=0.8, duration_s=0.005)
    json.dumps(rows, allow_nan=False)
    (p99,) = (row for row in rows if row["question"].startswith("latency p99"))
    assert p99["high"] is None and p99["low"] is not None


@pytest.mark.long
def test_a_queue_that_takes_more_than_a_stretch_hides_no_overload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "forecast", partial(forecast, draws=FEW_DRAWS))
    router = known(queue_packets=250_000, noise=dataclasses.replace(known().noise, per_s=0.0, times=None, gaps=None))
    rows = plan(router, duration_s=0.008)
    assert 0.85 * router.parts_pps < rows[0]["answer"] <= router.parts_pps
    # Twice the speed: services take half the time.
    assert 0.85 * 2 * router.parts_pps < rows[1]["answer"] <= 2 * router.parts_pps
    (lost,) = forecast(router, 2 * router.parts_pps, duration_s=0.008, draws=1).values["lost"]
    assert lost == pytest.approx(0.5, abs=0.1)


def test_limits_that_every_load_keeps_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "forecast", partial(forecast, draws=FEW_DRAWS))
    with pytest.raises(ParshallError, match=r"every load up to .* packets/s is within the limits; tighten them"):
        plan(known(), loss=0.999, duration_s=0.002)


def test_a_row_of_a_stretch_may_have_more_fields_but_no_wrong_ones() -> None:
    rows = stretches(3)
    known(stretches=[row | {"note": "x"} for row in rows]).check()
    with pytest.raises(ParshallError, match="stretches: service_ns is nan; expected a number from"):
        known(stretches=[row | {"service_ns": math.nan} for row in rows]).check()


def test_limits_that_no_load_keeps_leave_the_latencies_at_the_load_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time of one packet alone is longer."""
    monkeypatch.setattr(planning, "_LEAST", 0.1)
    monkeypatch.setattr(planning, "forecast", partial(forecast, draws=FEW_DRAWS))
    rows = plan(known(), p99_us=0.001, pps=50_000, duration_s=0.005)
    largest = rows[0]
    assert largest["question"].startswith("largest load") and largest["answer"] == largest["low"] == 0
    assert 0 < largest["high"] <= 0.1 * known().overload_pps
    assert [row["answer"] > 0 for row in rows if row["question"].startswith("latency")] == [True] * 3
    with pytest.raises(ParshallError, match=r"packets/s are beyond the limits \(.*p99 within 0.001 us\); relax them"):
        plan(known(), p99_us=0.001, duration_s=0.005)
