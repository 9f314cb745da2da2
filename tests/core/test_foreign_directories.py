"""Directories that others made: what is in them is read, and nothing is written through it."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from test_lab import study_of, write_bundle

import in_process
from parshall.errors import ParshallError, UsageError
from parshall.instruments import extcap
from parshall.lab.bundle import Bundle
from parshall.lab.evaluation import EVALUATION, evaluate
from parshall.lab.report import read_evaluation, write_report
from parshall.model import figures as model_figures

SMALL_LOG = Path(__file__).parents[1] / "data" / "small.arrow"
PRECIOUS = "what the user had\n"


def parshall(*arguments: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return in_process.parshall(*arguments, cwd=cwd)


def refused(ended: "subprocess.CompletedProcess[str]", *texts: object) -> bool:
    """Whether a command refused a request in one line that has these texts."""
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended
    return all(str(text) in ended.stderr for text in texts)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with files of the user; it is the same after the test."""
    home = tmp_path / "home"
    (home / "keys").mkdir(parents=True)
    (home / "file").write_text(PRECIOUS)
    return home


def is_untouched(home: Path) -> bool:
    found = sorted(path.relative_to(home) for path in home.rglob("*"))
    return found == [Path("file"), Path("keys")] and (home / "file").read_text() == PRECIOUS


