"""Runs of stretches: their order, values beside their neighbours, and which of them are pairs."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from parshall.errors import UsageError
from parshall.lab import Host, Measure, Program, Setting, Study, Table, grid
from parshall.lab.bundle import Bundle
from parshall.lab.laboratory import cells_of
from parshall.lab.stretches import _order, beside_neighbours
from parshall.lab.study import check
from parshall.statistics import Comparison, compare_pairs

BASE = {"log": "none"}


def setting(level: dict[str, Any], duration_s: float) -> Setting:
    logs = [] if level["log"] == "none" else [Program(level["log"], "here", ["true"])]
    work = Program("work", "here", ["sleep", str(level.get("flows", 1))], "workload")
    return Setting([Host("here")], [], [*logs, work], duration_s)


STUDY = Study(
    name="made",
    title="A study",
    question="What?",
    setting=setting,
    levels=grid(log=["none", "one", "other"], flows=[1, 10]),
    measures=[Measure("rate", "Mbit/s", lambda run: float(run.record["rate"]))],
    switched=["log"],
)


def test_levels_that_differ_in_switched_factors_only_are_one_run_with_its_base_first() -> None:
    levels = [{"log": "other", "flows": 10}, {"log": "one", "flows": 1}]
    assert STUDY.runs_of(levels) == [
        [{"log": "none", "flows": 10}, {"log": "other", "flows": 10}],
        [{"log": "none", "flows": 1}, {"log": "one", "flows": 1}],
    ]
    assert [len(cell["states"]) for cell in cells_of(STUDY, STUDY.levels)] == [3, 3]
    assert cells_of(STUDY, [{"log": "none", "flows": 1}])[0] == {
        "level": {"log": "none", "flows": 1},
        "control": "",
    }
    plain = replace(STUDY, switched=[])
    assert plain.runs_of(levels) == [[levels[0]], [levels[1]]]
    assert cells_of(plain, levels) == [{"level": level, "control": ""} for level in levels]


def test_states_of_a_run_differ_in_instruments_only() -> None:
    check(STUDY, "made")
    with pytest.raises(UsageError, match=r"differs from that of .* in more than its instruments"):
        check(replace(STUDY, switched=["log", "flows"]), "made")
    with pytest.raises(UsageError, match="switched: no factor 'colour'"):
        check(replace(STUDY, switched=["colour"]), "made")


def test_the_base_stands_between_any_two_others_and_each_cycle_has_all() -> None:
    order = _order(4, 3, random.Random(1))
    for turn in range(3):
        states = [state for each, state in order if each == turn]
        # No stretch of the base is in two cycles: what one of them has by chance, the other would have, too.
        assert states[::2] == [0] * 4 and sorted(states[1::2]) == [1, 2, 3]
    assert [turn for turn, _ in order] == sorted(turn for turn, _ in order)
    orders = {tuple(state for _, state in _order(6, 1, random.Random(seed))) for seed in range(10)}
    assert len(orders) > 5


def run_of(
    random_: np.random.Generator, effect: float, cycles: int, drift: float, states: int
) -> list[tuple[dict, int, float]]:
    """Return stretches of a machine that drifts: a random walk of the logarithm, and noise."""
    order = _order(states, cycles, random.Random(int(random_.integers(1 << 30))))
    walk = np.cumsum(random_.normal(0, drift, len(order))) + random_.normal(0, 0.05, len(order))
    names = ["none", "one", "other"]
    factors = [1.0, 1.0, 1 + effect]
    return [
        ({"log": names[state]}, turn, float(1000 * factors[state] * np.exp(walk[number])))
        for number, (turn, state) in enumerate(order)
    ]


def compared(
    random_: np.random.Generator, effect: float, cycles: int, drift: float, other: str, states: int = 3
) -> Comparison:
    """Return the comparison of a state with the base, in one run."""
    found = beside_neighbours(run_of(random_, effect, cycles, drift, states), is_ratio=True)
    values = {(level["log"], turn): value for level, turn, value in found}
    before, after = ([values[name, turn] for turn in range(cycles)] for name in ("none", other))
    compared = compare_pairs(before, after)
    assert compared is not None
    return compared


def test_values_beside_their_neighbours_lose_what_the_machine_does_slowly() -> None:
    # Twice as fast at the end as at the beginning, at a steady rate: exact.
    order = _order(3, 2, random.Random(1))
    stretches = [
        ({"log": ["none", "one", "other"][state]}, turn, (1.1 if state == 2 else 1.0) * 1000 * 1.1**number)
        for number, (turn, state) in enumerate(order)
    ]
    found = {(level["log"], turn): value for level, turn, value in beside_neighbours(stretches, is_ratio=True)}
    assert len(found) == 6
    for turn in range(2):
        assert found["one", turn] / found["none", turn] == pytest.approx(1.0)
        assert found["other", turn] / found["none", turn] == pytest.approx(1.1)
    # Differences of what may be 0: the base rises by 2 a stretch.
    counts = [({"log": "none"}, 0, 0.0), ({"log": "one"}, 0, 7.0), ({"log": "none"}, 0, 4.0)]
    assert beside_neighbours(counts, is_ratio=True) == [({"log": "none"}, 0, 2.0), ({"log": "one"}, 0, 7.0)]


def test_a_stretch_without_a_value_takes_its_neighbours_comparison_with_it() -> None:
    stretches: list[tuple[dict, int, float | None]] = [
        (BASE, 0, 1.0), ({"log": "one"}, 0, 2.0), (BASE, 0, None), ({"log": "other"}, 0, 3.0), (BASE, 0, 1.0),
        ({"log": "one"}, 1, 2.0), (BASE, 1, 1.0), ({"log": "other"}, 1, None), (BASE, 1, 1.0),
    ]  # fmt: skip
    found = beside_neighbours(stretches, is_ratio=True)
    assert [(level["log"], turn) for level, turn, _ in found] == [("none", 1), ("one", 1)]


@pytest.mark.parametrize("states", [2, 3])
@pytest.mark.parametrize("drift", [0.0, 0.05, 0.3])
def test_equal_states_are_rarely_called_different_although_the_machine_drifts(drift: float, states: int) -> None:
    random_ = np.random.default_rng(1)
    wrong = sum(compared(random_, 0, 8, drift, "one", states).sign != 0 for _ in range(1000))
    # 5 % of 1,000 are 50; more than 70 come once in 300 times.
    assert wrong <= 70


def test_stretches_find_what_runs_do_not() -> None:
    """An effect of 5 % on a machine whose runs differ by half: in 24 pairs of stretches it is found."""
    random_ = np.random.default_rng(1)
    found = sum(compared(random_, 0.05, 24, 0.05, "other").sign == 1 for _ in range(50))
    assert found >= 40


def test_rows_of_a_run_have_one_value_for_each_level_and_cycle_and_are_pairs_within_it(tmp_path: Any) -> None:
    """Two runs of a block whose levels differ by a factor of ten; a cycle is slower than the others."""
    bundle = Bundle.create(tmp_path / "b", {"plan": []}, "")
    speeds = {1: 100.0, 10: 1000.0}
    for number, flows in enumerate((1, 10)):
        stretches = [
            {
                "level": {"log": ["none", "one", "other"][state], "flows": flows},
                "cycle": turn,
                "programs": {},
                "ledgers": {},
                "workload_s": 0.5,
                "hosts": {},
                "rate": speeds[flows] * (0.5 if turn == 1 else 1.0) * (0.9 if state == 2 else 1.0),
            }
            for turn, state in _order(3, 3, random.Random(number))
        ]
        # The border between two cycles is measured once: it is of the slower one here, and not used below.
        planned = {"repeat": 0, "level": {"log": "none", "flows": flows}, "control": ""}
        bundle.about["plan"].append(planned)
        with bundle.new_run(number) as (_, record):
            record.update(run=number, status="done", failure=None, session=0, stretches=stretches, **planned)
            record.update(earlier_failures=[], programs={}, ledgers={}, hosts={}, workload_s=9.0)
    frame = bundle.table(STUDY)
    assert frame.select("log", "flows", "cycle").n_unique() == frame.height == 2 * 3 * 3
    table = Table(STUDY, frame, bundle.runs())
    halves, missing = table.blocks("rate", {"log": "none", "flows": 1}, {"log": "one", "flows": 1})
    assert (halves.height, missing) == (3, 0)
    # What differs between runs is compared by block: cycles of one run are no repeats of it.
    across, _ = table.blocks("rate", {"log": "none", "flows": 1}, {"log": "none", "flows": 10})
    assert across.height == 1
    assert (across["after"] / across["before"]).to_list() == pytest.approx([10.0])
    assert isinstance(frame["rate"].dtype, pl.Float64)
    # Findings that read files get the stretches of a level.
    assert [each.level["log"] for each in table.runs_where(log="other", flows=1)] == ["other"] * 3
    assert table.runs[0].levels[0] == {"log": "none", "flows": 1} and len(table.runs[0].levels) == 3


def test_a_run_of_stretches_that_failed_is_a_missing_pair_of_each_of_its_states(tmp_path: Path) -> None:
    bundle = Bundle.create(tmp_path / "b", {"plan": []}, "")
    states = [{"log": name, "flows": 1} for name in ("none", "one", "other")]
    planned = {"repeat": 0, "level": states[0], "control": "", "states": states}
    bundle.about["plan"].append(planned)
    with bundle.new_run(0) as (_, record):
        record.update(run=0, status="failed", failure="log-sender: it broke", session=0, programs={}, **planned)
    table = Table(STUDY, bundle.table(STUDY), bundle.runs())
    for before, after in (("none", "one"), ("one", "other")):
        pairs, missing = table.blocks("rate", {"log": before}, {"log": after})
        assert (pairs.height, missing) == (0, 1)
