"""``parshall report``: old logs become reports; errors are one line."""

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import in_process

PARSHALL = Path(sys.executable).with_name("parshall")
SMALL_LOG = Path(__file__).parents[1] / "data/small.arrow"


def report(*arguments: object) -> subprocess.CompletedProcess[str]:
    return in_process.parshall("report", *arguments)


def test_an_old_log_becomes_a_report(tmp_path):
    shutil.copy(SMALL_LOG, tmp_path / "small.arrow")
    ended = report(tmp_path, "--json", "--title", "An old log")
    assert (ended.returncode, ended.stderr) == (0, "")
    path = tmp_path / "report.html"
    assert json.loads(ended.stdout) == {"report": str(path), "replaced": False}
    assert "<h1>An old log</h1>" in path.read_text()
    assert (tmp_path / "figures").is_dir()


def test_a_quiet_report_prints_nothing(tmp_path):
    shutil.copy(SMALL_LOG, tmp_path / "small.arrow")
    ended = report(tmp_path, "-q")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert (tmp_path / "report.html").is_file()


def test_a_report_in_place_of_another_says_so_and_removes_what_the_other_wrote(tmp_path):
    shutil.copy(SMALL_LOG, tmp_path / "first.arrow")
    shutil.copy(SMALL_LOG, tmp_path / "second.arrow")
    page, figures = tmp_path / "report.html", tmp_path / "figures"
    first = report(tmp_path / "first.arrow")
    assert first.stdout == f"{page}\n", first
    of_first = sorted(figures.iterdir())
    assert of_first and all(path.name.startswith("first-") for path in of_first)
    # Files of the user: another one, and one in place of a figure.
    (figures / "mine.svg").write_text("mine")
    of_first[0].write_text("mine")
    of_first[1].unlink()
    of_first[1].symlink_to(tmp_path / "second.arrow")
    second = report(tmp_path / "second.arrow")
    assert second.stdout == f"{page} (replaced the report that was there)\n", second
    left = {path.name for path in figures.iterdir() if not path.name.startswith("second-")}
    assert left == {"mine.svg", of_first[0].name, of_first[1].name}
    # As many as the first had, of the same log.
    assert len(list(figures.iterdir())) == len(left) + len(of_first)


def test_a_report_loads_no_pandas(tmp_path):
    # It takes a quarter of a second, and a report has no use for it.
    code = (
        "import sys, parshall; log = parshall.read(sys.argv[1]);"
        "parshall.write_report({'a': log}, sys.argv[2], 'A', images=False);"
        "print('polars' in sys.modules, 'pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", code, SMALL_LOG, tmp_path]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["True", "False"]


@pytest.mark.parametrize(
    "listed",
    [{"../kept.csv": ""}, {"figures/../../kept.csv": ""}, {"kept.txt": ""}, ["kept.csv"], {"kept.csv": 5}, "{"],
)
def test_a_list_of_others_removes_nothing_else(tmp_path, listed):
    from parshall.report.former import files_of, list_line, remove_files

    page = tmp_path / "report.html"
    text = listed if isinstance(listed, str) else json.dumps(listed)
    page.write_text(list_line({}).replace("{}", text))
    assert files_of(page) == {}
    page.write_text(list_line({"figures/a --> b.svg": "drawn"}))
    assert page.read_text().count("-->") == 1 and list(files_of(page)) == ["figures/a --> b.svg"]
    remove_files(tmp_path, files_of(page), ())


@pytest.mark.parametrize(
    ("make", "status", "text"),
    [
        (lambda path: None, 2, "no such file"),
        (lambda path: path.mkdir(), 2, "no log (.arrow) in this directory"),
        (lambda path: path.write_text("no log"), 1, "given: is neither a log nor histograms; give"),
        (lambda path: path.write_bytes(b""), 1, "given: "),
    ],
)
def test_inputs_other_than_logs_are_one_line(tmp_path, make, status, text):
    make(tmp_path / "given")
    ended = report(tmp_path / "given", "-o", tmp_path / "out")
    assert (ended.returncode, ended.stdout) == (status, "")
    assert ended.stderr.startswith("parshall: report: ")
    assert ended.stderr.count("\n") == 1
    assert text in ended.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("make", "place", "text"),
    [
        (lambda path: path.write_text(""), "given", "not a directory"),
        (lambda path: path.write_text(""), "given/below", "not a directory"),
        (lambda path: (path / "report.html").mkdir(parents=True), "given", "in the way of the report"),
        (lambda path: None, "n" * 300, "File name too long"),
    ],
)
def test_an_unwritable_output_is_reported_before_reading_the_log(tmp_path, damaged_log, make, place, text):
    make(tmp_path / "given")
    # Its rows cannot be read, which would be the error if they were read first.
    ended = report(damaged_log, "-o", tmp_path / place)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert text in ended.stderr


def test_a_damaged_log_leaves_no_directory(tmp_path, damaged_log):
    ended = report(damaged_log, "-o", tmp_path / "out")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "damaged at byte" in ended.stderr
    assert not (tmp_path / "out").exists()


def test_a_terminal_shows_progress_and_clears_it(tmp_path):
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        ended = subprocess.run(
            [PARSHALL, "report", SMALL_LOG, "-o", tmp_path],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "COLUMNS": "60"},
            timeout=120,
        )
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):
            while part := terminal.read(65536):
                shown += part
    assert ended.returncode == 0
    lines = shown.decode().split("\r\x1b[K")
    for text in ("report: reading small: 300 records", "report: drawing figure 1 of 4"):
        # After a second it has the seconds.
        assert any(line.startswith(text) for line in lines), lines
    assert lines[-1] == "" and max(map(len, lines)) < 60
    assert ended.stdout.decode() == f"{tmp_path / 'report.html'}\n"
