"""Studies that go on until they are decided: which levels run on, when they end, what is kept."""

import contextlib
import itertools
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import in_process
from parshall.cli import lab as lab_command
from parshall.errors import ParshallError, UsageError
from parshall.host.stopping import Stopping
from parshall.lab import Host, Measure, Program, Setting, Statement, Study, decision, grid, laboratory
from parshall.lab.agent import Agent
from parshall.lab.bundle import Bundle
from parshall.lab.evaluation import evaluate, table_of
from parshall.lab.laboratory import Progress, resume, run
from parshall.lab.report import write_report
from parshall.lab.run import Run
from parshall.lab.sites import Place, Scene
from parshall.statistics import LOOKS

# Levels with the mean of their time, and how much single runs vary.
MEANS = {"base": 100.0, "twice": 200.0, "equal": 100.0, "wild": 100.0}
SPREADS = {"base": 0.01, "twice": 0.01, "equal": 0.02, "wild": 2.0}
BASE = {"level": "base"}


class Here:
    """Programs run on this host as it is, without links."""

    @contextlib.contextmanager
    def scene(self, setting: Setting, directory: Path) -> Iterator[Scene]:
        """Yield this host."""
        agent = Agent(directory=directory)
        yield Scene({"here": agent}, {"here": Place()}, lambda: {"hosts": {}, "links": []})
        agent.close()

    def describe(self) -> dict[str, Any]:
        """Return what is stored."""
        return {"kind": "testbed"}


def setting(_level: dict[str, Any], duration_s: float) -> Setting:
    program = Program("work", "here", ["true"], "workload", is_json=False)
    return Setting([Host("here")], [], [program], duration_s)


def time_of(measured: Run) -> float:
    """Return a number that looks measured: of each run another, and the same when it is asked again."""
    level = measured.level["level"]
    noise = np.random.default_rng(measured.record["run"]).normal()
    return float(MEANS[level] * np.exp(SPREADS[level] * noise))


def judged(level: str, wants: int) -> Statement:
    return Statement(level, "", lambda table: table.judge("time", BASE, {"level": level}, wants, margin=0.05))


STUDY = Study(
    name="made",
    title="A study",
    question="What?",
    setting=setting,
    levels=grid(level=[*MEANS]),
    measures=[Measure("time", "ms", time_of, "time")],
    statements=[judged("twice", 1), judged("equal", 0), judged("wild", -1)],
    duration_s=0,
)
OWN_STATEMENTS = """study = replace(
    study, has_controls=False, statements=[study.statements[number] for number in numbers]
)
"""
# `resume` reads the study from its bundle.
TEXT = "from test_lab_decides import STUDY as study\n"


@pytest.fixture(autouse=True)
def _studies_can_import_this_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def levels_by_block(bundle: Bundle) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for planned in bundle.about["plan"]:
        found.setdefault(planned["repeat"], set()).add(planned["level"]["level"])
    return found


def test_a_study_goes_on_with_what_is_open_only_and_ends_when_nothing_is(tmp_path: Path) -> None:
    looks: list[Progress] = []

    def progress(each: Progress) -> None:
        if not each.what:
            looks.append(each)

    whole = Statement("whole", "", lambda table: table.judge("captured", BASE, {"level": "twice"}, -1, margin=1.0))
    study = replace(
        STUDY,
        statements=[*STUDY.statements[:2], whole],
        measures=[*STUDY.measures, Measure("captured", "%", lambda _: 100.0)],
    )
    bundle = run(study, TEXT, tmp_path / "out", budget_s=600, site=Here(), progress=progress)
    evaluation = evaluate(bundle, study)
    twice, equal, captured = evaluation["statements"]
    assert (twice["is_same"], twice["blocks"]) == (True, LOOKS[0])
    assert equal["is_same"] is True and equal["blocks"] in LOOKS[:4]
    # Levels that were no longer needed lack no runs.
    again = judged("twice", 1).check(table_of(bundle, study))
    assert "miss a half" not in f"{again.measured} {captured['measured']}"
    # The first blocks have every level, later ones what decides the open statement.
    blocks = levels_by_block(bundle)
    assert all(blocks[number] == set(MEANS) for number in range(LOOKS[0]))
    assert all(blocks[number] == {"base", "equal"} for number in range(LOOKS[0], len(blocks)))
    assert len(blocks) == equal["blocks"] > LOOKS[0]
    assert [each.look.blocks for each in looks if each.look] == [each for each in LOOKS if each <= len(blocks)]
    assert bundle.about["more_s"] is None
    # What lies at the end of its scale is neither open nor decided.
    assert captured["reason"].startswith("not measurable here") and "blocks" not in captured
    assert looks[-1].look is not None and len(looks[-1].look.decided) == 2 and not looks[-1].look.open
    page = write_report([tmp_path / "out"]).read_text()
    assert f"decided after {LOOKS[0]} blocks" in page and "The intervals hold at all looks together." in page
    assert "parshall lab run study.py --full --budget 600 --seed 1" in page


