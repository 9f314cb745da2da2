"""``parshall report``: an old log becomes a report; what is wrong is said in one line."""

import json
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


def test_a_log_of_the_past_becomes_a_report(tmp_path):
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
        (lambda path: path.mkdir(), 2, "no log (.arrow) is in this directory"),
        (lambda path: path.write_text("no log"), 1, "given"),
    ],
)
def test_what_is_no_log_is_said_in_one_line(tmp_path, make, status, text):
    make(tmp_path / "given")
    ended = report(tmp_path / "given", "-o", tmp_path / "out")
    assert (ended.returncode, ended.stdout) == (status, "")
    assert ended.stderr.startswith("parshall: report: ")
    assert ended.stderr.count("\n") == 1
    assert text in ended.stderr
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_said_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    ended = report(SMALL_LOG, "-o", tmp_path / "file")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert str(tmp_path / "file") in ended.stderr
