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


@pytest.mark.parametrize(
    ("bias", "spread", "heavy"),
    [(0.0, 0.02, False), (0.7, 0.2, False), (-1.5, 0.8, False), (0.4, 0.3, True)],
    ids=["too wide", "biased", "too narrow", "heavy tails"],
)
def test_the_next_one_lies_within_nine_times_of_ten(bias, spread, heavy):
    random, runs, held, widths = np.random.default_rng(3), 1500, 0, []
    for _ in range(runs):
        *trials, last = rows(random, 49, bias=lambda loads: np.full(len(loads), bias), spread=spread, heavy=heavy)
        found = correction(trials, last["load"], "p50", CONFIDENCE)
        low, _, high = found.of(np.array([last["low_us"], last["middle_us"], last["high_us"]])).tolist()
        held += low <= last["measured_us"] <= high
        widths.append(math.log(high / low))
    # 23 of 25 have 92 %; three standard errors more.
    assert 0.88 <= held / runs <= 0.95, held
    # No wider than what nine of ten errors need, by more than little.
    if not heavy:
        assert np.median(widths) < 1.5 * 2 * 1.645 * spread


def test_a_bias_that_depends_on_the_load_is_that_of_near_loads():
    trials = rows(np.random.default_rng(4), 600, bias=lambda loads: np.where(loads > 0.55, 1.0, 0.0), spread=0.05)
    assert correction(trials, 0.3, "p50", CONFIDENCE).shift == pytest.approx(0.0, abs=0.05)
    assert correction(trials, 0.8, "p50", CONFIDENCE).shift == pytest.approx(1.0, abs=0.05)


def test_few_trials_and_those_without_an_end_correct_nothing():
    trials = rows(np.random.default_rng(5), LEAST, bias=lambda loads: 1.0, spread=0.1)
    assert correction(trials, 0.5, "p50", CONFIDENCE) != Correction()
    for few in (
        trials[1:],
        [*trials[1:], trials[0] | {"high_us": math.inf}],
        [*trials[1:], trials[0] | {"low_us": 0.0}],
    ):
        assert correction(few, 0.5, "p50", CONFIDENCE) == Correction()
    assert correction(trials, 0.5, "p99", CONFIDENCE) == Correction()
    # Of eight nothing is known about one of ten.
    assert math.ceil(CONFIDENCE * LEAST) > LEAST - 1 and NEAR > LEAST


def test_draws_keep_their_order_and_infinite_ones_stay():
    found = Correction(math.log(2), 0.5).of(np.array([1.0, 4.0, 16.0, 64.0, math.inf]))
    assert found.tolist() == pytest.approx([8.0, 16.0, 32.0, 64.0, math.inf])
    assert Correction(1.0, 2.0).of(np.array([1.0, math.inf, math.inf])).tolist() == [1.0, math.inf, math.inf]


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


def test_what_a_model_lacks_is_in_the_forecast_of_a_calibration_with_trials():
    pps, held = 1e9 / 800, {False: 0, True: 0}
    for seed in range(3):
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
    assert held == {False: 0, True: 3}
