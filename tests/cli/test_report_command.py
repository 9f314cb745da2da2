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

PARSHALL = Path(sys.executable).with_name("parshall")
SMALL_LOG = Path(__file__).parents[1] / "data/small.arrow"


def report(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    return subprocess.run([PARSHALL, "report", *map(str, arguments)], capture_output=True, text=True, timeout=120)


def test_an_old_log_becomes_a_report(tmp_path):
    shutil.copy(SMALL_LOG, tmp_path / "small.arrow")
    ended = report(tmp_path, "--json", "--title", "An old log")
    assert (ended.returncode, ended.stderr) == (0, "")
    path = Path(json.loads(ended.stdout)["report"])
    assert path == tmp_path / "report.html"
    assert "<h1>An old log</h1>" in path.read_text()
    assert (tmp_path / "figures").is_dir()


@pytest.mark.parametrize(
    ("make", "status", "text"),
    [
        (lambda path: None, 2, "no such file"),
        (lambda path: path.mkdir(), 2, "no log (.arrow) in this directory"),
        (lambda path: path.write_text("no log"), 1, "given"),
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