def test_what_is_open_when_the_time_is_over_is_said_with_what_more_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that goes on when it is read, so that the test takes as many blocks on any machine.
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 0.1 * next(ticks), time=time.time)
    monkeypatch.setattr(laboratory, "time", clock)
    study = replace(STUDY, has_controls=False)
    bundle = run(study, TEXT, tmp_path / "out", budget_s=5.0, site=Here())
    wild = evaluate(bundle, study)["statements"][2]
    assert (wild["is_same"], wild["is_open"]) == (None, True)
    before = len(bundle.about["plan"])
    assert len(levels_by_block(bundle)) < LOOKS[-1]
    assert bundle.about["more_s"] > 0 and bundle.about["spent_s"] == pytest.approx(5.0, abs=1.0)
    page = write_report([tmp_path / "out"]).read_text()
    assert "was over before all were decided" in page and "resume DIR --budget" in page
    # More time goes on where it was; what is decided stays.
    decisions = json.loads(json.dumps(bundle.about["decisions"]))
    later = resume(tmp_path / "out", more_s=5.0, site=Here())
    assert len(later.about["plan"]) > before
    assert later.about["decisions"].items() >= decisions.items()
    assert len(later.about["sessions"]) == 1


def test_time_that_is_left_goes_to_what_needs_the_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 2.0 * next(ticks), time=time.time)
    for module in (laboratory, lab_command):
        monkeypatch.setattr(module, "time", clock)
    one = replace(STUDY, has_controls=False)
    for name, numbers in {"decided": [0], "wild": [2], "equal": [1]}.items():
        text = f"{TEXT}from dataclasses import replace\nnumbers = {numbers}\n{OWN_STATEMENTS}"
        own = replace(one, statements=[one.statements[number] for number in numbers])
        run(own, text, tmp_path / name, budget_s=70.0, site=Here())
    turns: list[tuple[str, float, Bundle]] = []

    def go_on(directory: Path, more_s: float) -> Bundle:
        turns.append((directory.name, more_s, resume(directory, more_s=more_s, site=Here())))
        return turns[-1][2]

    began_s = clock.monotonic()
    directories = [tmp_path / name for name in ("decided", "wild", "equal")]
    asked = {each.name: Bundle.open(each).about["more_s"] for each in directories}
    with Stopping() as stopping:
        lab_command._second_round(directories, began_s + 600.0, go_on, stopping)
    assert asked.pop("decided") is None
    assert [name for name, _, _ in turns][:2] == sorted(asked, key=lambda name: float(asked[name]))
    last = {name: bundle for name, _, bundle in turns}
    assert last["equal"].about["more_s"] is None
    # What is decided has no more turn, and what is left to the end goes to what is open.
    assert {name for name, _, _ in turns[2:]} <= {"wild"}
    assert 600.0 - lab_command._LEAST_S < clock.monotonic() - began_s < 640.0
    # Too little time for a block of runs is no reason to ask again and again.
    turns.clear()
    monkeypatch.setattr(laboratory._Runner, "_needed_s", lambda *_: 1e6)
    with Stopping() as stopping:
        lab_command._second_round(directories, clock.monotonic() + 600.0, go_on, stopping)
    assert len(turns) == 1