def link(place: Path, target: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def bundle(directory: Path) -> Bundle:
    study = study_of()
    made = write_bundle(directory, study, {1: [1.0, 2.0], 2: [2.0, 3.0], 3: [5.0, 6.0]})
    evaluate(made, study)
    return made


LINKS: dict[str, str] = {"report.html": "file", "figures": "keys", "figures/time.svg": "file"}


@pytest.mark.parametrize("place", LINKS)
def test_reports_are_not_written_through_links(tmp_path: Path, home: Path, place: str) -> None:
    logs, study = tmp_path / "logs", tmp_path / "study"
    logs.mkdir()
    shutil.copy(SMALL_LOG, logs)
    bundle(study)
    for directory in (logs, study):
        if "/" in place and directory is logs:
            continue
        wanted = directory / place
        wanted.parent.mkdir(exist_ok=True)
        link(wanted, home / LINKS[place])
        ended = parshall("report", directory, "-o", directory, cwd=tmp_path)
        assert refused(ended, wanted, "symbolic link" if "/" in place else "in the way"), ended
        assert is_untouched(home)


def test_the_directory_of_a_study_is_only_read(tmp_path: Path, home: Path) -> None:
    study = tmp_path / "study"
    bundle(study)
    link(study / "report.html", home / "file")
    link(study / "figures", home / "keys")
    before = sorted(study.rglob("*"))
    ended = parshall("report", study, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "report-study/report.html\n"), ended
    assert sorted(study.rglob("*")) == before and is_untouched(home)
    assert (tmp_path / "report-study/figures/time.svg").is_file()
    shutil.rmtree(tmp_path / "report-study")
    link(tmp_path / "report-study", home / "keys")
    assert refused(parshall("report", study, cwd=tmp_path), "report-study: is a symbolic link")
    assert is_untouched(home)


@pytest.mark.usefixtures("root")
def test_the_directory_of_another_user_is_only_read(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    shutil.copy(SMALL_LOG, logs)
    os.chown(logs, 4242, 4242)
    ended = parshall("report", logs, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "report-logs/report.html\n"), ended
    assert [path.name for path in logs.iterdir()] == [SMALL_LOG.name]
    # The current directory was chosen by this user.
    ended = parshall("report", SMALL_LOG.name, cwd=logs)
    assert (ended.returncode, ended.stdout) == (0, "report.html\n"), ended


def test_titles_of_others_stay_on_one_line(tmp_path: Path) -> None:
    """Lines of a stranger's choice are commands in many files of a home directory."""
    path = bundle(tmp_path / "study").directory / EVALUATION
    found = json.loads(path.read_text())
    evil = "x\nssh-rsa AAAA\x1b[2J\u202e"
    found["title"] = found["figures"][0]["title"] = evil
    path.write_text(json.dumps(found))
    page = write_report([tmp_path / "study"], tmp_path / "out")
    for written in [page, *page.parent.glob("figures/*.svg")]:
        text = written.read_text()
        assert "\nssh-rsa" not in text and "\x1b" not in text and "\u202e" not in text
    found["figures"][0]["y_title"] = evil
    path.write_text(json.dumps(found))
    with pytest.raises(ParshallError, match="figure time: cannot be drawn") as caught:
        write_report([tmp_path / "study"], tmp_path / "out")
    assert str(caught.value).isprintable()


def test_what_a_study_writes_is_not_written_through_links(tmp_path: Path, home: Path) -> None:
    made = bundle(tmp_path / "study")
    study = study_of()
    actions: dict[str, Callable[[], object]] = {
        EVALUATION: lambda: evaluate(made, study),
        "results.parquet": lambda: evaluate(made, study),
        "bundle.json": made.write_about,
        ".lock": lambda: made.locked().__enter__(),
        "runs": lambda: made.new_run(99).__enter__(),
    }
    for name, action in actions.items():
        place = made.directory / name
        kept = tmp_path / "kept"
        if place.exists():
            place.rename(kept)
        link(place, home / ("keys" if name == "runs" else "file"))
        with pytest.raises(UsageError, match=name):
            action()
        assert is_untouched(home), name
        place.unlink()
        if kept.exists():
            kept.rename(place)


def test_models_and_programs_are_not_written_through_links(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pl.DataFrame({"cpu_mhz": [1, 2], "time_us": [2.0, 1.0], "grain": ["a", "a"]})
    figure = model_figures.FIGURES["3.12"]
    monkeypatch.setitem(
        model_figures.FIGURES, "3.12", model_figures.RouterFigure(figure.title, lambda _: rows, figure.panels)
    )
    for name in ("figure-3.12.csv", "figure-3.12.svg", "parshall"):
        link(tmp_path / name, home / "file")
        with pytest.raises(UsageError, match=f"{name}: is a symbolic link"):
            if name == "parshall":
                extcap.install(tmp_path)
            else:
                model_figures.write("3.12", tmp_path)
        (tmp_path / name).unlink()
    assert is_untouched(home)
    assert os.access(extcap.install(tmp_path), os.X_OK)


@pytest.mark.parametrize("name", [EVALUATION, "bundle.json"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    made = bundle(tmp_path / "study")
    (made.directory / name).unlink()
    os.mkfifo(made.directory / name)
    with pytest.raises(UsageError, match=f"{name}: is not a regular file"):
        read_evaluation(made.directory) if name == EVALUATION else Bundle.open(made.directory)


def test_no_code_of_the_current_directory_runs(tmp_path: Path) -> None:
    """Python looks there first for what `-m` names and imports, also where a stranger made it, and root reads a log."""
    strange = tmp_path / "strange"
    strange.mkdir()
    for name in ("json", "vl_convert", "parshall", "certifi", "polars"):
        (strange / f"{name}.py").write_text(f"open({str(strange / 'ran')!r}, 'a').write({name!r})\n")
    shutil.copy(SMALL_LOG, strange / "small.arrow")
    program = Path(sys.executable).with_name("parshall")
    ended = subprocess.run([program, "report", "small.arrow"], cwd=strange, capture_output=True, text=True)
    assert not (strange / "ran").exists() and ended.returncode == 0, ended.stderr
    assert list((strange / "figures").glob("*.png"))


def test_every_process_of_python_leaves_the_current_directory_out() -> None:
    package = Path(__file__).parents[2] / "python/parshall"
    begun = {path: re.findall(r"sys\.executable[^\n]*-m\b", path.read_text()) for path in package.rglob("*.py")}
    lines = [f"{name}: {line}" for name, found in begun.items() for line in found]
    assert len(lines) > 5 and all("-P" in line or "-I" in line for line in lines), lines
