"""Comparisons within a bundle: which runs are pairs, what is missing, and what is said of it."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from parshall.lab import Host, Measure, Program, Setting, Study, Table, grid
from parshall.lab.evaluation import _has_changed
from parshall.lab.table import verdict
from parshall.statistics import compare_pairs


def setting(_level: dict[str, Any], duration_s: float) -> Setting:
    return Setting([Host("here")], [], [Program("sleep", "here", ["sleep", "0"], "workload")], duration_s)


def table_of(rows: list[dict[str, Any]], unit: str = "ms", **options: Any) -> Table:
    """Return a table with a row a run; what a row leaves out is as of a run that succeeded."""
    common = {"session": 0, "side": "", "control": "", "status": "done", "failure": None}
    factors = {name: [None] for row in rows for name in row if name not in {*common, "repeat", "time"}}
    study = Study("made", "A study", "What?", setting, grid(**factors), [Measure("time", unit, lambda _: None, "time")])
    frame = pl.DataFrame([common | row for row in rows], infer_schema_length=None).with_row_index("run")
    return Table(study, frame, [], **options)


def by_load(values: dict[int, list[float]], unit: str = "ms") -> Table:
    return table_of(
        [
            {"load": load, "repeat": repeat, "time": value}
            for load, listed in values.items()
            for repeat, value in enumerate(listed)
        ],
        unit,
    )


def test_a_change_is_described_with_its_interval_and_sign() -> None:
    table = by_load({1: [100, 110, 90], 2: [50, 56, 44], 3: [101, 109, 91]})
    text, sign = table.change("time", {"load": 1}, {"load": 2})
    # Logarithms of the ratios -0.6931, -0.6751, -0.7156: mean -0.6946, half-width 4.303 * 0.02030 / sqrt(3) = 0.0504.
    assert (text, sign) == ("100 to 50 ms, -50.1 % (95 % interval -52.5 to -47.5 %)", -1)
    assert table.change("time", {"load": 1}, {"load": 3})[1] == 0
    in_percent = by_load({1: [60, 66, 54], 2: [30, 32, 28]}, "%")
    # Differences -30, -34, -26: mean -30, half-width 4.303 * 4 / sqrt(3) = 9.94.
    assert in_percent.change("time", {"load": 1}, {"load": 2}, ".0f")[0] == (
        "60 to 30 %, -30.0 points (95 % interval -39.9 to -20.1 points)"
    )
    assert table.change("time", {"load": 1}, {"load": 9}) == ("not measured often enough", 0)


def test_levels_that_a_study_leaves_out_are_not_called_open() -> None:
    table = by_load({1: [100, 110, 90], 2: [50, 56]})
    absent = table.judge("time", {"load": 1}, {"load": [8, 9]}, 1, margin=0.1)
    assert (absent.measured, absent.is_same, absent.is_open) == ("not measured", None, False)
    assert absent.reason == "this form of the study leaves out load 8 or 9"
    table.planned = [{"load": 1}, {"load": 9}]
    waiting = table.judge("time", {"load": 1}, {"load": [8, 9]}, 1, margin=0.1)
    assert (waiting.measured, waiting.is_same, waiting.is_open) == ("not measured", None, True)
    assert waiting.reason == "load 8 or 9 has not run yet; `parshall lab resume` goes on"
    rare = table.judge("time", {"load": 1}, {"load": 2}, 1, margin=0.1)
    assert (rare.measured, rare.is_open) == ("not measured often enough", True)


def test_no_interval_of_a_positive_quantity_loses_more_than_all_of_it() -> None:
    random = np.random.default_rng(1)
    for _ in range(200):
        values = np.exp(random.normal(3, 1.5, (2, 3)))
        found = by_load({1: values[0].tolist(), 2: values[1].tolist()}).compare("time", {"load": 1}, {"load": 2})
        assert found is not None and found.low > -1


def test_a_run_that_failed_takes_its_pair_with_it_and_biases_nothing() -> None:
    """The levels of `flows` differ by a factor of ten, the ways not at all; a slow run failed in three repeats."""
    rows = [
        {"way": way, "flows": flows, "repeat": repeat, "time": float(flows), "status": "done"}
        for way in ("old", "new")
        for flows in (1, 10)
        for repeat in range(8)
    ]
    for row in rows:
        if row["way"] == "new" and row["flows"] == 1 and row["repeat"] in (0, 3, 5):
            row |= {"status": "failed", "time": None}
    found = table_of(rows).compare("time", {"way": "old"}, {"way": "new"})
    assert found is not None
    assert found.change == pytest.approx(0) and found.sign == 0
    assert (found.pairs, found.missing) == (8, 3)
    text, _ = table_of(rows).change("time", {"way": "old"}, {"way": "new"})
    assert text.endswith("; 3 pairs miss a half)")


def test_runs_of_two_sessions_are_no_pair() -> None:
    """One repeat was continued on another day, when all was ten times as slow."""
    rows = [
        {"load": load, "repeat": repeat, "time": 100.0 + load + repeat % 2, "session": 0}
        for load in (1, 2)
        for repeat in range(6)
    ]
    rows[-1] |= {"session": 1, "time": 1000.0}
    found = table_of(rows).compare("time", {"load": 1}, {"load": 2})
    assert found is not None
    assert (found.pairs, found.missing) == (5, 1)
    assert found.high < 0.05


def test_pairs_are_of_one_block_in_whatever_order_the_runs_stand() -> None:
    drift = [1.0, 10.0, 100.0, 1000.0, 10000.0]
    rows = [{"load": load, "repeat": n, "time": load * each} for load in (2, 3) for n, each in enumerate(drift)]
    shuffled = [rows[number] for number in np.random.default_rng(0).permutation(len(rows))]
    found = table_of(shuffled).compare("time", {"load": 2}, {"load": 3})
    assert found is not None
    assert found.change == pytest.approx(0.5) and found.low > 0.49


def test_a_level_without_a_factor_is_compared_with_one_that_has_it() -> None:
    rows = [{"logging": "none", "ppl": None, "repeat": n, "time": 10.0 + n} for n in range(6)]
    rows += [{"logging": "sender", "ppl": 5, "repeat": n, "time": 20.0 + 2 * n} for n in range(6)]
    found = table_of(rows).compare("time", {"logging": "none"}, {"logging": "sender", "ppl": 5})
    assert found is not None and found.pairs == 6 and found.change == pytest.approx(1.0)


def test_a_table_has_one_side_of_a_bundle() -> None:
    rows = [
        {"load": 1, "repeat": n, "time": time, "side": side}
        for n in range(3)
        for side, time in (("before", 1), ("after", 2))
    ]
    assert table_of(rows).values("time", load=1) == [2, 2, 2]
    assert table_of(rows, side="before").values("time", load=1) == [1, 1, 1]


@pytest.mark.parametrize(
    ("after", "wants", "is_same", "is_open"),
    [
        ([50.0, 51.0, 49.0, 50.0, 50.5, 49.5], -1, True, False),
        ([50.0, 51.0, 49.0, 50.0, 50.5, 49.5], 1, False, False),
        ([50.0, 51.0, 49.0, 50.0, 50.5, 49.5], 0, False, False),
        # Within 10 %.
        ([101.0, 99.0, 100.0, 102.0, 98.0, 100.0], 0, True, False),
        ([101.0, 99.0, 100.0, 102.0, 98.0, 100.0], -1, False, False),
        # A difference is sure, and hardly one.
        ([102.0, 102.6, 101.4, 103.1, 100.9, 102.0], 1, False, False),
        ([102.0, 102.6, 101.4, 103.1, 100.9, 102.0], 0, True, False),
        # Anything may be.
        ([50.0, 200.0, 100.0, 300.0, 40.0, 90.0], 0, None, True),
        ([50.0, 200.0, 100.0, 300.0, 40.0, 90.0], -1, None, True),
    ],
)
def test_a_verdict_follows_the_interval(after: list[float], wants: int, is_same: bool | None, is_open: bool) -> None:
    found = compare_pairs([100.0, 100.5, 99.5, 101.0, 99.0, 100.0], after)
    assert found is not None
    finding = verdict(found, wants, margin=0.1, text="x", reason="why")
    assert (finding.is_same, finding.is_open) == (is_same, is_open)
    assert bool(finding.reason) == (is_same is not True)


def test_what_lies_at_the_end_of_its_scale_was_not_measured() -> None:
    table = by_load({1: [100.0] * 6, 2: [100.0] * 6, 3: [99.0, 98.0, 97.0, 99.0, 98.0, 99.0]}, "%")
    finding = table.judge("time", {"load": 1}, {"load": 2}, -1, margin=1.0)
    assert (finding.is_same, finding.is_open) == (None, False)
    assert finding.reason == "not measurable here: both are 100, the end of the scale"
    assert table.judge("time", {"load": 1}, {"load": 3}, -1, margin=1.0).is_same is True


def test_a_mean_is_held_against_a_limit_with_its_interval() -> None:
    table = by_load({1: [60.0, 62.0, 58.0], 2: [40.0, 70.0, 20.0]})
    assert table.judge_mean("time", {"load": 1}, 50.0, 1, text="x").is_same is True
    assert table.judge_mean("time", {"load": 1}, 50.0, -1, text="x").is_same is False
    open_ = table.judge_mean("time", {"load": 2}, 50.0, -1, text="x")
    assert (open_.is_same, open_.is_open) == (None, True)
    assert table.judge_mean("time", {"load": 9}, 50.0, -1, text="x").is_same is None
    # What is never negative has no negative mean.
    shares = by_load({1: [3.0, 200.0, 0.0], 2: [3.0, 200.0, -1.0]})
    lows = [shares.judge_mean("time", {"load": load}, 50.0, -1, text="x").low for load in (1, 2)]
    assert lows[0] == 0 and lows[1] is not None and lows[1] < 0


@pytest.mark.parametrize(
    ("low", "high", "is_same"), [(-0.6, -0.4, True), (-0.3, 0.0, False), (-1.0, -0.9, False), (-0.5, 0.0, None)]
)
def test_a_change_is_held_against_what_a_document_says(low: float, high: float, is_same: bool | None) -> None:
    table = by_load({1: [100.0, 101.0, 99.0, 100.0], 2: [50.0, 51.0, 49.0, 50.5]})
    finding = table.judge_range("time", {"load": 1}, {"load": 2}, low, high, reason="why")
    assert (finding.is_same, finding.is_open) == (is_same, is_same is None)
    assert finding.low is not None and finding.high is not None and -55 < finding.low < finding.high < -45
    assert bool(finding.reason) == (is_same is not True)


def machine(random: np.random.Generator, runs: int, states: int, cycles: int) -> list[dict[str, Any]]:
    """Runs that differ by chance, each with several levels and cycles that have this in common."""
    rows = []
    for run in range(runs):
        common = random.normal(0, 0.25)
        for cycle in range(cycles):
            for load in range(states):
                value = 100 * np.exp(common + random.normal(0, 0.1))
                rows.append({"load": load, "repeat": run, "cycle": cycle, "of_run": run, "time": value})
    return rows


def test_cycles_and_levels_of_a_run_are_no_runs() -> None:
    """Ten independent runs: their means have an interval of ten, and the machine did not change."""
    inside, changed = 0, 0
    for seed in range(40):
        rows = machine(np.random.default_rng(seed), 10, 3, 2)
        table = table_of([{name: value for name, value in row.items() if name != "of_run"} for row in rows])
        table.frame = table.frame.with_columns(run=pl.Series([row["of_run"] for row in rows]))
        summary = table.summary("time", load=1)
        assert summary is not None and summary.count == 10
        inside += summary.low <= 100 * np.exp((0.25**2 + 0.1**2) / 2) <= summary.high
        changed += _has_changed(table, table.study.measures[0])
    # With 95 and 1 %: fewer are inside with probability .002, more are changed with .01.
    assert inside >= 33 and changed <= 2, (inside, changed)
