"""Corrections by trials: forecasts that are wrong in a way that no model knows hold as often as they say afterwards."""

import itertools
import math

import numpy as np
import pyarrow
import pytest
from event_router import EventRouter, drawn
from test_router_calibration import constant, exponential, times_of_arrival, uniform

from made_calibration import known
from parshall.router import calibrate as calibrating
from parshall.router.estimation import Passages
from parshall.router.forecast import CONFIDENCE, NAMES, forecast_of, load_of, trial_rows
from parshall.router.prediction import QUANTILES, latencies_ns
from parshall.router.traffic import Traffic
from parshall.router.trials import LEAST, NEAR, Correction, correction
from suites import long_except


def rows(random, count, *, bias, spread, heavy=False):
    """Trials whose forecasts have a bias, and intervals of a factor of 1.5 up and 1.3 down, whatever the spread is."""
    loads = random.uniform(0.2, 0.9, count)
    errors = random.standard_t(3, count) if heavy else random.normal(size=count)
    middle = np.exp(random.normal(3, 1, count))
    measured = middle * np.exp(bias(loads) + spread * errors)
    columns = zip(loads, measured, middle / 1.3, middle, middle * 1.5, strict=True)
    names = ("load", "measured_us", "low_us", "middle_us", "high_us")
    return [
        {"quantile": "p50", "traffic": "poisson", "seed": 1, **dict(zip(names, row, strict=True))} for row in columns
    ]


MISSES = {
    "too wide": (0.0, 0.02, False),
    "biased": (0.7, 0.2, False),
    "too narrow": (-1.5, 0.8, False),
    "heavy tails": (0.4, 0.3, True),
}


@pytest.mark.parametrize("miss", long_except(["biased"], MISSES))
def test_the_next_one_lies_within_nine_times_of_ten(miss):
    bias, spread, heavy = MISSES[miss]
    random, runs, held, widths = np.random.default_rng(3), 1500, 0, []
    for _ in range(runs):
        *trials, last = rows(random, 49, bias=lambda loads: np.full(len(loads), bias), spread=spread, heavy=heavy)
        found = correction(trials, last["load"], "p50", CONFIDENCE)
        assert found is not None
        low, _, high = found.of(last["middle_us"])
        held += low <= last["measured_us"] <= high
        widths.append(math.log(high / low))
    # 19 of 21 have 90 %; three standard errors more.
    assert 0.88 <= held / runs <= 0.95, held
    # No wider than what nine of ten errors need, by more than little.
    if not heavy:
        assert np.median(widths) < 1.5 * 2 * 1.645 * spread


def test_a_bias_that_depends_on_the_load_is_that_of_near_loads():
    trials = rows(np.random.default_rng(4), 600, bias=lambda loads: np.where(loads > 0.55, 1.0, 0.0), spread=0.05)
    for load, factor in ((0.3, 1.0), (0.8, math.e)):
        found = correction(trials, load, "p50", CONFIDENCE)
        assert found is not None
        assert found.of(20.0)[1] == pytest.approx(20 * factor, rel=0.05)


def test_few_trials_and_those_without_a_forecast_correct_nothing():
    trials = rows(np.random.default_rng(5), LEAST, bias=lambda loads: 1.0, spread=0.1)
    assert correction(trials, 0.5, "p50", CONFIDENCE) is not None
    for few in (
        trials[1:],
        [*trials[1:], trials[0] | {"middle_us": math.inf}],
        [*trials[1:], trials[0] | {"middle_us": 0.0}],
    ):
        assert correction(few, 0.5, "p50", CONFIDENCE) is None
    assert correction(trials, 0.5, "p99", CONFIDENCE) is None
    # Of eighteen nothing is known about one of twenty.
    assert math.ceil((1 + CONFIDENCE) / 2 * LEAST) > LEAST - 1 and NEAR > LEAST


def test_forecasts_that_say_nothing_are_replaced_by_what_was_measured():
    random = np.random.default_rng(6)
    trials = rows(random, NEAR, bias=lambda loads: 0.0, spread=0.1)
    for row in trials:
        row["measured_us"] = float(np.exp(random.normal(3, 0.1)))
    found = correction(trials, 0.5, "p50", CONFIDENCE)
    assert found is not None and found.slope < 0.1
    low, middle, high = found.of(1000.0)
    assert middle == pytest.approx(math.exp(3), rel=0.2) and high / low < math.exp(6 * 0.1)
    same = [row | {"middle_us": 5.0} for row in trials]
    alike = correction(same, 0.5, "p50", CONFIDENCE)
    assert alike is not None and alike.slope == 0


