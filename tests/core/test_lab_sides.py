"""Two sides in one bundle, and equal levels beside each other: what runs, and what is said of it."""

import stat
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from test_lab_decides import STUDY, TEXT, Here

from parshall.errors import UsageError
from parshall.lab import Host, Measure, Program, Setting, Study, grid
from parshall.lab.bundle import Bundle
from parshall.lab.comparison import AT_END, DIFFERENT, SAME
from parshall.lab.evaluation import evaluate
from parshall.lab.laboratory import resume, run
from parshall.lab.programs import PARSHALL
from parshall.lab.report import write_report
from parshall.lab.run import Run
from parshall.lab.sides import before_of, equal, false_verdicts, text_of_equal
from parshall.statistics import share_interval

# Fewer pairs decide nothing.
REPEATS = 6


def setting(level: dict[str, Any], duration_s: float) -> Setting:
    asked = Program("tool", "here", [*PARSHALL, "--version"], "workload", is_json=False)
    return Setting([Host("here")], [], [asked], duration_s)


def is_old(measured: Run) -> float:
    """Return a rate that depends on which program ran, and varies a little."""
    name, version = measured.text("tool").split()[:2]
    assert name == "parshall"
    return (50.0 if version == "0.0.1" else 100.0) + measured.record["run"] % 3


SIDES = Study(
    name="sides",
    title="A study",
    question="What?",
    setting=setting,
    levels=grid(n=[1]),
    measures=[Measure("rate", "Mbit/s", is_old), Measure("captured", "%", lambda _: 100.0)],
    duration_s=0,
    has_controls=False,
)
SIDES_TEXT = "from test_lab_sides import SIDES as study\n"


@pytest.fixture(autouse=True)
def _studies_can_import_this_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parshall of another version."""
    path = tmp_path_factory.mktemp("program") / "old"
    path.write_text("#!/bin/sh\necho parshall 0.0.1\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(scope="module")
def measured(old: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a bundle of both versions, which no test changes."""
    directory = tmp_path_factory.mktemp("measured") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        run(SIDES, SIDES_TEXT, directory, repeats=REPEATS, against=old, site=Here())
    return directory


def test_another_version_is_measured_in_turns_and_compared_in_pairs(old: Path, measured: Path, tmp_path: Path) -> None:
    # The report of a study lies in its directory.
    bundle = Bundle.open(copytree(measured, tmp_path / "out"))
    sides = [planned["side"] for planned in bundle.about["plan"]]
    assert all({*pair} == {"before", "after"} for pair in zip(sides[::2], sides[1::2], strict=True))
    # Neither side is always the first.
    assert {*sides[::2]} == {"before", "after"}
    assert bundle.about["against"] == {"program": str(old), "version": "parshall 0.0.1"}
    evaluation = evaluate(bundle, SIDES)
    rate, captured = evaluation["comparison"]["rows"]
    assert (rate["verdict"], captured["verdict"]) == (DIFFERENT, AT_END)
    assert 0.8 < rate["low"] < 1.0 < rate["high"] < 1.2 and rate["pairs"] == REPEATS
    # What the study says of itself is of the side after.
    (row, _) = evaluation["summaries"]
    assert row["count"] == REPEATS and row["minimum"] >= 100
    page = write_report([tmp_path / "out"]).read_text()
    assert f"Before: {old} (parshall 0.0.1). After: this version." in page
    assert f'data-label="verdict">{DIFFERENT}' in page


