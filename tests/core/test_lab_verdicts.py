"""Verdicts on comparisons: what they count, and how many more runs they say they need."""

import math
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from parshall.lab.study import Finding
from parshall.lab.table import Table, times_as_many, verdict
from parshall.statistics import Comparison

MARGIN = 0.1
# What a document may say: a rise, a fall, no change, no rise.
SAYS = [(1, False), (-1, False), (0, False), (0, True)]


def compared(low: float, high: float, *, is_ratio: bool) -> Comparison:
    """Return a comparison with this interval."""
    return Comparison(1, 1, (low + high) / 2, low, high, 0.5, 9, 0, is_ratio)


def interval(centre: float, half: float, *, is_ratio: bool) -> Comparison:
    """Return a comparison whose interval has this centre and half, of ratios by their logarithm."""
    ends = centre - half, centre + half
    low, high = (math.expm1(end) for end in ends) if is_ratio else ends
    return compared(low, high, is_ratio=is_ratio)


@given(
    says=st.sampled_from(SAYS),
    centre=st.floats(-1, 1),
    half=st.floats(0.001, 2),
    is_ratio=st.booleans(),
)
def test_an_interval_of_as_many_runs_as_are_said_decides(
    says: tuple[int, bool], centre: float, half: float, is_ratio: bool
) -> None:
    """The interval narrows with the root of the number of runs: a little wider it is open, a little narrower not."""
    wants, allows_fall = says
    open_ = verdict(interval(centre, half, is_ratio=is_ratio), wants, margin=MARGIN, text="", allows_fall=allows_fall)
    assert open_.needed is not None
    # At the border itself, rounding decides.
    assume(1e-6 < open_.needed < 1e9 and abs(open_.needed - 1) > 1e-6)
    assert open_.is_open == (open_.needed >= 1), open_
    for times, is_open in ((open_.needed * 0.99, True), (open_.needed * 1.01, False)):
        found = interval(centre, half / math.sqrt(times), is_ratio=is_ratio)
        later = verdict(found, wants, margin=MARGIN, text="", allows_fall=allows_fall)
        assert later.is_open == is_open, (open_, later)


def table_of(found: Comparison) -> Table:
    """Return a table whose comparison is this."""
    measure = SimpleNamespace(unit="ms", ends=None, title="time")
    study = SimpleNamespace(measure=lambda _: measure)
    made = Table.__new__(Table)
    made.study, made.confidence, made.decisive = study, 0.95, []
    made.compare = lambda *_: found  # type: ignore[method-assign]
    return made


@given(centre=st.floats(-0.9, 3), half=st.floats(0.01, 2), is_ratio=st.booleans())
def test_an_interval_of_as_many_runs_decides_about_a_range(centre: float, half: float, is_ratio: bool) -> None:
    low, high = -0.2, 0.5

    def judged(half: float) -> Finding:
        table = table_of(interval(centre, half, is_ratio=is_ratio))
        return table.judge_range("time", {"n": 1}, {"n": 2}, low, high)

    needed = judged(half).needed
    assume(1e-6 < needed < 1e9 and abs(needed - 1) > 1e-6)
    assert judged(half).is_open == (needed >= 1)
    assert judged(half / math.sqrt(needed * 0.99)).is_open
    assert not judged(half / math.sqrt(needed * 1.01)).is_open


@pytest.mark.parametrize("values", [[0.0, 0.0, 0.0, 9.0], [1.0, 0.5, 8.0, 1.5]])
def test_a_mean_whose_interval_ends_at_zero_needs_no_more_runs_for_that(values: list[float]) -> None:
    """The interval without that end decides how many runs are needed (Student's t, here from its table)."""
    rows = pl.DataFrame({"time": values, "session": 0, "repeat": range(4)})
    table = table_of(compared(0.0, 0.0, is_ratio=False))
    table.where = lambda *_: rows  # type: ignore[method-assign]
    mean, half = np.mean(values), 3.182 * np.std(values, ddof=1) / 2
    found = table.judge_mean("time", {"n": 1}, 6.0, -1, text="")
    assert found.is_open and found.low == 0.0 > mean - half
    assert found.needed == pytest.approx((half / (6.0 - mean)) ** 2, rel=1e-3)


def test_what_no_number_of_runs_decides_is_infinite():
    assert times_as_many(-1, 1, 0) == math.inf
    assert verdict(compared(0.0, 0.2, is_ratio=False), 0, margin=MARGIN, text="").needed == math.inf
    # All of one side is nothing: the logarithm of the ratio has no end.
    assert verdict(compared(-1.0, 0.5, is_ratio=True), 1, margin=MARGIN, text="").needed == math.inf


@pytest.mark.parametrize(
    ("wants", "allows_fall", "said"),
    [
        (1, False, "the direction counts, but a change that surely is less than 10 % is none"),
        (0, False, "counted as a change from 10 % on"),
        (0, True, "counted as a rise from 10 % on"),
    ],
)
def test_a_verdict_says_what_it_counts(wants: int, allows_fall: bool, said: str) -> None:
    table = table_of(compared(0.02, 0.3, is_ratio=True))
    found = table.judge("time", {"n": 1}, {"n": 2}, wants, margin=MARGIN, allows_fall=allows_fall)
    assert found.measured.endswith(f"; {said}")
    # The direction is certain, and that it is a tenth is not.
    assert found.is_same is (True if wants else None)
    within = compared(0.02, 0.09, is_ratio=True)
    assert verdict(within, wants, margin=MARGIN, text="", allows_fall=allows_fall).is_same is (wants == 0)
