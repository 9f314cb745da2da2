"""Notes of running commands: each goes with its process, and only those of root are read."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parshall.host import running
from parshall.host.running import Note, listed

pytestmark = pytest.mark.usefixtures("root")
STATEMENT = {"source": "Figure 7", "low": -3.0, "high": 2.0, "limit": 5.0, "unit": "%", "is_same": None, "reason": ""}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The notes of this test alone."""
    path = tmp_path / "run" / "running"
    monkeypatch.setattr(running, "DIRECTORY", path)
    return path


@pytest.fixture
def kept(directory: Path) -> Iterator[Any]:
    """Writes what a process of root may have written, and keeps it."""
    files = []

    def keep(content: bytes, name: str = "1-f00") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / name).open("wb")
        file.write(content)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        files.append(file)

    yield keep
    for file in files:
        file.close()


def test_a_note_is_there_while_its_block_runs_and_has_what_was_last_written(directory: Path) -> None:
    assert listed() == []
    with Note("gen") as one, Note("lab") as other:
        one.write("a long text " * 20)
        one.write("10 packets")
        other.write("siftr: run 3 of 12", [STATEMENT])
        first, second = listed()
        assert (first["command"], first["text"], first["pid"]) == ("gen", "10 packets", os.getpid())
        assert first["statements"] == []
        assert second["more_statements"] == 0
        assert second["statements"] == [{name: STATEMENT[name] for name in STATEMENT if name != "reason"}]
    assert listed() == [] and list(directory.iterdir()) == []


def test_what_a_killed_process_left_is_not_listed_and_goes(directory: Path) -> None:
    code = f"""
from pathlib import Path
from parshall.host import running
running.DIRECTORY = Path({str(directory)!r})
with running.Note("gen") as note:
    note.write("sends")
    print(flush=True)
    input()
"""
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipe) as process:
        process.stdout.readline()
        assert [note["pid"] for note in listed()] == [process.pid]
        process.kill()
    assert listed() == [] and len(list(directory.iterdir())) == 1
    with Note("lab"):
        assert len(list(directory.iterdir())) == 1
    assert list(directory.iterdir()) == []


def test_nobody_else_may_open_a_note_and_so_hold_its_lock(directory: Path) -> None:
    with Note("gen") as note:
        note.write("sends")
        (path,) = directory.iterdir()
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_note_has_its_lock_before_its_name(directory: Path) -> None:
    """Otherwise another command that begins takes it for one of a process that has ended."""
    code = f"""
from pathlib import Path
from parshall.host import running
running.DIRECTORY = Path({str(directory)!r})
for number in range(400):
    with running.Note("gen") as note:
        assert note._path.exists()
"""
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert list(directory.iterdir()) == []


def test_the_longest_note_has_room_and_says_what_it_leaves_out(kept: Any) -> None:
    odd = '\U0001f980\udcff\x1b"' * 200
    row = STATEMENT | {"source": odd, "unit": odd}
    with Note("lab") as note:
        note.write(odd, [row] * 700)
        (found,) = listed()
    assert (len(found["statements"]), found["more_statements"]) == (40, 660)
    assert "\x1b" not in json.dumps(found, ensure_ascii=False)


def test_of_very_many_commands_the_rest_is_counted(kept: Any) -> None:
    for number in range(105):
        kept(json.dumps({"command": "gen", "pid": number, "began_s": number, "statements": []}).encode(), str(number))
    found = listed()
    assert len(found) == 101 and found[-1]["text"] == "and 5 more"


def test_what_others_may_have_made_is_neither_read_nor_written(directory: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    directory.parent.mkdir()
    directory.symlink_to(elsewhere)
    with Note("gen") as note:
        note.write("sends")
        assert list(elsewhere.iterdir()) == [] and listed() == []
    directory.unlink()
    directory.mkdir()
    for path in (directory, directory.parent):
        path.chmod(0o777)
        with Note("gen") as note:
            note.write("sends")
            assert list(directory.iterdir()) == [] and listed() == []
        path.chmod(0o755)
        os.chown(path, 1234, -1)
        with Note("gen") as note:
            note.write("sends")
            assert list(directory.iterdir()) == [] and listed() == []
        os.chown(path, 0, -1)
    with Note("gen") as note:
        note.write("sends")
        assert len(listed()) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"[]",
        b'{"pid": 1}',
        b'{"pid": NaN, "began_s": 1, "statements": []}',
        b'{"pid": 1, "began_s": 1e999, "statements": []}',
        b'{"pid": 1, "began_s": 1, "statements": 7}',
        b"\xff\xfe",
    ],
)
def test_a_note_that_is_none_is_left_out(kept: Any, content: bytes) -> None:
    kept(content)
    with Note("gen"):
        pass
    assert listed() == []


def test_texts_are_on_one_line_and_numbers_are_those_of_json(kept: Any) -> None:
    row = STATEMENT | {"source": "a\x1b[31m\nb", "low": float("nan"), "is_same": True}
    rows = [row, row | {"is_same": "yes"}, row | {"low": "1"}, 7]
    note = {"command": "x\n", "pid": 1, "began_s": 2, "text": "y" * 9_999 + "\r", "statements": rows}
    kept(json.dumps(note).encode())
    (found,) = listed()
    assert found["command"] == "x\\n" and len(found["text"]) == 200
    assert [each["low"] for each in found["statements"]] == [None, None]
    assert found["statements"][0]["source"] == "a\\x1b[31m\\nb"
    json.dumps(found, allow_nan=False)


def test_a_fifo_or_a_directory_in_between_is_not_waited_for(directory: Path, kept: Any) -> None:
    kept(b"{}")
    os.mkfifo(directory / "2-fifo")
    (directory / "3-directory").mkdir()
    assert listed() == []