def test_a_run_that_failed_on_one_side_is_a_missing_pair(measured: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(copytree(measured, tmp_path / "out"))
    number = next(n for n, planned in enumerate(bundle.about["plan"]) if planned["side"] == "before")
    path = tmp_path / f"out/runs/{number:05}/run.json"
    path.write_text(path.read_text().replace('"status": "done"', '"status": "failed"', 1))
    (row, _) = evaluate(bundle, SIDES)["comparison"]["rows"]
    assert (row["pairs"], row["missing"]) == (REPEATS - 1, 1)
    # It is measured again, with the same program.
    path.write_text(path.read_text().replace('"failure": null', '"failure": "broken"', 1))
    (row, _) = evaluate(resume(tmp_path / "out", site=Here()), SIDES)["comparison"]["rows"]
    assert (row["pairs"], row["missing"], row["verdict"]) == (REPEATS, 0, DIFFERENT)


def test_other_settings_are_the_side_before(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(
        "from dataclasses import replace\n"
        "from parshall.lab import Program\n"
        "from test_lab_sides import SIDES, setting\n"
        "def slower(level, duration_s):\n"
        "    tool = Program('tool', 'here', ['echo', 'parshall', '0.0.1'], 'workload', is_json=False)\n"
        "    return replace(setting(level, duration_s), programs=[tool])\n"
        "study = replace(SIDES, setting=slower)\n"
    )
    bundle = run(SIDES, SIDES_TEXT, tmp_path / "out", repeats=REPEATS, against=other, site=Here())
    assert (tmp_path / "out/against.py").read_text() == other.read_text()
    assert evaluate(bundle, SIDES)["comparison"]["rows"][0]["verdict"] == DIFFERENT
    # The bundle needs the file no more.
    other.unlink()
    assert (
        before_of(SIDES, bundle.about["against"], bundle.directory).setting({"n": 1}, 1).programs[0].command[0]
        == "echo"
    )


def test_the_same_version_is_not_different_from_itself(tmp_path: Path) -> None:
    same = tmp_path / "same"
    same.write_text(f'#!/bin/sh\nexec {" ".join(PARSHALL)} "$@"\n')
    same.chmod(0o755)
    bundle = run(SIDES, SIDES_TEXT, tmp_path / "out", repeats=3, against=same, site=Here())
    rate = evaluate(bundle, SIDES)["comparison"]["rows"][0]
    # Three pairs decide nothing; the change is that of the numbers of the runs.
    assert rate["verdict"] == SAME and abs(rate["change"]) < 0.1 and rate["pairs"] == 3


@pytest.mark.parametrize(
    ("name", "message"), [("absent", "no such program"), ("/bin/true", "does not say its version")]
)
def test_what_is_no_parshall_is_refused_before_anything_runs(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--against {name}: {message}"):
        run(SIDES, SIDES_TEXT, tmp_path / "out", repeats=1, against=Path(name), site=Here())
    assert not (tmp_path / "out").exists()


def test_a_program_that_runs_parshall_within_another_is_replaced_there() -> None:
    wrapped = Program("tool", "here", ["bash", "-c", 'exec "$@"', "bash", *PARSHALL, "capture"])

    def wrapping(level: dict[str, Any], duration_s: float) -> Setting:
        return replace(setting(level, duration_s), programs=[wrapped])

    before = before_of(replace(SIDES, setting=wrapping), {"program": "/opt/old", "version": ""}, Path())
    assert before.setting({"n": 1}, 1).programs[0].command == ["bash", "-c", 'exec "$@"', "bash", "/opt/old", "capture"]


def test_equal_levels_are_compared_two_by_two(tmp_path: Path) -> None:
    made = equal(replace(STUDY, control_level={"level": "base"}), 4)
    bundle = run(made, text_of_equal(TEXT, 4), tmp_path / "out", repeats=3, site=Here())
    found = evaluate(bundle, made)["equal"]
    assert [row["copies"] for row in found] == [[1, 2], [3, 4]]
    assert all(abs(row["change"]) < 0.1 and row["pairs"] == 3 for row in found)
    # `resume` makes the same study from the text of the bundle.
    again = resume(tmp_path / "out", site=Here())
    assert again.about["plan"] == bundle.about["plan"]


@pytest.mark.parametrize("are_alike", [True, False])
def test_the_share_of_false_verdicts_has_an_interval_that_holds(are_alike: bool) -> None:
    """One thing disturbs all three measures of a run, or each has its own."""
    random, share, held = np.random.default_rng(1), 0.2, 0
    for _ in range(1000):
        different = random.random((40, 1 if are_alike else 3)) < share
        rows = [
            {"copies": [2 * at, 2 * at + 1], "measure": name, "sign": int(different[at, number % different.shape[1]])}
            for at in range(40)
            for number, name in enumerate("abc")
        ]
        found = false_verdicts(rows)
        assert (found["compared"], found["pairs"]) == (120, 40)
        held += found["low"] <= share <= found["high"]
    # As of 120 cases, 83 % would hold where all are alike.
    assert held >= 940
    assert false_verdicts([]) == {"compared": 0, "pairs": 0, "false": 0, "low": 0.0, "high": 1.0}


@pytest.mark.parametrize(
    ("count", "of", "low", "high"), [(0, 10, 0, 0.3085), (5, 100, 0.0164, 0.1128), (10, 10, 0.6915, 1)]
)
def test_a_share_has_the_interval_of_clopper_and_pearson(count: int, of: int, low: float, high: float) -> None:
    assert share_interval(count, of) == pytest.approx((low, high), abs=1e-4)
    assert share_interval(0, 0) == (0, 1)