def test_a_stop_ends_after_the_current_run_and_leaves_all_to_go_on(tmp_path: Path) -> None:
    with Stopping() as stopping:

        def progress(each: Progress) -> None:
            if each.what and each.done == 5:
                os.kill(os.getpid(), signal.SIGINT)

        bundle = run(STUDY, TEXT, tmp_path / "out", budget_s=600, site=Here(), progress=progress, stopping=stopping)
    assert laboratory.number_done(bundle) == 6


def test_a_study_with_fixed_repeats_takes_no_budget(tmp_path: Path) -> None:
    run(STUDY, TEXT, tmp_path / "out", repeats=1, site=Here())
    with pytest.raises(
        UsageError, match=r"has a fixed number of repeats; begin .* lab run FILE --until-decided -o DIR"
    ):
        resume(tmp_path / "out", more_s=10, site=Here())


def test_a_mistake_in_a_measure_is_said_after_the_first_run(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from parshall.lab import *\n"
        "from test_lab_decides import setting\n"
        "def setting_of(level, duration_s):\n"
        "    return setting(level, duration_s)\n"
        "def wrong(run):\n"
        "    return run.record['absent']\n"
        "study = Study('mine', 't', 'q', setting_of, levels=grid(n=[1, 2, 3]), measures=[Measure('m', 'ms', wrong)],\n"
        "              duration_s=0)\n"
    )
    study = laboratory.load(path)
    with pytest.raises(ParshallError, match=rf"{path}:6: measure m of run \d+: KeyError: 'absent'"):
        run(study, path.read_text(), tmp_path / "out", site=Here())
    assert len(list((tmp_path / "out/runs").glob("*/run.json"))) <= 3


def test_what_is_measured_after_a_boot_is_a_session_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = run(STUDY, TEXT, tmp_path / "out", repeats=2, site=Here())
    assert [run.record["session"] for run in bundle.runs()] == [0] * len(bundle.about["plan"])
    # The last block is measured again, after a boot.
    for number, planned in enumerate(bundle.about["plan"]):
        if planned["repeat"] == 1:
            (tmp_path / f"out/runs/{number:05}").rename(tmp_path / f"{number}")
    monkeypatch.setattr(laboratory, "_boot", lambda: "another")
    later = resume(tmp_path / "out", site=Here())
    sessions = {each.record["repeat"]: each.record["session"] for each in later.runs()}
    assert sessions == {0: 0, 1: 1}
    assert [each["boot"] == "another" for each in later.about["sessions"]] == [False, True]


def test_a_study_without_statements_shows_its_means(tmp_path: Path) -> None:
    text = f"from dataclasses import replace\n{TEXT}study = replace(study, statements=[])\n"
    study = replace(STUDY, statements=[])
    bundle = run(study, text, tmp_path / "out", repeats=3, site=Here())
    done = in_process.parshall("lab", "resume", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    *lines, report = done.stdout.splitlines()
    assert report.endswith("report.html") and len(lines) == len(MEANS)
    table = bundle.table(study).filter(control="")
    for line, level in zip(lines, MEANS, strict=True):
        found = re.fullmatch(r"level (\w+) +time: ([\d.,]+) ms \(95 % interval .* to .*, 3 values\)", line)
        assert found and found[1] == level, line
        assert float(found[2].replace(",", "")) == pytest.approx(table.filter(level=level)["time"].mean(), rel=1e-3)


@pytest.mark.parametrize("needed", [None, 2.0, 1e9])
@pytest.mark.parametrize("blocks", [0, 8])
def test_what_more_runs_would_decide_is_a_number(needed: float | None, blocks: int) -> None:
    """An older study's own finding has an interval and does not say how many runs it needs."""
    more = decision._more_blocks({"low": -1.0, "high": 1.0, "limit": 0.1, "needed": needed}, blocks)
    assert 1 <= more <= 100 * LOOKS[-1]
    if needed is None:
        assert more == LOOKS[-1] - blocks