def test_no_outlier_moves_the_line():
    trials = rows(np.random.default_rng(7), NEAR, bias=lambda loads: 0.5, spread=0.02)
    for row in trials[:4]:
        row["measured_us"] *= 100
    found = correction(trials, 0.5, "p50", CONFIDENCE)
    assert found is not None and found.of(20.0)[1] == pytest.approx(20 * math.exp(0.5), rel=0.05)
    # They are in its interval: the next one may be like them.
    assert found.of(20.0)[2] > 50 * found.of(20.0)[1]


def test_the_median_lies_between_the_ends_and_infinite_forecasts_stay():
    assert Correction(0.5, 1.0, -1.0, 2.0).of(4.0) == pytest.approx((2.0, 2 * math.e, 2 * math.exp(3)))
    assert Correction(1.0, 0.0, 0.5, 0.7).of(4.0) == pytest.approx((4.0, 4.0, 4 * math.exp(0.7)))
    assert Correction(0.0, 0.0, -1.0, 2.0).of(math.inf) == (math.inf, math.inf, math.inf)


class Machine:
    """A router with what the model lacks: its packets leave in pairs, so that the first one waits for the second."""

    def __init__(self, seed):
        self.seed = seed

    def table(self, stretch, pps, gaps, own, count=3_000):
        """Return what one workload of a stretch gives."""
        speed = np.exp(np.random.default_rng([self.seed, stretch]).normal(0, 0.05))
        random = np.random.default_rng([self.seed, stretch, own])
        router = EventRouter(
            service=drawn(800 * speed * random.gamma(20, 1 / 20, count)),
            wake=lambda: 8_000.0,
            link=1_300,
            transfer=200,
            pause=lambda: 1.0,
        )
        table = router.table(times_of_arrival(pps, count, self.seed * 1_000 + stretch * 10 + own, gaps))
        left = table["departure_ns"].to_numpy().copy()
        left[: len(left) // 2 * 2 : 2] = left[1::2]
        place = table.column_names.index("departure_ns")
        table = table.set_column(place, "departure_ns", [pyarrow.array(left)])
        return table


@pytest.mark.parametrize("seed", long_except([0], range(3)))
def test_what_a_model_lacks_is_in_the_forecast_of_a_calibration_with_trials(seed):
    pps, held = 1e9 / 800, {False: 0, True: 0}
    machine = Machine(seed)
    runs = (
        [Passages.of(machine.table(stretch, rate, gaps, own)) for stretch in range(4)]
        for own, (rate, gaps) in enumerate(((pps / 6, uniform), (pps / 2, exponential), (2 * pps, constant)))
    )
    waking = calibrating.times([np.linspace(0.5, 1.5, 100)])
    plain = known(**calibrating.estimated(*runs, batch=64), overload_pps=pps, waking=waking, sender_batch=1)
    loads = np.random.default_rng(seed).uniform(0.2, 0.6, 24)
    tables = [machine.table(at // 6, load * pps, exponential, 5 + at % 6) for at, load in enumerate(loads.tolist())]
    trials = trial_rows(plain, [(Traffic(seed=at), table) for at, table in enumerate(tables)])
    assert len(trials) == 3 * 24 and trials[0]["load"] == pytest.approx(load_of(plain, tables[0]))
    later = machine.table(99, 0.3 * pps, exponential, 4, 6_000)
    measured_us = np.quantile(latencies_ns(later), QUANTILES) / 1e3
    for has_trials in held:
        calibration = known(**(vars(plain) | {"trials": trials if has_trials else []}))
        found = forecast_of(calibration, later, seed=seed)
        ends = [found.interval(name) for name in NAMES]
        assert all(a[at] <= b[at] for a, b in itertools.pairwise(ends) for at in range(3))
        held[has_trials] += ends[0][0] <= measured_us[0] <= ends[0][2]
    assert held == {False: 0, True: 1}
